import { cssColor } from '../../../script/colors.js';
import { byId, make, makeButton } from '../../../script/dom.js';
import { formatBytes, formatCount, formatPlural } from '../../../script/format.js';
import { FLAME_KEYS, listenToKeys } from '../../../script/keyboard.js';
import { Tooltip } from '../../../script/tooltip.js';
import { NO_STACK } from '../model/frames.js';
import { Grouping, NO_KEY } from '../model/groupings.js';
import { idOfCurve } from '../model/ids.js';
import { CallNode, callTree, stepsOf, sumsByStack } from './call_tree.js';
import { flameLayout, levelsOf } from './flame_layout.js';

/** @import { Actions } from '../types.d.ts' */
/** @import { Cell } from './flame_layout.js' */
/** @import { Model } from '../model/model.js' */

const CELL_HEIGHT = 22;
/** Pixels of the narrowest cell, and of the narrowest with a label. */
const MIN_WIDTH = 3;
const MIN_LABEL_WIDTH = 26;
const MAX_CELLS = 4000;
const MAX_TOOLTIP_FRAMES = 8;
/** Colors in one cell; what is left is gray. */
const MAX_COLORS = 6;

/** What is allocated at the listed moment, by call stack, the outermost frames on top. */
export class FlameGraph {
  /**
   * @param {() => Model} modelOf
   * @param {Actions} actions
   */
  constructor(modelOf, actions) {
    this.modelOf = modelOf;
    this.actions = actions;
    this.box = byId('flame', HTMLElement);
    this.tooltip = new Tooltip(/** @type {HTMLElement} */ (this.box.parentElement));
    this.unfold = byId('flame-unfold', HTMLInputElement);
    /** @type {string[]} keys of the node zoomed into, from the root */
    this.zoomed = [];
    this.root = callTree([], () => []);
    this.top = this.root;
    /** @type {CallNode[][]} */
    this.levels = [];
    /** @type {Map<CallNode, HTMLElement>} */
    this.cells = new Map();
    /** @type {WeakMap<Element, CallNode>} */
    this.nodes = new WeakMap();
    this.listen();
  }

  reset() {
    this.zoomed = [];
  }

  /** Reads the tree again: for another moment, other filters or colors. */
  renew() {
    const model = this.modelOf();
    this.root = callTree(sumsByStack(model, model.palette.grouping), (stack) =>
      stepsOf(model.recording, stack, this.unfold.checked),
    );
    this.top = this.root;
    for (const key of this.zoomed) this.top = this.top.children.get(key) ?? this.top;
    this.draw();
  }

  /** @param {CallNode} node */
  zoom(node) {
    this.top = node;
    this.zoomed = node.keys;
    this.draw();
    this.focus(node);
  }

  zoomOut() {
    if (this.top.parent) this.zoom(this.top.parent);
  }

  draw() {
    const wide = this.box.clientWidth || 800;
    const { cells, leftOut } = flameLayout(this.top, MIN_WIDTH / wide, MAX_CELLS);
    this.cells = new Map(cells.map((cell) => [cell.node, this.cellElement(cell, wide)]));
    this.levels = levelsOf(cells);
    this.box.replaceChildren(...this.cells.values());
    this.box.style.height = `${this.levels.length * CELL_HEIGHT}px`;
    const first = this.cells.get(this.top);
    if (first) first.tabIndex = 0;
    byId('flame-back', HTMLButtonElement).disabled = this.top === this.root;
    const hint = byId('flame-left-out', HTMLElement);
    hint.hidden = leftOut === 0;
    const areNarrow = leftOut === 1 ? '1 piece is' : `${formatCount(leftOut)} pieces are`;
    hint.textContent = `${areNarrow} too narrow to be drawn. Zoom in or filter to see more.`;
    this.tooltip.hide();
    this.mark();
  }

