'use strict';
// The call tree of what is allocated at a moment, outermost frame first. The user's own frames stand one by one; those
// of torch and other libraries between them are one piece, told apart by all their frames, unless they are unfolded.
// Smaller blocks that are summed up have no stack: they stay one piece.

class CallNode {
  constructor(kind, key, parent, frames = []) {
    this.kind = kind; // 'all', 'own', 'folded', 'none' without a stack, 'smaller'
    this.key = key;
    this.parent = parent;
    this.level = parent ? parent.level + 1 : 0;
    this.frames = frames; // innermost first
    this.bytes = 0;
    this.blocks = 0;
    this.shares = new Map(); // bytes by what it is coloured by
    this.children = new Map();
    this.stacks = []; // that come through it
  }

  child(kind, key, frames) {
    if (!this.children.has(key)) this.children.set(key, new CallNode(kind, key, this, frames));
    return this.children.get(key);
  }

  add({ bytes, blocks, shares, stack }) {
    this.bytes += bytes;
    this.blocks += blocks;
    for (const [key, share] of shares) this.shares.set(key, (this.shares.get(key) ?? 0) + share);
    if (stack !== undefined) this.stacks.push(stack);
  }

  get largestFirst() {
    return [...this.children.values()].sort((one, other) => other.bytes - one.bytes);
  }
}

function callTree(page, moment, unfolded) {
  const root = new CallNode('all', '', null);
  for (const sum of sumsByStack(page, moment)) {
    let node = root;
    node.add(sum);
    for (const [kind, key, frames] of stepsOf(page, sum.stack, unfolded)) {
      node = node.child(kind, key, frames);
      node.add(sum);
    }
  }
  return root;
}

// What the filters let through at a moment, by stack; the smaller blocks together, with none.
function sumsByStack(page, moment) {
  const { timeline } = page;
  const sums = new Map();
  const add = (stack, id, bytes) => {
    const sum = sums.get(stack) ?? { stack, bytes: 0, blocks: 0, shares: new Map() };
    const key = page.keyOf(id, page.colourBy);
    sum.bytes += bytes;
    sum.blocks += id >= 0 ? 1 : 0;
    sum.shares.set(key, (sum.shares.get(key) ?? 0) + bytes);
    sums.set(stack, sum);
  };
  for (const block of timeline.liveAt(moment)) if (page.isShown(block)) add(timeline.stack[block], block, timeline.size[block]);
  const known = lastAtMost(timeline.smallerMoments, moment);
  for (let curve = 0; curve <= timeline.curves.length; curve++) {
    const bytes = timeline.smallerAt(curve, known);
    if (bytes && page.isCurveShown(curve)) add(undefined, FIRST_CURVE - curve, bytes);
  }
  return sums.values();
}

// [kind, key, frames] of each piece of a stack, outermost first.
function stepsOf({ header, columns }, stack, unfolded) {
  if (stack === undefined) return [['smaller', 'smaller', []]];
  const frames = header.stacks[stack];
  if (!frames.length) return [['none', 'none', []]];
  const own = header.paths[columns.pathOfStack[stack]];
  const steps = [];
  for (let place = frames.length - 1; place >= 0; place--) {
    const frame = frames[place];
    const isOwn = own.includes(frame) || header.ownFiles[header.frames[frame][0]] === 1;
    const last = steps[steps.length - 1];
    if (isOwn) steps.push(['own', frame, [frame]]);
    else if (unfolded || !last || last[0] === 'own') steps.push(['folded', `folded ${frame}`, [frame]]);
    else steps[steps.length - 1] = ['folded', `${last[1]} ${frame}`, [frame, ...last[2]]];
  }
  return steps;
}
