'use strict';
// The segments at the end of the recording: each a bar as wide as it is large, its blocks in order of address, one
// after the other, by pool and stream.

class SegmentMap {
  constructor(page) {
    this.page = page;
    this.canvas = element('segment-map');
    this.tip = this.canvas && new Tip(this.canvas.closest('.stage'));
    if (this.canvas) this.listen();
  }

  openDevice(number) {
    if (!this.canvas) return;
    const { header, columns } = this.page;
    const device = header.devices[number].segments;
    this.bars = device && new SegmentBars(device.groups, (name) => columns[`${number}.${name}`]);
    this.scale = 1;
    this.at = -1;
    element('segments').hidden = !device;
    if (!device) return;
    element('segments-words').textContent = device.words;
    this.explain();
  }

  // -- drawing ---------------------------------------------------------------------------------------------------

  draw() {
    if (!this.bars) return;
    const { canvas } = this;
    const wide = canvas.parentElement.clientWidth;
    if (!wide) return;
    const high = this.bars.layOut(wide, this.scale);
    const ratio = Math.min(devicePixelRatio || 1, 2, 16000 / high);
    canvas.style.height = `${high}px`;
    [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
    const ink = canvas.getContext('2d');
    const style = getComputedStyle(document.body);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    ink.scale(ratio, ratio);
    ink.font = '12px system-ui, sans-serif';
    ink.fillStyle = colour('text');
    for (const { words, y } of this.bars.labels) ink.fillText(words, 0, y, wide);
    const paint = this.page.painter();
    const hatches = { split: hatched(ink, colour('soft')), awaiting: hatched(ink, colour('text')) };
    for (const { x, y, width, piece } of this.bars.places) {
      const isKnown = piece.state !== FREE;
      ink.fillStyle = isKnown ? this.colourOf(piece, paint) : colour('raised');
      ink.fillRect(x, y, width, SEGMENTS.row);
      const over = piece.state === AWAITING ? hatches.awaiting : this.isSplit(piece) ? hatches.split : null;
      if (over) {
        ink.fillStyle = over;
        ink.fillRect(x, y, width, SEGMENTS.row);
      }
      if (isKnown && width > 3) {
        ink.fillStyle = colour('ground');
        ink.globalAlpha = 0.5;
        ink.fillRect(x + width - 0.7, y, 0.7, SEGMENTS.row);
        ink.globalAlpha = 1;
      }
    }
    ink.strokeStyle = colour('soft');
    ink.lineWidth = 0.8;
    for (const { x, y, width } of this.bars.frames) {
      ink.globalAlpha = width > 3 ? 1 : 0.4;
      ink.strokeRect(x + 0.4, y + 0.4, Math.max(width - 0.8, 0.4), SEGMENTS.row - 0.8);
    }
    ink.globalAlpha = 1;
    const at = this.bars.places[this.at];
    if (at) {
      ink.strokeStyle = colour('accent');
      ink.lineWidth = 2.5;
      ink.strokeRect(at.x, at.y, Math.max(at.width, 2), SEGMENTS.row);
    }
    element('segments-closer').disabled = this.scale >= SEGMENTS.largest;
    element('segments-farther').disabled = this.scale <= 1;
  }

  colourOf(piece, paint) {
    if (piece.block < 0) {
      const { page } = this;
      return page.smallest || page.found || page.chosen ? cssOf(page.grey[0]) : 'rgb(140 146 156)';
    }
    return cssOf(paint(piece.block)[0]);
  }

  isSplit({ state, segment }) {
    return state === FREE && segment.pieces.length > 1 && !segment.leftOut;
  }

  explain() {
    const one = (name, words) => make('span', {}, make('i', { className: `swatch ${name}` }), ` ${words}`);
    element('segments-key').replaceChildren(
      one('split', 'free beside blocks'),
      one('empty', 'an empty segment'),
      one('awaiting', 'freed, but awaited by another stream'),
      one('smaller', 'a block that is summed up with smaller ones'),
    );
  }

  // -- what a person does ----------------------------------------------------------------------------------------

  listen() {
    const { canvas, tip } = this;
    canvas.addEventListener('pointermove', (event) => {
      const place = this.bars.places[this.under(event)];
      if (place) tip.showAt(event, this.tipOf(place.piece));
      else tip.hide();
    });
    canvas.addEventListener('pointerleave', () => tip.hide());
    canvas.addEventListener('click', (event) => {
      this.at = -1;
      this.choose(this.under(event));
    });
    canvas.addEventListener('keydown', (event) => this.keydown(event));
    canvas.addEventListener('blur', () => { tip.hide(); this.at = -1; this.draw(); });
    element('segments-closer').addEventListener('click', () => this.rescale(2));
    element('segments-farther').addEventListener('click', () => this.rescale(0.5));
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  rescale(factor) {
    this.scale = Math.min(Math.max(this.scale * factor, 1), SEGMENTS.largest);
    this.draw();
  }

  under({ offsetX, offsetY }) {
    return this.bars.places.findIndex(({ x, y, width }) =>
      y <= offsetY && offsetY < y + SEGMENTS.row && x <= offsetX && offsetX < x + Math.max(width, 1));
  }

  keydown(event) {
    const beside = (step) => () => this.step(Math.min(Math.max(this.at + step, 0), this.bars.places.length - 1));
    const acts = {
      ArrowRight: beside(1),
      ArrowLeft: beside(-1),
      ArrowDown: () => this.step(this.otherSegment(1)),
      ArrowUp: () => this.step(this.otherSegment(-1)),
      Enter: () => this.choose(this.at),
      ' ': () => this.choose(this.at),
      '+': () => this.rescale(2),
      '=': () => this.rescale(2),
      '-': () => this.rescale(0.5),
      Escape: () => this.page.choose(null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  otherSegment(step) {
    const from = this.bars.places[this.at]?.piece.segment;
    let at = Math.max(this.at, 0);
    while (this.bars.places[at + step] && this.bars.places[at].piece.segment === from) at += step;
    return at;
  }

  step(at) {
    this.at = at;
    const { x, y, piece } = this.bars.places[at];
    this.draw();
    const scrolled = this.canvas.parentElement;
    if (y < scrolled.scrollTop || y + 60 > scrolled.scrollTop + scrolled.clientHeight) scrolled.scrollTop = y - 60;
    this.tip.show(this.tipOf(piece), x, y + SEGMENTS.row - scrolled.scrollTop);
  }

  stateWords(piece) {
    if (piece.state === AWAITING) return 'freed, but awaited by another stream';
    if (piece.state === ALLOCATED) return piece.block < 0 ? 'allocated; summed up with smaller blocks above' : 'allocated';
    return this.isSplit(piece) ? 'free, beside blocks: fragmentation' : 'free, all of its segment';
  }

  segmentWords(segment) {
    const pool = this.bars.groups[segment.group].words.split(':')[0];
    const what = segment.leftOut ? `${humanCount(segment.leftOut)} smaller segments of` : `${segment.isExpandable ? 'an expandable' : 'a'} segment of`;
    return `${what} ${humanBytes(segment.size)}, ${pool}`;
  }

  tipOf(piece) {
    const lines = [make('strong', { textContent: humanBytes(piece.size) })];
    lines.push(make('div', { textContent: piece.segment.leftOut ? 'summed up' : this.stateWords(piece) }));
    if (piece.block >= 0) lines.push(...this.page.tipLines(piece.block));
    lines.push(make('div', { className: 'hint', textContent: `in ${this.segmentWords(piece.segment)}` }));
    return lines;
  }

  choose(place) {
    const piece = this.bars.places[place]?.piece;
    if (!piece) this.page.choose(null);
    else if (piece.block >= 0) this.page.choose({ block: piece.block });
    else this.chooseSegment(piece);
  }

  chooseSegment(piece) {
    const { page } = this;
    const { segment } = piece;
    const blocks = new Set(segment.pieces.map(({ block }) => block));
    page.choosePart({
      of: page.timeline.stack.map((_, block) => (blocks.has(block) ? 1 : 0)),
      curves: [],
      about: () => this.about(piece),
    });
  }

  about(piece) {
    const { segment } = piece;
    const sum = (state) => segment.pieces.reduce((bytes, one) => bytes + (one.state === state ? one.size : 0), 0);
    const facts = [['this piece', `${humanBytes(piece.size)} ${this.stateWords(piece)}`]];
    if (segment.leftOut) facts[0][1] = `${humanBytes(piece.size)}, summed up`;
    facts.push(['allocated', humanBytes(sum(ALLOCATED))]);
    if (sum(AWAITING)) facts.push(['awaiting free', humanBytes(sum(AWAITING))]);
    facts.push(['free', humanBytes(sum(FREE))]);
    if (!segment.leftOut) {
      const free = segment.pieces.filter(({ state }) => state === FREE).map(({ size }) => size);
      facts.push(['largest free', humanBytes(Math.max(0, ...free))]);
      facts.push(['holds', blocksInWords(segment.pieces.length - free.length)]);
    }
    return [
      make('div', { className: 'size', textContent: humanBytes(segment.size) }),
      make('p', { textContent: this.segmentWords(segment) }),
      this.page.factList(facts),
      make('div', { className: 'actions' }, this.page.letGo()),
    ];
  }
}

function cssOf(packedColour) {
  return `rgb(${packedColour & 255} ${(packedColour >> 8) & 255} ${(packedColour >> 16) & 255})`;
}

// Diagonal lines, as a pattern to fill with.
function hatched(ink, colour) {
  const tile = make('canvas', { width: 6, height: 6 });
  const lines = tile.getContext('2d');
  lines.strokeStyle = colour;
  lines.lineWidth = 1.1;
  for (const shift of [-6, 0, 6]) {
    lines.moveTo(shift, 6);
    lines.lineTo(shift + 6, 0);
  }
  lines.stroke();
  return ink.createPattern(tile, 'repeat');
}
