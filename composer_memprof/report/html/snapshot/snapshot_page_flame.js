'use strict';
// The flame graph of what is allocated at the listed moment, hanging from its outermost frames (an icicle).

const FLAME = { row: 22, narrowest: 3, narrowestWithWords: 26, mostCells: 4000, framesInTip: 8, shares: 6 };

class FlameGraph {
  constructor(page) {
    this.page = page;
    this.box = element('flame');
    this.tip = new Tip(this.box.parentElement);
    this.zoomed = []; // keys from the root down
    this.listen();
  }

  // Anew: another moment, other filters or colours.
  renew() {
    const { page } = this;
    this.root = callTree(page, page.moment, element('flame-unfold').checked);
    this.top = this.root;
    for (const key of this.zoomed) this.top = this.top.children.get(key) ?? this.top;
    this.draw();
  }

  zoom(node) {
    this.top = node;
    this.zoomed = [];
    for (let at = node; at.parent; at = at.parent) this.zoomed.unshift(at.key);
    this.draw();
    this.focus(node);
  }

  back() {
    if (this.top.parent) this.zoom(this.top.parent);
  }

  draw() {
    const wide = this.box.clientWidth || 800;
    const cells = [];
    for (let at = this.top; at; at = at.parent) cells.unshift({ node: at, left: 0, width: 1 });
    let leftOut = 0;
    const least = FLAME.narrowest / wide;
    const place = (node, left, width) => {
      let from = left;
      for (const child of node.largestFirst) {
        const share = (child.bytes / node.bytes) * width;
        if (share < least || cells.length >= FLAME.mostCells) {
          leftOut += 1;
          continue;
        }
        cells.push({ node: child, left: from, width: share });
        place(child, from, share);
        from += share;
      }
    };
    if (this.top.bytes) place(this.top, 0, 1);
    this.cells = new Map(cells.map((cell) => [cell.node, this.cell(cell, wide)]));
    this.levels = [];
    for (const { node } of cells) (this.levels[node.level] ??= []).push(node);
    this.box.replaceChildren(...this.cells.values());
    this.box.style.height = `${this.levels.length * FLAME.row}px`;
    this.cells.get(this.top).tabIndex = 0;
    element('flame-back').disabled = this.top === this.root;
    const hint = element('flame-left-out');
    hint.hidden = leftOut === 0;
    hint.textContent = `${humanCount(leftOut)} ${leftOut === 1 ? 'piece is' : 'pieces are'} too narrow to be drawn: zoom in, or filter, to see them.`;
    this.tip.hide();
    this.mark();
  }

