'use strict';
// What a person does with the page. Text from the snapshot enters it by textContent alone.

const element = (id) => document.getElementById(id);
const GUTTER = { left: 70, top: 18, axis: 22, phases: 15, batches: 15 };
const ROWS = 25;
const LEGEND = 8;

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class Page {
  constructor({ header, columns }) {
    this.header = header;
    this.columns = columns;
    this.canvas = element('timeline');
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.openDevice(0);
    this.listen();
  }

  openDevice(number) {
    this.timeline = new Timeline(this.header, this.columns, number);
    this.byTime = this.timeline.time !== null;
    this.chosen = null; // {block}, or all with the same {by, key}
    this.moment = this.timeline.peak; // whose blocks are listed
    this.clicked = null;
    this.shownRows = ROWS;
    element('axis').value = this.byTime ? 'time' : 'event';
    element('axis').options[0].disabled = !this.byTime;
    document.querySelectorAll('.facts').forEach((facts, index) => (facts.hidden = index !== number));
    this.clearFilters();
    this.offerKeys();
    this.reset();
  }

  // -- what blocks are coloured and grouped by ---------------------------------------------------------------------

  offerKeys() {
    const { timeline, header } = this;
    const phaseOf = Int32Array.from(timeline.born, (born) => {
      const phase = born > 0 ? timeline.phaseOf(born) : -1;
      return phase < 0 ? 0 : 1 + timeline.phases.names[phase];
    });
    this.keys = {
      category: { of: timeline.category, curves: timeline.curveCategories, words: (key) => header.categories[key] },
      line: { of: timeline.line, curves: timeline.curves, words: (key) => this.framesWords(header.lines[key]) },
      'call path': { of: timeline.path, curves: [], words: (key) => this.framesWords(header.paths[key]) },
      module: { of: timeline.module, curves: [], words: (key) => header.modules[key] || 'no module' },
      phase: { of: phaseOf, curves: [], words: (key) => (key ? `allocated in ${header.phases[key - 1]}` : 'allocated before') },
    };
    const offered = Object.keys(this.keys).filter((name) => !['module', 'phase'].includes(name) || this.keys[name].of.some((key) => key));
    const options = () => offered.map((name) => make('option', { value: name, textContent: name }));
    element('key').replaceChildren(...options());
    element('rows-by').replaceChildren(...options(), make('option', { value: '', textContent: 'single block' }));
    element('rows-by').value = this.rowsBy = 'line';
    // Where most of it is of no known category, lines of code tell more.
    const [unknown, most] = [header.categories.indexOf('unknown'), timeline.total[timeline.peak] / 2];
    const isKnown = this.groupsAt(timeline.peak, 'category').every(({ key, bytes }) => key !== unknown || bytes <= most);
    this.setColours(isKnown ? 'category' : 'line');
    element('key').value = this.colourBy;
  }

  setColours(name) {
    this.colourBy = name;
    const key = this.keys[name];
    // The largest at the peak take the colours that are easiest to tell apart.
    const sizes = new Map(this.groupsAt(this.timeline.peak, name).map((group) => [group.key, group.bytes]));
    for (const found of key.of) if (!sizes.has(found)) sizes.set(found, 0);
    const ranked = [...sizes.keys()].filter((found) => found >= 0).sort((one, other) => sizes.get(other) - sizes.get(one));
    this.rank = new Map(ranked.map((found, rank) => [found, rank]));
    this.recolour();
  }

  // -1 where a curve of smaller blocks is of no one key.
  keyOf(id, name) {
    return (id >= 0 ? this.keys[name].of[id] : this.keys[name].curves[FIRST_CURVE - id]) ?? -1;
  }

  colourOfKey(key) {
    if (key < 0) return [140, 146, 156];
    if (this.colourBy === 'category') return fromHex(this.header.categoryColours[key]);
    return colourOf(this.rank.get(key) ?? 0);
  }

  // For each key its colours: as they are, and beside what is chosen.
  recolour() {
    const ground = this.dark.matches ? [20, 24, 31] : [255, 255, 255];
    const edge = this.dark.matches ? [0, 0, 0] : [255, 255, 255];
    const pair = (colour, hatched) => [packed(colour), packed(mixed(colour, edge, 0.45)), hatched];
    this.paints = new Map();
    for (const key of [...this.rank.keys(), -1]) {
      const colour = this.colourOfKey(key);
      const faint = mixed(colour, ground, 0.72);
      this.paints.set(key, [pair(colour, false), pair(faint, false), pair(colour, true), pair(faint, true)]);
    }
    this.grey = pair(mixed([128, 134, 144], ground, 0.75), false); // filtered out
  }

  isShown(block) {
    return this.timeline.size[block] >= this.smallest && (!this.found || this.found[this.timeline.stack[block]]);
  }

  isCurveShown(curve) {
    const line = this.timeline.curves[curve];
    return this.smallest === 0 && (!this.found || (line !== undefined && this.foundLines.has(line)));
  }

  isChosen(id) {
    const { block, by, key } = this.chosen;
    return block === undefined ? this.keyOf(id, by) === key : block === id;
  }

  painter() {
    return (id) => {
      if (!(id < 0 ? this.isCurveShown(FIRST_CURVE - id) : this.isShown(id))) return this.grey;
      const isFaint = this.chosen && !this.isChosen(id);
      return this.paints.get(this.keyOf(id, this.colourBy))[(id < 0 ? 2 : 0) + (isFaint ? 1 : 0)];
    };
  }

  // -- what is in view ---------------------------------------------------------------------------------------------

  reset() {
    this.axis = new Axis(this.timeline, this.byTime);
    [this.from, this.to] = [0, this.axis.length];
    const most = this.timeline.reservedSizes ? this.most(this.timeline.reservedSizes) : 0;
    const peak = this.timeline.total[this.timeline.peak];
    // What is reserved stays in view, but does not press what is allocated to the floor.
    this.ceiling = Math.max(peak, Math.min(most, peak * 1.5), 1) * 1.03;
    [this.bottom, this.top] = [0, this.ceiling];
    this.clearFilters();
    this.renew();
  }

  clearFilters() {
    for (const name of ['smallest', 'find']) element(name).value = '';
    this.readFilters();
  }

  most(values) {
    return values.reduce((one, other) => Math.max(one, other), 0);
  }

  look(from, to) {
    const least = this.axis.time ? 2 : 4;
    const width = Math.min(Math.max(to - from, least), this.axis.length);
    this.from = Math.min(Math.max(from, 0), this.axis.length - width);
    this.to = this.from + width;
    this.draw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    this.look(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  zoomBytes(factor, at) {
    const height = Math.min((this.top - this.bottom) * factor, this.ceiling);
    const bottom = at - (at - this.bottom) * factor;
    this.bottom = Math.min(Math.max(bottom, 0), this.ceiling - height);
    this.top = this.bottom + Math.max(height, 1024);
    this.draw();
  }

  readFilters() {
    const smallest = bytesIn(element('smallest').value);
    element('smallest').setCustomValidity(Number.isNaN(smallest) ? 'such as 512 KiB' : '');
    this.smallest = smallest || 0;
    const wanted = element('find').value.trim().toLowerCase();
    this.found = null;
    if (!wanted) return;
    const { frames, files, names, stacks } = this.header;
    const matches = frames.map(([file, , name]) => `${files[file]} ${names[name]}`.toLowerCase().includes(wanted));
    this.found = stacks.map((stack) => stack.some((frame) => matches[frame]));
    this.foundLines = new Set([...this.columns.lineOfStack].filter((_, stack) => this.found[stack]));
  }

  renew() {
    this.draw();
    this.list();
    this.describe();
  }

  // -- the picture -------------------------------------------------------------------------------------------------

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.drawNow();
    });
  }

  drawNow() {
    const { canvas, timeline } = this;
    const ratio = Math.min(devicePixelRatio || 1, 2);
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
    const strip = this.stripHeight();
    this.box = { left: GUTTER.left, top: GUTTER.top, width: Math.max(wide - GUTTER.left - 6, 10) };
    this.box.height = Math.max(high - GUTTER.top - GUTTER.axis - strip, 10);
    this.ratio = ratio;
    const [width, height] = [Math.round(this.box.width * ratio), Math.round(this.box.height * ratio)];
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio) || !this.image) {
      [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(high * ratio)];
    }
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = new ImageData(width, height);
      this.ids = new Int32Array(width * height);
    }
    const pixels = new Uint32Array(this.image.data.buffer);
    this.moments = momentsOfColumns(timeline, this.axis, this.from, this.to, width);
    paint(timeline, this.moments, this.bottom, this.top, width, height, this.painter(), pixels, this.ids);
    this.drawOver();
    this.drawOverview();
    const unit = this.axis.time ? 1000 : 1;
    const digits = this.axis.time ? 3 : 0;
    for (const name of ['from', 'to']) {
      if (this.typing !== name) element(name).value = String(+(this[name] / unit).toFixed(digits));
    }
    element('unit').textContent = this.axis.time ? 'ms' : 'events';
    if (!document.body.dataset.drawn) performance.mark('drawn');
    document.body.dataset.drawn = 'yes';
  }

  stripHeight() {
    return this.timeline.phases.moments.length ? GUTTER.phases + GUTTER.batches : 0;
  }

  x(place) {
    return this.box.left + ((place - this.from) / (this.to - this.from)) * this.box.width;
  }

  y(bytes) {
    return this.box.top + this.box.height - ((bytes - this.bottom) / (this.top - this.bottom)) * this.box.height;
  }

  placeAt(x) {
    return this.from + ((x - this.box.left) / this.box.width) * (this.to - this.from);
  }

  // What lies over the blocks: axes, the reserved line, the peak, phases, and the range being dragged.
  drawOver() {
    const { box } = this;
    const ink = this.canvas.getContext('2d');
    const style = getComputedStyle(document.body);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    ink.setTransform(1, 0, 0, 1, 0, 0);
    ink.clearRect(0, 0, this.canvas.width, this.canvas.height);
    ink.putImageData(this.image, Math.round(box.left * this.ratio), Math.round(box.top * this.ratio));
    ink.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ink.font = '11.5px system-ui, sans-serif';
    this.drawAxes(ink, colour);
    const within = (top, height) => {
      ink.save();
      ink.beginPath();
      ink.rect(box.left, top, box.width, height);
      ink.clip();
    };
    within(box.top, box.height);
    this.drawReserved(ink, colour);
    ink.restore();
    within(0, this.canvas.clientHeight);
    this.drawMark(ink, this.timeline.peak, `peak ${humanBytes(this.timeline.total[this.timeline.peak])}`, 'mark');
    for (const moment of this.timeline.outOfMemory) this.drawMark(ink, moment, 'out of memory', 'mark');
    if (this.clicked !== null) this.drawMark(ink, this.clicked, '', 'accent');
    this.drawPhases(ink, colour);
    if (this.drag?.moved) {
      ink.fillStyle = colour('accent');
      ink.globalAlpha = 0.22;
      ink.fillRect(Math.min(this.drag.start, this.drag.end), box.top, Math.abs(this.drag.end - this.drag.start), box.height);
    }
    ink.restore();
  }

  drawAxes(ink, colour) {
    const { box } = this;
    ink.fillStyle = colour('soft');
    ink.strokeStyle = colour('line');
    ink.textAlign = 'right';
    ink.textBaseline = 'middle';
    const { step, values } = byteTicks(this.bottom, this.top, box.height / 55);
    for (const bytes of values) {
      const y = Math.round(this.y(bytes)) + 0.5;
      ink.globalAlpha = 0.5;
      ink.beginPath();
      ink.moveTo(box.left, y);
      ink.lineTo(box.left + box.width, y);
      ink.stroke();
      ink.globalAlpha = 1;
      ink.fillText(bytesOnAxis(bytes, step), box.left - 6, y);
    }
    ink.textAlign = 'center';
    ink.textBaseline = 'top';
    const y = box.top + box.height + this.stripHeight();
    for (const place of ticks(this.from, this.to, box.width / 110)) {
      const x = Math.min(Math.max(this.x(place), box.left + 8), box.left + box.width - 24);
      ink.fillText(this.axis.time ? humanTime(place) : humanCount(place), x, y + 6);
      ink.fillRect(Math.round(this.x(place)), y, 1, 4);
    }
    ink.strokeRect(box.left - 0.5, box.top - 0.5, box.width + 1, box.height + 1);
  }

  drawReserved(ink, colour) {
    const { reservedMoments: moments, reservedSizes: sizes } = this.timeline;
    if (!moments) return;
    ink.strokeStyle = colour('text');
    ink.lineWidth = 1.3;
    ink.setLineDash([5, 3]);
    ink.beginPath();
    for (let step = 0; step < moments.length; step++) {
      const x = this.x(this.axis.place(moments[step]));
      if (step) ink.lineTo(x, this.y(sizes[step - 1]));
      ink.lineTo(x, this.y(sizes[step]));
    }
    ink.lineTo(this.x(this.axis.length), this.y(sizes[sizes.length - 1]));
    ink.stroke();
    ink.setLineDash([]);
    ink.lineWidth = 1;
    ink.fillStyle = colour('soft');
    ink.textAlign = 'left';
    ink.textBaseline = 'bottom';
    ink.fillText('reserved', this.box.left + 6, this.y(sizes[Math.max(lastAtMost(moments, this.axis.momentAt(this.from)), 0)]) - 3);
  }

  drawMark(ink, moment, words, name) {
    const style = getComputedStyle(document.body);
    const [colour, ground] = [name, 'ground'].map((found) => style.getPropertyValue(`--${found}`));
    const x = this.x(this.axis.place(moment));
    if (x < this.box.left - 1 || x > this.box.left + this.box.width + 1) return;
    ink.beginPath();
    ink.moveTo(x, this.box.top);
    ink.lineTo(x, this.box.top + this.box.height);
    ink.strokeStyle = ground; // around it, so that it is seen on any band
    ink.lineWidth = 3.5;
    ink.stroke();
    ink.strokeStyle = ink.fillStyle = colour;
    ink.lineWidth = 1.4;
    ink.stroke();
    ink.lineWidth = 1;
    if (!words) return;
    ink.beginPath();
    ink.moveTo(x - 5, this.box.top - 7);
    ink.lineTo(x + 5, this.box.top - 7);
    ink.lineTo(x, this.box.top);
    ink.fill();
    const onLeft = x > this.box.left + this.box.width - ink.measureText(words).width - 16;
    ink.textAlign = onLeft ? 'right' : 'left';
    ink.textBaseline = 'alphabetic';
    ink.fillText(words, x + (onLeft ? -9 : 9), this.box.top - 4);
  }

  // Under the timeline: what the training did, and below it which batch.
  drawPhases(ink, colour) {
    const { phases } = this.timeline;
    const count = phases.moments.length;
    const at = (phase) => {
      if (phase >= count) return this.axis.length;
      return Math.max(this.axis.time ? phases.times[phase] : phases.moments[phase], 0);
    };
    const top = this.box.top + this.box.height + 1;
    const cell = (begin, end, y, height, [red, green, blue], words) => {
      const left = Math.max(this.x(begin), this.box.left);
      const width = Math.min(this.x(end), this.box.left + this.box.width) - left;
      if (width < 0.4) return;
      ink.fillStyle = `rgb(${red} ${green} ${blue} / 55%)`;
      ink.fillRect(left, y, Math.max(width - (width > 3 ? 1 : 0), 0.5), height);
      const fitting = words.find((text) => ink.measureText(text).width < width - 6);
      ink.fillStyle = colour('text');
      if (fitting) ink.fillText(fitting, left + 4, y + height / 2 + 0.5);
    };
    ink.textAlign = 'left';
    ink.textBaseline = 'middle';
    for (let phase = 0; phase < count; phase++) {
      const name = this.header.phases[phases.names[phase]];
      cell(at(phase), at(phase + 1), top, GUTTER.phases - 2, phaseColour(name), [name]);
    }
    for (let first = 0, next; first < count; first = next) {
      const batch = phases.batches[first];
      for (next = first + 1; next < count && phases.batches[next] === batch; ) next++;
      cell(at(first), at(next), top + GUTTER.phases, GUTTER.batches - 2, [150, 156, 166], [`batch ${batch}`, String(batch)]);
    }
  }

  drawOverview() {
    const canvas = element('overview');
    const ratio = this.ratio;
    const width = Math.round(this.box.width);
    const height = canvas.clientHeight;
    [canvas.width, canvas.height] = [Math.round(canvas.clientWidth * ratio), Math.round(height * ratio)];
    const ink = canvas.getContext('2d');
    const style = getComputedStyle(document.body);
    ink.scale(ratio, ratio);
    if (this.overviewOf !== this.axis || this.overview.length !== width) {
      this.overviewOf = this.axis;
      this.overview = momentsOfColumns(this.timeline, this.axis, 0, this.axis.length, width);
    }
    ink.fillStyle = style.getPropertyValue('--soft');
    ink.globalAlpha = 0.55;
    this.overview.forEach((moment, column) => {
      const high = (this.timeline.total[moment] / this.ceiling) * height;
      ink.fillRect(this.box.left + column, height - high, 1, high);
    });
    ink.globalAlpha = 1;
    const [begin, end] = [this.from, this.to].map((place) => this.box.left + (place / this.axis.length) * width);
    ink.fillStyle = style.getPropertyValue('--accent');
    ink.globalAlpha = 0.2;
    ink.fillRect(begin, 0, end - begin, height);
    ink.globalAlpha = 1;
    ink.strokeStyle = style.getPropertyValue('--accent');
    ink.strokeRect(begin + 0.5, 0.5, Math.max(end - begin - 1, 2), height - 1);
  }

  // -- words about blocks ------------------------------------------------------------------------------------------

  frameWords(frame) {
    const { frames, files, names } = this.header;
    const [file, line, name] = frames[frame];
    return { name: names[name], where: line ? `${files[file]}:${line}` : files[file] };
  }

  // In one line: the function, and the file with its folder's name.
  framesWords(frames) {
    if (!frames.length) return 'no stack: allocated before the recording, or by other threads';
    return frames
      .map((frame) => {
        const { name, where } = this.frameWords(frame);
        return `${name} ${where.split('/').slice(-2).join('/')}`;
      })
      .join('  ←  ');
  }

  whenWords(moment) {
    const { timeline } = this;
    const parts = [`event ${humanCount(moment)}`];
    if (timeline.time) parts.unshift(humanTime(timeline.time[moment]));
    const phase = timeline.phaseOf(moment);
    if (phase >= 0) parts.push(`batch ${timeline.phases.batches[phase]}, ${this.header.phases[timeline.phases.names[phase]]}`);
    return parts.join(', ');
  }

  wordsOf(id) {
    const { timeline, header } = this;
    const category = header.categories[this.keyOf(id, 'category')];
    if (id >= 0) {
      const kind = [category, header.tensors[timeline.tensor[id]]].filter(Boolean).join(' ');
      return { bytes: timeline.size[id], kind, frames: header.paths[timeline.path[id]] };
    }
    return { kind: category ?? '', frames: header.lines[timeline.curves[FIRST_CURVE - id]] };
  }

  // -- the list ----------------------------------------------------------------------------------------------------

  groupsAt(moment, by) {
    const { timeline } = this;
    const groups = new Map();
    const add = (id, bytes) => {
      const key = this.keyOf(id, by);
      const group = groups.get(key) ?? { key, bytes: 0, blocks: 0, summed: false, largest: id };
      group.bytes += bytes;
      if (id >= 0) group.blocks += 1;
      else group.summed = true;
      if (id >= 0 && (group.largest < 0 || timeline.size[id] > timeline.size[group.largest])) group.largest = id;
      groups.set(key, group);
    };
    for (const block of timeline.liveAt(moment)) if (this.isShown(block)) add(block, timeline.size[block]);
    const known = lastAtMost(timeline.smallerMoments, moment);
    for (let curve = 0; curve <= timeline.curves.length; curve++) {
      const bytes = timeline.smallerAt(curve, known);
      if (bytes && this.isCurveShown(curve)) add(FIRST_CURVE - curve, bytes);
    }
    return [...groups.values()].sort((one, other) => other.bytes - one.bytes);
  }

  list() {
    const { timeline, moment } = this;
    const total = timeline.total[moment];
    element('live-title').textContent = `${humanBytes(total)} allocated at ${this.whenWords(moment)}`;
    element('at-peak').setAttribute('aria-pressed', String(moment === timeline.peak));
    element('at-moment').setAttribute('aria-pressed', String(moment !== timeline.peak));
    element('at-moment').disabled = this.clicked === null;
    const rows = this.rowsBy ? this.groupRows(moment) : this.blockRows(moment);
    element('rows').replaceChildren(...rows.slice(0, this.shownRows).map((row) => this.row(row, total)));
    if (!rows.length) element('rows').replaceChildren(make('li', { className: 'hint', textContent: 'Nothing that the filters let through.' }));
    const rest = rows.slice(this.shownRows);
    element('more').hidden = !rest.length;
    element('more').textContent = `${humanCount(rest.length)} more, ${humanBytes(rest.reduce((sum, row) => sum + row.bytes, 0))}`;
    this.explainColours();
  }

  // What the colours mean, and what each comes to at the listed moment; a click chooses it.
  explainColours() {
    const { colourBy } = this;
    const groups = this.groupsAt(this.moment, colourBy).filter(({ key }) => key >= 0);
    const shown = groups.slice(0, LEGEND).map(({ key, bytes }) =>
      make(
        'button',
        { type: 'button', title: this.keys[colourBy].words(key), onclick: () => this.choose({ by: colourBy, key }) },
        this.swatch(key),
        make('span', { textContent: this.keys[colourBy].words(key) }),
        make('b', { textContent: humanBytes(bytes) }),
      ));
    if (groups.length > LEGEND) shown.push(make('span', { className: 'hint', textContent: `and ${humanCount(groups.length - LEGEND)} more` }));
    element('legend').replaceChildren(...shown);
  }

  blockRows(moment) {
    const { timeline } = this;
    const blocks = timeline.liveAt(moment).filter((block) => this.isShown(block));
    blocks.sort((one, other) => timeline.size[other] - timeline.size[one]);
    return blocks.map((block) => {
      const { kind, frames, bytes } = this.wordsOf(block);
      return { bytes, blocks: '', largest: block, words: `${kind} · ${this.framesWords(frames)}`, chosen: { block } };
    });
  }

  groupRows(moment) {
    const by = this.rowsBy;
    return this.groupsAt(moment, by).map(({ key, bytes, blocks, summed, largest }) => ({
      bytes,
      largest,
      blocks: blocks ? `${blocksInWords(blocks)}${summed ? ' +' : ''}` : 'smaller',
      words: key < 0 ? 'smaller blocks, not told apart' : this.keys[by].words(key),
      chosen: { by, key },
    }));
  }

  row({ bytes, blocks, largest, words, chosen }, total) {
    const share = (100 * bytes) / Math.max(total, 1);
    const button = make(
      'button',
      { type: 'button', title: words, onclick: () => this.choose(chosen) },
      this.swatch(this.keyOf(largest, this.colourBy)),
      make('span', { className: 'number', textContent: humanBytes(bytes) }),
      make('span', { className: 'number', textContent: `${share.toFixed(1)} %` }),
      make('span', { className: 'number blocks', textContent: blocks }),
      make('span', { className: 'where', textContent: words }),
    );
    button.style.setProperty('--share', `${share}%`);
    return make('li', {}, button);
  }

  swatch(key) {
    const swatch = make('i', { className: 'swatch' });
    swatch.style.background = `rgb(${this.colourOfKey(key).join(' ')})`;
    return swatch;
  }

  // -- what is chosen ----------------------------------------------------------------------------------------------

  choose(chosen) {
    this.chosen = chosen;
    this.draw();
    this.describe();
  }

  describe() {
    const { chosen } = this;
    const panel = element('chosen');
    if (!chosen) {
      panel.replaceChildren(element('help').content.cloneNode(true));
    } else if (chosen.block !== undefined) {
      panel.replaceChildren(...this.aboutBlock(chosen.block));
    } else {
      panel.replaceChildren(...this.aboutGroup(chosen));
    }
    panel.scrollTop = 0;
  }

  aboutBlock(block) {
    const { timeline, header } = this;
    const [born, died] = [timeline.born[block], timeline.died[block]];
    const isFreed = died <= timeline.events;
    const facts = [['exactly', `${humanCount(timeline.size[block])} B`]];
    facts.push(['allocated', born ? this.whenWords(born) : 'before the recording began']);
    facts.push(['freed', isFreed ? this.whenWords(died) : 'not while it was recorded']);
    if (timeline.time && born && isFreed) facts.push(['lived', humanTime(timeline.time[died] - timeline.time[born])]);
    if (timeline.module[block]) facts.push(['module', header.modules[timeline.module[block]]]);
    facts.push(['category', `${header.categories[timeline.category[block]]} (${header.rules[timeline.rule[block]]})`]);
    if (timeline.tensor[block]) facts.push(['tensor', header.tensors[timeline.tensor[block]]]);
    const line = { by: 'line', key: timeline.line[block] };
    const same = make('button', { type: 'button', textContent: 'All of this line', onclick: () => this.choose(line) });
    const zoom = make('button', { type: 'button', textContent: 'Zoom to its life', onclick: () => this.lookAtLife(block) });
    return [
      make('div', { className: 'size' }, this.swatch(this.keyOf(block, this.colourBy)), humanBytes(timeline.size[block])),
      this.factList(facts),
      make('div', { className: 'actions' }, same, zoom, this.letGo()),
      make('h3', { textContent: 'Asked for by' }),
      ...this.stackOf(timeline.stack[block]),
    ];
  }

  aboutGroup({ by, key }) {
    const { timeline } = this;
    const group = this.groupsAt(this.moment, by).find((found) => found.key === key);
    const blocks = [...timeline.born.keys()].filter((block) => this.keyOf(block, by) === key);
    const facts = [[this.moment === timeline.peak ? 'at the peak' : 'where clicked', blocksInWords(group?.blocks ?? 0)]];
    facts.push(['in all', `${blocksInWords(blocks.length)} drawn exactly`]);
    if (group?.summed) facts.push(['and', 'smaller blocks, hatched']);
    const actions = make('div', { className: 'actions' }, this.letGo());
    if (blocks.length) {
      const largest = blocks.reduce((one, other) => (timeline.size[other] > timeline.size[one] ? other : one));
      const words = `Its largest block, ${humanBytes(timeline.size[largest])}`;
      actions.prepend(make('button', { type: 'button', textContent: words, onclick: () => this.choose({ block: largest }) }));
    }
    return [
      make('div', { className: 'size' }, this.swatch(this.keyOf(group?.largest ?? blocks[0], this.colourBy)), humanBytes(group?.bytes ?? 0)),
      make('p', { textContent: key < 0 ? 'Smaller blocks, not told apart' : this.keys[by].words(key) }),
      this.factList(facts),
      actions,
      ...this.waysHere(blocks),
    ];
  }

  // The stacks of some blocks, those that hold most at the listed moment first.
  waysHere(blocks) {
    const { timeline, moment } = this;
    const held = new Map();
    for (const block of blocks) {
      const isLive = timeline.born[block] <= moment && moment < timeline.died[block];
      held.set(timeline.stack[block], (held.get(timeline.stack[block]) ?? 0) + (isLive ? timeline.size[block] : 0));
    }
    const stacks = [...held.keys()].sort((one, other) => held.get(other) - held.get(one));
    const [first, ...others] = stacks.filter((stack) => this.header.stacks[stack].length).slice(0, 8);
    if (first === undefined) return [];
    const rest = others.flatMap((stack) => [make('h3', { textContent: `${humanBytes(held.get(stack))} by` }), ...this.stackOf(stack)]);
    const heading = stacks.length > 1 ? `${humanBytes(held.get(first))} asked for by` : 'Asked for by';
    return [make('h3', { textContent: heading }), ...this.stackOf(first), ...rest];
  }

  letGo() {
    return make('button', { type: 'button', textContent: 'Let go', onclick: () => this.choose(null) });
  }

  factList(facts) {
    const list = make('dl');
    for (const [term, words] of facts) list.append(make('dt', { textContent: term }), make('dd', { textContent: words }));
    return list;
  }

  // The user's own frames, and all of them, torch's too, folded.
  stackOf(stack) {
    const frames = this.header.stacks[stack];
    if (!frames.length) return [make('p', { className: 'hint', textContent: 'No stack was recorded for it.' })];
    const own = this.header.paths[this.columns.pathOfStack[stack]];
    const details = make('details', {}, make('summary', { textContent: `All ${frames.length} frames, innermost first` }));
    details.addEventListener('toggle', () => details.children.length > 1 || details.append(this.frameList(frames, own)));
    return [this.frameList(own, own), details];
  }

  frameList(frames, own) {
    return make(
      'ol',
      {},
      ...frames.map((frame) => {
        const { name, where } = this.frameWords(frame);
        return make('li', { className: own.includes(frame) ? 'own' : 'other' }, name, make('span', { textContent: where }));
      }),
    );
  }

  // From its birth to its end, and as high as it is with its neighbours at both.
  lookAtLife(block) {
    const { timeline } = this;
    const [born, last] = [timeline.born[block], Math.min(timeline.died[block] - 1, timeline.events)];
    const below = [born, last].map((moment) =>
      timeline.liveAt(moment).reduce((sum, other) => (other < block ? sum + timeline.size[other] : sum), 0));
    this.bottom = Math.max(Math.min(...below) - timeline.size[block], 0);
    this.top = Math.min(Math.max(...below) + 2 * timeline.size[block], this.ceiling);
    const begin = this.axis.place(born);
    const end = timeline.died[block] > timeline.events ? this.axis.length : this.axis.place(last + 1);
    const around = Math.max((end - begin) * 0.15, this.axis.time ? 1 : 2);
    this.look(begin - around, end + around);
  }

  // -- what a person does ------------------------------------------------------------------------------------------

  listen() {
    const on = (id, event, act) => element(id).addEventListener(event, act);
    on('controls', 'submit', (event) => event.preventDefault());
    on('device', 'change', () => this.openDevice(Number(element('device').value)));
    on('key', 'change', () => { this.setColours(element('key').value); this.renew(); });
    on('axis', 'change', () => this.setAxis(element('axis').value === 'time'));
    for (const name of ['from', 'to']) {
      on(name, 'input', () => { this.typing = name; });
      on(name, 'change', () => { this.typing = null; this.readRange(); });
    }
    for (const name of ['smallest', 'find']) on(name, 'input', () => { this.readFilters(); this.renew(); });
    on('reset', 'click', () => { this.chosen = null; this.reset(); });
    on('at-peak', 'click', () => this.listAt(this.timeline.peak));
    on('at-moment', 'click', () => this.listAt(this.clicked));
    on('rows-by', 'change', () => { this.rowsBy = element('rows-by').value; this.shownRows = ROWS; this.list(); });
    on('more', 'click', () => { this.shownRows *= 4; this.list(); });
    for (const button of document.querySelectorAll('.to-peak')) button.addEventListener('click', () => this.lookAtPeak());
    on('timeline', 'wheel', (event) => this.wheel(event));
    on('timeline', 'pointerdown', (event) => this.press(event));
    on('timeline', 'pointermove', (event) => this.move(event));
    on('timeline', 'pointerup', (event) => this.release(event));
    on('timeline', 'pointercancel', () => { this.drag = null; this.drawOver(); });
    on('timeline', 'pointerleave', () => { element('tip').hidden = true; });
    on('timeline', 'dblclick', () => this.showAll());
    on('timeline', 'keydown', (event) => this.keydown(event));
    const pan = (event) => {
      if (!event.buttons) return;
      const middle = ((event.offsetX - this.box.left) / this.box.width) * this.axis.length;
      this.look(middle - (this.to - this.from) / 2, middle + (this.to - this.from) / 2);
    };
    on('overview', 'pointerdown', (event) => { element('overview').setPointerCapture(event.pointerId); pan(event); });
    on('overview', 'pointermove', pan);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.dark.addEventListener('change', () => { this.recolour(); this.draw(); });
  }

  setAxis(byTime) {
    const [begin, end] = [this.axis.momentAt(this.from), this.axis.momentAt(this.to)];
    const isAll = this.to - this.from >= this.axis.length;
    this.byTime = byTime;
    this.axis = new Axis(this.timeline, byTime);
    if (isAll) this.look(0, this.axis.length);
    else this.look(this.axis.place(begin), this.axis.place(end));
  }

  readRange() {
    const unit = this.axis.time ? 1000 : 1;
    const [from, to] = ['from', 'to'].map((name) => Number(element(name).value.replaceAll(',', '')) * unit);
    const isRange = Number.isFinite(from) && Number.isFinite(to) && from < to;
    for (const name of ['from', 'to']) element(name).setCustomValidity(isRange ? '' : 'two numbers, the second larger');
    if (isRange) this.look(from, to);
  }

  showAll() {
    [this.bottom, this.top] = [0, this.ceiling];
    this.look(0, this.axis.length);
  }

  lookAtPeak() {
    const peak = this.axis.place(this.timeline.peak);
    const half = Math.min(this.to - this.from, this.axis.length / 5) / 2;
    this.look(peak - half, peak + half);
    this.listAt(this.timeline.peak);
  }

  listAt(moment) {
    this.moment = moment;
    this.list();
    if (this.chosen?.by) this.describe();
  }

  wheel(event) {
    const factor = Math.exp((event.deltaY || event.deltaX) * 0.0016);
    if (event.shiftKey) {
      event.preventDefault();
      this.zoomBytes(factor, this.bottom + (1 - (event.offsetY - this.box.top) / this.box.height) * (this.top - this.bottom));
      return;
    }
    if (factor > 1 && this.to - this.from >= this.axis.length) return; // nothing to zoom out to: the page scrolls
    event.preventDefault();
    this.zoom(factor, this.placeAt(event.offsetX));
  }

  press(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { start: event.offsetX, end: event.offsetX, moved: false };
  }

  move(event) {
    if (this.drag) {
      this.drag.end = event.offsetX;
      this.drag.moved ||= Math.abs(this.drag.end - this.drag.start) > 4;
      if (this.drag.moved) this.drawOver();
    }
    this.showTip(event);
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (!drag) return;
    if (drag.moved) {
      const [begin, end] = [drag.start, drag.end].sort((one, other) => one - other);
      this.look(this.placeAt(Math.max(begin, this.box.left)), this.placeAt(end));
      return;
    }
    const under = this.under(event);
    if (!under) return;
    this.clicked = under.moment;
    const { id } = under;
    if (id === NOTHING) this.choose(null);
    else this.choose(id >= 0 ? { block: id } : { by: 'line', key: this.keyOf(id, 'line') });
    if (this.moment !== this.timeline.peak) this.listAt(under.moment);
    else this.list();
  }

  under(event) {
    const column = Math.floor((event.offsetX - this.box.left) * this.ratio);
    const row = Math.floor((event.offsetY - this.box.top) * this.ratio);
    if (column < 0 || row < 0 || column >= this.image.width || row >= this.image.height) return null;
    return { id: this.ids[row * this.image.width + column], moment: this.moments[column] };
  }

  showTip(event) {
    const tip = element('tip');
    const under = this.drag?.moved ? null : this.under(event);
    tip.hidden = !under;
    if (!under) return;
    const { id, moment } = under;
    const lines = [];
    if (id !== NOTHING) {
      const { bytes, kind, frames } = this.wordsOf(id);
      lines.push(make('strong', { textContent: bytes === undefined ? 'Smaller blocks' : humanBytes(bytes) }));
      if (kind && id >= 0) lines.push(make('div', { textContent: kind }));
      if (frames) lines.push(make('div', { textContent: this.framesWords(frames) }));
    }
    lines.push(make('div', { className: 'hint', textContent: `${humanBytes(this.timeline.total[moment])} in all at ${this.whenWords(moment)}` }));
    tip.replaceChildren(...lines);
    const isRight = event.offsetX > this.canvas.clientWidth / 2;
    tip.style.left = isRight ? 'auto' : `${event.offsetX + 14}px`;
    tip.style.right = isRight ? `${this.canvas.clientWidth - event.offsetX + 14}px` : 'auto';
    tip.style.top = `${Math.max(event.offsetY - 20, 0)}px`;
  }

  keydown(event) {
    const step = (this.to - this.from) * 0.2;
    const acts = {
      ArrowLeft: () => this.look(this.from - step, this.to - step),
      ArrowRight: () => this.look(this.from + step, this.to + step),
      '+': () => this.zoom(0.7),
      '=': () => this.zoom(0.7),
      '-': () => this.zoom(1 / 0.7),
      0: () => this.showAll(),
      Escape: () => this.choose(null),
    };
    if (event.ctrlKey || event.metaKey || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}

const PHASES = ['forward', 'backward', 'optimizer', 'dataloader', 'eval', 'checkpoint'];

function phaseColour(name) {
  const place = PHASES.indexOf(name);
  return place < 0 ? [150, 156, 166] : DISTINCT[place];
}

unpack(element('data').textContent)
  .then((data) => new Page(data))
  .catch((error) => {
    element('chosen').replaceChildren(make('p', { className: 'error', textContent: `This browser can not show the page: ${error.message}` }));
  });
