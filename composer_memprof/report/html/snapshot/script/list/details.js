import { byId, make, makeButton } from '../../../script/dom.js';
import { formatBytes, formatCount, formatPlural, formatTime } from '../../../script/format.js';
import { NO_KEY } from '../model/groupings.js';
import { stackElements } from '../stacks.js';
import { factList, swatch } from '../text.js';

/** @import { Actions, GroupSelection } from '../types.d.ts' */
/** @import { Model } from '../model/model.js' */

const MAX_STACKS = 8;

/** The panel about the selected block or group. */
export class Details {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.panel = byId('chosen', HTMLElement);
    this.help = byId('help', HTMLTemplateElement);
  }

  /** @param {Model} model */
  draw(model) {
    const { selection } = model;
    this.panel.replaceChildren(...this.contents(model));
    this.panel.classList.toggle('holds', selection !== null);
    this.panel.scrollTop = 0;
  }

  /**
   * @param {Model} model
   * @returns {Node[]}
   */
  contents(model) {
    const { selection } = model;
    if (!selection) return [this.help.content.cloneNode(true)];
    if ('block' in selection) return this.aboutBlock(model, selection.block);
    return selection.details?.() ?? this.aboutGroup(model, selection);
  }

  /**
   * @param {Model} model
   * @param {number} block
   */
  aboutBlock(model, block) {
    const { palette, timeline } = model;
    const size = formatBytes(timeline.size[block]);
    return [
      make('div', { className: 'size' }, swatch(palette, palette.grouping.keyOf(block)), size),
      factList(factsOf(model, block)),
      this.buttons(
        makeButton('All of this line', () => this.actions.select(model.lineOf(block))),
        makeButton('Zoom to its lifetime', () => this.actions.showLife(block)),
      ),
      make('h3', { textContent: 'Allocated by' }),
      ...stackElements(model, timeline.stack[block]),
    ];
  }

  /**
   * @param {Model} model
   * @param {GroupSelection} selection
   */
  aboutGroup(model, { grouping, key, actions }) {
    const { timeline, palette } = model;
    const group = model.groupsAt(model.moment, grouping).find((found) => found.key === key);
    const blocks = [...timeline.born.keys()].filter((block) => grouping.keyOf(block) === key);
    const largest = blocks.reduce((one, other) => (timeline.size[other] > timeline.size[one] ? other : one), blocks[0]);
    /** @type {[string, string][]} */
    const facts = [
      [model.momentText, formatPlural(group?.blocks ?? 0, 'block')],
      ['in total', `${formatPlural(blocks.length, 'block')} drawn one by one`],
    ];
    if (group?.hasSmaller) facts.push(['and', 'smaller blocks, hatched']);
    const buttons = actions?.() ?? [];
    if (blocks.length) {
      const label = `Its largest block, ${formatBytes(timeline.size[largest])}`;
      buttons.unshift(makeButton(label, () => this.actions.select({ block: largest })));
    }
    const color = swatch(palette, palette.grouping.keyOf(group?.largest ?? largest));
    const label = key === NO_KEY ? 'Smaller blocks of all groups' : grouping.fullLabel(key);
    return [
      make('div', { className: 'size' }, color, formatBytes(group?.bytes ?? 0)),
      make('p', { textContent: label }),
      factList(facts),
      this.buttons(...buttons),
      ...stacksOf(model, blocks),
    ];
  }

  /** @param {...HTMLElement} buttons */
  buttons(...buttons) {
    const clear = makeButton('Clear selection', () => this.actions.select(null));
    return make('div', { className: 'actions' }, ...buttons, clear);
  }
}

/**
 * @param {Model} model
 * @param {number} block
 * @returns {[term: string, text: string][]}
 */
function factsOf(model, block) {
  const { timeline, header } = model;
  const [born, died] = [timeline.born[block], timeline.died[block]];
  const isFreed = died <= timeline.events;
  const category = header.categories[timeline.category[block]].label;
  /** @type {[string, string][]} */
  const facts = [
    ['exactly', `${formatCount(timeline.size[block])} B`],
    ['allocated', born ? model.timeText(born) : 'before the recording began'],
    ['freed', isFreed ? model.timeText(died) : 'not while it was recorded'],
  ];
  if (timeline.time && born && isFreed) facts.push(['lifetime', formatTime(timeline.time[died] - timeline.time[born])]);
  if (timeline.module[block]) facts.push(['module', header.modules[timeline.module[block]]]);
  facts.push(['category', `${category} (${header.rules[timeline.rule[block]]})`]);
  if (timeline.tensor[block]) facts.push(['tensor', header.tensors[timeline.tensor[block]]]);
  return facts;
}

/**
 * The stacks of some blocks, first those with most bytes at the listed moment.
 *
 * @param {Model} model
 * @param {number[]} blocks
 * @returns {Node[]}
 */
function stacksOf(model, blocks) {
  const { timeline, moment, header } = model;
  /** @type {Map<number, number>} */
  const bytes = new Map();
  for (const block of blocks) {
    const isLive = timeline.born[block] <= moment && moment < timeline.died[block];
    const stack = timeline.stack[block];
    bytes.set(stack, (bytes.get(stack) ?? 0) + (isLive ? timeline.size[block] : 0));
  }
  const stacks = [...bytes].sort(([, one], [, other]) => other - one).filter(([stack]) => header.stacks[stack].length);
  return stacks.slice(0, MAX_STACKS).flatMap(([stack, held], place) => {
    const size = bytes.size > 1 ? `${formatBytes(held)} allocated by` : 'Allocated by';
    const heading = place ? `${formatBytes(held)} by` : size;
    return [make('h3', { textContent: heading }), ...stackElements(model, stack)];
  });
}