  cell({ node, left, width }, wide) {
    const words = width * wide < FLAME.narrowestWithWords ? '' : this.label(node);
    const made = make('div', { className: `cell ${node.kind}`, tabIndex: -1, textContent: words });
    made.setAttribute('role', 'treeitem');
    made.setAttribute('aria-level', node.level + 1);
    made.setAttribute('aria-label', `${this.label(node)}, ${this.sizeWords(node)}`);
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * width}%`;
    made.style.top = `${node.level * FLAME.row}px`;
    made.style.setProperty('--fill', this.fill(node));
    made.node = node;
    return made;
  }

  // What it is made of, by what the page is coloured by, side by side.
  fill(node) {
    const { page } = this;
    const shares = [...node.shares].sort((one, other) => other[1] - one[1]);
    const parts = [];
    let from = 0;
    shares.forEach(([key, bytes], number) => {
      const upTo = number < FLAME.shares ? from + (100 * bytes) / node.bytes : 100;
      const colour = `rgb(${page.colourOfKey(number < FLAME.shares ? key : -1).join(' ')})`;
      if (number <= FLAME.shares) parts.push(`${colour} ${from}% ${upTo}%`);
      from = upTo;
    });
    return `linear-gradient(to right, ${parts.join(', ') || 'transparent 0% 100%'})`;
  }

  label(node) {
    const { page } = this;
    if (node.kind === 'all') return `${humanBytes(node.bytes)} ${page.momentWords()}${page.filtersWords()}`;
    if (node.kind === 'smaller') return 'smaller blocks, summed up';
    if (node.kind === 'none') return page.framesWords([]);
    if (node.kind === 'own') return page.framesWords(node.frames);
    const more = node.frames.length > 1 ? ` and ${node.frames.length - 1} more` : '';
    return `${shortOf(page.framesWords([this.telling(node.frames)]))}${more}`;
  }

  // Of frames that are one piece, the one that says most: the innermost of Python, else of what torch was asked for.
  telling(frames) {
    const words = frames.map((frame) => this.page.frameWords(frame));
    const first = (part, pattern) => frames[words.findIndex((frame) => pattern.test(frame[part]))];
    return first('where', /\.py(:|$)/)
      ?? first('name', /Backward\d*::apply|THPVariable_/)
      ?? first('name', /^torch::autograd::(?!VariableType)/)
      ?? frames[0];
  }

  sizeWords(node) {
    const total = this.page.timeline.total[this.page.moment];
    return `${humanBytes(node.bytes)}, ${((100 * node.bytes) / Math.max(total, 1)).toFixed(1)} %`;
  }

  tipOf(node) {
    const lines = [make('strong', { textContent: this.sizeWords(node) })];
    if (node.frames.length) {
      for (const frame of node.frames.slice(0, FLAME.framesInTip)) {
        lines.push(make('div', { textContent: this.page.framesWords([frame]) }));
      }
      const rest = node.frames.length - FLAME.framesInTip;
      if (rest > 0) lines.push(make('div', { className: 'hint', textContent: `and ${rest} more` }));
    } else {
      lines.push(make('div', { textContent: this.label(node) }));
    }
    if (node.blocks) lines.push(make('div', { className: 'hint', textContent: blocksInWords(node.blocks) }));
    return lines;
  }

  // What is chosen, here or elsewhere, stands out.
  mark() {
    const { page } = this;
    const marked = new Set();
    if (page.chosen) {
      const { timeline } = page;
      const stacks = new Set();
      for (const block of timeline.liveAt(page.moment)) if (page.isChosen(block)) stacks.add(timeline.stack[block]);
      const isSmaller = timeline.curves.concat(0).some((_, curve) => page.isChosen(FIRST_CURVE - curve));
      const visit = (node) => {
        if (node.stacks.some((stack) => stacks.has(stack)) || (node.kind === 'smaller' && isSmaller)) marked.add(node);
        for (const child of node.children.values()) visit(child);
      };
      visit(this.root);
    }
    for (const [node, cell] of this.cells) {
      cell.classList.toggle('faint', page.chosen !== null && node !== this.root && !marked.has(node));
      cell.setAttribute('aria-selected', String(page.chosen?.node === node));
    }
  }

  choose(node) {
    const { page } = this;
    if (node === this.root) {
      page.choose(null);
      return;
    }
    const stacks = new Set(node.stacks);
    const isSmaller = node.kind === 'smaller';
    const into = { type: 'button', textContent: 'Zoom into it', onclick: () => this.zoom(node) };
    page.choosePart({
      of: page.timeline.stack.map((stack) => (stacks.has(stack) ? 1 : 0)),
      curves: page.timeline.curves.concat(0).map(() => (isSmaller ? 1 : 0)),
      words: () => this.label(node),
      actions: () => (node.children.size ? [make('button', into)] : []),
      node,
    });
  }

  focus(node) {
    const cell = this.cells.get(node);
    if (!cell) return;
    for (const other of this.cells.values()) other.tabIndex = -1;
    cell.tabIndex = 0;
    cell.focus({ preventScroll: false });
  }

  listen() {
    const { box, tip } = this;
    const nodeOf = (event) => event.target.closest('.cell')?.node;
    const act = (name, run) => box.addEventListener(name, (event) => {
      const node = nodeOf(event);
      if (node) run(node, event);
    });
    act('click', (node) => this.choose(node));
    act('dblclick', (node) => this.zoom(node));
    act('pointermove', (node, event) => tip.showAt(event, this.tipOf(node)));
    box.addEventListener('pointerleave', () => tip.hide());
    act('focusin', (node, event) => {
      if (event.target.matches(':focus-visible')) tip.show(this.tipOf(node), event.target.offsetLeft, event.target.offsetTop + FLAME.row + 12);
    });
    box.addEventListener('focusout', () => tip.hide());
    act('keydown', (node, event) => this.keydown(node, event));
    element('flame-back').addEventListener('click', () => this.back());
    element('flame-unfold').addEventListener('change', () => { this.zoomed = []; this.renew(); });
    let wide = box.clientWidth;
    new ResizeObserver(() => {
      if (this.root && box.clientWidth !== wide) this.draw();
      wide = box.clientWidth;
    }).observe(box);
  }

  keydown(node, event) {
    const beside = (step) => this.levels[node.level][this.levels[node.level].indexOf(node) + step];
    const acts = {
      ArrowUp: () => this.focus(node.parent),
      ArrowDown: () => this.focus(node.largestFirst.find((child) => this.cells.has(child))),
      ArrowLeft: () => this.focus(beside(-1)),
      ArrowRight: () => this.focus(beside(1)),
      Home: () => this.focus(this.top),
      Enter: () => this.choose(node),
      ' ': () => this.choose(node),
      '+': () => this.zoom(node),
      '=': () => this.zoom(node),
      '-': () => this.back(),
      0: () => this.zoom(this.root),
      Escape: () => this.page.choose(null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}

// Of a C++ function its name and what it belongs to, without arguments: 'BmmBackward0::apply'.
function shortOf(words) {
  return words.includes('::') ? words.replace(/\((?!anonymous).*$/, '').split('::').slice(-2).join('::') : words;
}