  /**
   * @param {Cell} cell
   * @param {number} wide
   */
  cellElement({ node, left, width }, wide) {
    const label = this.label(node);
    const textContent = width * wide < MIN_LABEL_WIDTH ? '' : label;
    const made = make('div', { className: `cell ${node.kind}`, tabIndex: -1, textContent });
    made.setAttribute('role', 'treeitem');
    made.setAttribute('aria-level', String(node.level + 1));
    made.setAttribute('aria-label', `${label}, ${this.sizeText(node)}`);
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * width}%`;
    made.style.top = `${node.level * CELL_HEIGHT}px`;
    made.style.setProperty('--fill', this.fill(node));
    this.nodes.set(made, node);
    return made;
  }

  /**
   * The colors of a node's blocks side by side.
   *
   * @param {CallNode} node
   */
  fill(node) {
    const { palette } = this.modelOf();
    const shares = [...node.shares].sort(([, one], [, other]) => other - one);
    const parts = [];
    let from = 0;
    for (const [key, bytes] of shares.slice(0, MAX_COLORS)) {
      const upTo = from + (100 * bytes) / node.bytes;
      parts.push(`${cssColor(palette.colorOf(key))} ${from}% ${upTo}%`);
      from = upTo;
    }
    if (shares.length > MAX_COLORS) parts.push(`${cssColor(palette.colorOf(NO_KEY))} ${from}% 100%`);
    return `linear-gradient(to right, ${parts.join(', ') || 'transparent 0% 100%'})`;
  }

  // -- text -----------------------------------------------------------------------------------------------------------

  /** @param {CallNode} node */
  label({ kind, bytes, frames }) {
    const { frames: text, filters, momentText } = this.modelOf();
    if (kind === 'all') return `${formatBytes(bytes)} ${momentText}${filters.isActive ? ', filtered' : ''}`;
    if (kind === 'smaller') return 'smaller blocks, summed';
    if (kind === 'none') return NO_STACK;
    return kind === 'own' ? text.join(frames) : text.summarize(frames);
  }

  /** @param {CallNode} node */
  sizeText({ bytes }) {
    const { timeline, moment } = this.modelOf();
    return `${formatBytes(bytes)}, ${((100 * bytes) / Math.max(timeline.total[moment], 1)).toFixed(1)} %`;
  }

  /** @param {CallNode} node */
  tooltipLines(node) {
    const { frames } = this.modelOf();
    const lines = node.frames.slice(0, MAX_TOOLTIP_FRAMES).map((frame) => frames.join([frame]));
    if (!node.frames.length) lines.push(this.label(node));
    const rest = node.frames.length - MAX_TOOLTIP_FRAMES;
    const hints = rest > 0 ? [`and ${rest} more`] : [];
    if (node.blocks) hints.push(formatPlural(node.blocks, 'block'));
    return [
      make('strong', { textContent: this.sizeText(node) }),
      ...lines.map((textContent) => make('div', { textContent })),
      ...hints.map((textContent) => make('div', { className: 'hint', textContent })),
    ];
  }

  // -- selection ------------------------------------------------------------------------------------------------------

  /** Fades what is not selected, here or elsewhere on the page. */
  mark() {
    const model = this.modelOf();
    const { selection } = model;
    const marked = selection ? this.selectedNodes(model) : new Set();
    const selected = selection && 'node' in selection ? selection.node : null;
    for (const [node, cell] of this.cells) {
      cell.classList.toggle('faint', selection !== null && node !== this.root && !marked.has(node));
      cell.setAttribute('aria-selected', String(selected === node));
    }
  }

  /** @param {Model} model */
  selectedNodes(model) {
    const { timeline, moment } = model;
    const blocks = timeline.liveAt(moment).filter((block) => model.isSelected(block));
    const stacks = new Set(blocks.map((block) => timeline.stack[block]));
    const curves = Array.from({ length: timeline.curveCount }, (_, curve) => idOfCurve(curve));
    const hasSmaller = curves.some((id) => model.isSelected(id));
    /** @type {Set<CallNode>} */
    const found = new Set();
    /** @param {CallNode} node */
    const visit = (node) => {
      if (node.stacks.some((stack) => stacks.has(stack)) || (node.kind === 'smaller' && hasSmaller)) found.add(node);
      for (const child of node.children.values()) visit(child);
    };
    visit(this.root);
    return found;
  }

  /** @param {CallNode} node */
  select(node) {
    if (node === this.root) {
      this.actions.select(null);
      return;
    }
    const { timeline } = this.modelOf();
    const stacks = new Set(node.stacks);
    const label = this.label(node);
    const grouping = new Grouping('piece', {
      keys: timeline.stack.map((stack) => (stacks.has(stack) ? 1 : 0)),
      curveKeys: Array.from({ length: timeline.curveCount }, () => (node.kind === 'smaller' ? 1 : 0)),
      label: () => label,
    });
    const actions = () => (node.children.size ? [makeButton('Zoom in', () => this.zoom(node))] : []);
    this.actions.select({ grouping, key: 1, actions, node });
  }

  // -- the pointer and the keyboard -----------------------------------------------------------------------------------

  /** @param {CallNode | null | undefined} node */
  focus(node) {
    const cell = node && this.cells.get(node);
    if (!cell) return;
    for (const other of this.cells.values()) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus();
  }

  /**
   * @param {Event} event
   * @returns {CallNode | undefined}
   */
  nodeAt({ target }) {
    const cell = target instanceof Element ? target.closest('.cell') : null;
    return cell ? this.nodes.get(cell) : undefined;
  }

  listen() {
    const { box, tooltip } = this;
    /** @type {(event: Event, run: (node: CallNode) => void) => void} */
    const atNode = (event, run) => {
      const node = this.nodeAt(event);
      if (node) run(node);
    };
    box.addEventListener('click', (event) => atNode(event, (node) => this.select(node)));
    box.addEventListener('dblclick', (event) => atNode(event, (node) => this.zoom(node)));
    box.addEventListener('pointermove', (event) =>
      atNode(event, (node) => tooltip.showAtPointer(event, this.tooltipLines(node))),
    );
    box.addEventListener('pointerleave', () => tooltip.hide());
    box.addEventListener('focusin', (event) => atNode(event, (node) => this.showFocused(node)));
    box.addEventListener('focusout', () => tooltip.hide());
    listenToKeys(box, FLAME_KEYS, (event) => this.commandsAt(this.nodeAt(event)));
    byId('flame-back', HTMLButtonElement).addEventListener('click', () => this.zoomOut());
    this.unfold.addEventListener('change', () => {
      this.reset();
      this.renew();
    });
    let wide = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth !== wide) this.draw();
      wide = box.clientWidth;
    }).observe(box);
  }

  /**
   * The tooltip of a cell that the keyboard is at.
   *
   * @param {CallNode} node
   */
  showFocused(node) {
    const cell = this.cells.get(node);
    if (!cell?.matches(':focus-visible')) return;
    this.tooltip.show(this.tooltipLines(node), cell.offsetLeft, cell.offsetTop + CELL_HEIGHT + 12);
  }

  /** @param {CallNode | undefined} node */
  commandsAt(node) {
    if (!node) return null;
    const level = this.levels[node.level];
    const place = level.indexOf(node);
    return {
      up: () => this.focus(node.parent),
      down: () => this.focus(node.largestFirst.find((child) => this.cells.has(child))),
      left: () => this.focus(level[place - 1]),
      right: () => this.focus(level[place + 1]),
      first: () => this.focus(this.top),
      select: () => this.select(node),
      zoomIn: () => this.zoom(node),
      zoomOut: () => this.zoomOut(),
      showAll: () => this.zoom(this.root),
      clear: () => this.actions.select(null),
    };
  }
}
