import { curveOfId } from './ids.js';

/** @import { Column } from '../../../script/packed.js' */
/** @import { Recording } from '../types.d.ts' */
/** @import { Timeline } from './timeline.js' */
/** @import { FrameText } from './frames.js' */

/** The key of curves that belong to no single group. */
export const NO_KEY = -1;

/** Puts blocks and curves into groups, each with a key. */
export class Grouping {
  /**
   * @param {string} name
   * @param {object} parts
   * @param {ArrayLike<number>} parts.keys of the blocks
   * @param {ArrayLike<number>} [parts.curveKeys] of the curves of smaller blocks
   * @param {(key: number) => string} parts.label
   * @param {(key: number) => string} [parts.within] the frame of a library that made the call, or ''
   * @param {string[] | null} [parts.colors] `#rrggbb` of each key, where they are fixed
   */
  constructor(name, { keys, curveKeys = [], label, within = () => '', colors = null }) {
    this.name = name;
    this.keys = keys;
    this.curveKeys = curveKeys;
    this.label = label;
    this.within = within;
    this.colors = colors;
  }

  /** @param {number} id */
  keyOf(id) {
    return (id >= 0 ? this.keys[id] : this.curveKeys[curveOfId(id)]) ?? NO_KEY;
  }

  /** @param {number} key */
  fullLabel(key) {
    return [this.label(key), this.within(key)].filter(Boolean).join(' ');
  }

  /** The keys of all blocks and curves. */
  allKeys() {
    /** @type {Set<number>} */
    const found = new Set();
    for (const keys of [this.keys, this.curveKeys]) for (let at = 0; at < keys.length; at++) found.add(keys[at]);
    return found;
  }

  /** False if all blocks have the same key, 0. */
  get isUseful() {
    for (let block = 0; block < this.keys.length; block++) if (this.keys[block] !== 0) return true;
    return false;
  }
}

/**
 * What the page can color and list by. Add one here to offer it.
 *
 * @param {Recording} recording
 * @param {Timeline} timeline
 * @param {FrameText} frames
 * @returns {Grouping[]}
 */
export function groupingsOf({ header }, timeline, frames) {
  const lines = withoutStack(header, timeline, timeline.line, header.lines.length);
  const paths = withoutStack(header, timeline, timeline.path, header.paths.length);
  const phases = timeline.born.map((born) => {
    const phase = born > 0 ? timeline.phaseOf(born) : -1;
    return phase < 0 ? 0 : 1 + timeline.phases.names[phase];
  });
  const category = new Grouping('category', {
    keys: timeline.category,
    curveKeys: timeline.curveCategories,
    label: (key) => header.categories[key].label,
    colors: header.categories.map(({ color }) => color),
  });
  const line = new Grouping('line', {
    keys: lines.keys,
    curveKeys: timeline.curves,
    label: (key) => lines.labels.get(key) ?? frames.join(header.lines[key]),
    within: (key) => header.linesWithin[key] ?? '',
  });
  const path = new Grouping('call path', {
    keys: paths.keys,
    label: (key) => paths.labels.get(key) ?? frames.join(header.paths[key]),
    within: (key) => header.pathsWithin[key] ?? '',
  });
  const module = new Grouping('module', {
    keys: timeline.module,
    label: (key) => header.modules[key] || 'no module',
  });
  const phase = new Grouping('phase', {
    keys: phases,
    label: (key) => (key ? `allocated in ${header.phases[key - 1]}` : 'allocated before'),
  });
  return [category, line, path, ...[module, phase].filter(({ isUseful }) => isUseful)];
}

/**
 * Blocks without a stack get keys of their own, from `next` on, by what else is known of them.
 *
 * @param {Recording['header']} header
 * @param {Timeline} timeline
 * @param {Column} keys
 * @param {number} next
 */
function withoutStack(header, timeline, keys, next) {
  /** @type {Map<string, number>} */
  const known = new Map();
  const all = keys.map((key, block) => {
    if (timeline.stack[block]) return key;
    const category = header.categories[timeline.category[block]].label;
    const module = timeline.tensor[block] ? '' : header.modules[timeline.module[block]];
    let label = `${category}, without a stack${module ? `, while ${module} ran` : ''}`;
    if (!timeline.born[block]) label = `${category}, made before the recording`;
    const found = known.get(label) ?? next + known.size;
    known.set(label, found);
    return found;
  });
  return { keys: all, labels: new Map([...known].map(([label, key]) => [key, label])) };
}
