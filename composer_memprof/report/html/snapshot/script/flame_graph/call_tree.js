/**
 * The call tree of what is allocated at a moment, outermost frame first. The user's own frames are nodes of their own;
 * frames of libraries between them are one node, unless unfolded. Curves of smaller blocks have no stack: all of them
 * are one node.
 */

import { idOfCurve } from '../model/ids.js';

/** @import { Recording } from '../types.d.ts' */
/** @import { Grouping } from '../model/groupings.js' */
/** @import { Model } from '../model/model.js' */

/** @typedef {'all' | 'own' | 'folded' | 'none' | 'smaller'} NodeKind `none` has no stack */
/** @typedef {{kind: NodeKind, key: string, frames: number[]}} Step frames innermost first */

/**
 * @typedef {object} StackSum what is allocated through one stack
 * @property {number | null} stack null for smaller blocks
 * @property {number} bytes
 * @property {number} blocks
 * @property {Map<number, number>} shares bytes by key of the grouping that gives the colors
 */

export class CallNode {
  /**
   * @param {Step} step
   * @param {CallNode | null} parent
   */
  constructor({ kind, key, frames }, parent) {
    this.kind = kind;
    this.key = key;
    this.frames = frames;
    this.parent = parent;
    this.level = levelBelow(parent);
    this.bytes = 0;
    this.blocks = 0;
    /** @type {Map<number, number>} */
    this.shares = new Map();
    /** @type {Map<string, CallNode>} */
    this.children = new Map();
    /** @type {number[]} */
    this.stacks = [];
  }

  /** @param {Step} step */
  child(step) {
    const found = this.children.get(step.key) ?? new CallNode(step, this);
    this.children.set(step.key, found);
    return found;
  }

  /** @param {StackSum} sum */
  add({ bytes, blocks, shares, stack }) {
    this.bytes += bytes;
    this.blocks += blocks;
    for (const [key, share] of shares) this.shares.set(key, (this.shares.get(key) ?? 0) + share);
    if (stack !== null) this.stacks.push(stack);
  }

  get largestFirst() {
    return [...this.children.values()].sort((one, other) => other.bytes - one.bytes);
  }

  /** Keys from the root to this node. */
  get keys() {
    const keys = [];
    for (let node = /** @type {CallNode} */ (this); node.parent; node = node.parent) keys.unshift(node.key);
    return keys;
  }
}

/**
 * @param {CallNode | null} parent
 * @returns {number}
 */
function levelBelow(parent) {
  return parent ? parent.level + 1 : 0;
}

/**
 * @param {Iterable<StackSum>} sums
 * @param {(stack: number | null) => Step[]} stepsOf
 */
export function callTree(sums, stepsOf) {
  const root = new CallNode({ kind: 'all', key: '', frames: [] }, null);
  for (const sum of sums) {
    let node = root;
    node.add(sum);
    for (const step of stepsOf(sum.stack)) {
      node = node.child(step);
      node.add(sum);
    }
  }
  return root;
}

/**
 * What the filters show at the listed moment, by stack.
 *
 * @param {Model} model
 * @param {Grouping} grouping that gives the colors
 */
export function sumsByStack({ timeline, filters, moment }, grouping) {
  /** @type {Map<number | null, StackSum>} */
  const sums = new Map();
  /** @type {(stack: number | null, id: number, bytes: number) => void} */
  const add = (stack, id, bytes) => {
    const sum = sums.get(stack) ?? { stack, bytes: 0, blocks: 0, shares: new Map() };
    const key = grouping.keyOf(id);
    sum.bytes += bytes;
    sum.blocks += id >= 0 ? 1 : 0;
    sum.shares.set(key, (sum.shares.get(key) ?? 0) + bytes);
    sums.set(stack, sum);
  };
  for (const block of timeline.liveAt(moment)) {
    if (filters.showsBlock(block)) add(timeline.stack[block], block, timeline.size[block]);
  }
  for (const [curve, bytes] of timeline.curvesAt(moment)) {
    if (filters.showsCurve(curve)) add(null, idOfCurve(curve), bytes);
  }
  return [...sums.values()];
}

/**
 * The nodes that a stack passes through, outermost first.
 *
 * @param {Pick<Recording, 'header' | 'columns'>} recording
 * @param {number | null} stack
 * @param {boolean} isUnfolded
 * @returns {Step[]}
 */
export function stepsOf({ header, columns }, stack, isUnfolded) {
  if (stack === null) return [{ kind: 'smaller', key: 'smaller', frames: [] }];
  const frames = header.stacks[stack];
  if (!frames.length) return [{ kind: 'none', key: 'none', frames: [] }];
  const own = header.paths[columns.pathOfStack[stack]];
  /** @type {Step[]} */
  const steps = [];
  for (const frame of frames.toReversed()) {
    const isOwn = own.includes(frame) || header.ownFiles[header.frames[frame][0]] === 1;
    const last = steps[steps.length - 1];
    if (isOwn) {
      steps.push({ kind: 'own', key: `${frame}`, frames: [frame] });
    } else if (isUnfolded || last?.kind !== 'folded') {
      steps.push({ kind: 'folded', key: `folded ${frame}`, frames: [frame] });
    } else {
      last.key += ` ${frame}`;
      last.frames.unshift(frame);
    }
  }
  return steps;
}
