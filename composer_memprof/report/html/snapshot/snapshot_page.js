'use strict';
// What is in view, and what a person does with it.

class Page extends Lists {
  constructor({ header, columns }) {
    super();
    this.header = header;
    this.columns = columns;
    this.canvas = element('timeline');
    this.dark = matchMedia('(prefers-color-scheme: dark)');
    this.tip = new Tip(element('plot'));
    this.flame = new FlameGraph(this);
    this.segmentMap = new SegmentMap(this);
    this.openDevice(0);
    this.listen();
  }

  openDevice(number) {
    this.timeline = new Timeline(this.header, this.columns, number);
    this.byTime = this.timeline.time !== null;
    this.chosen = null; // {block}, or all with the same {by, key}
    const { failure, peak } = this.timeline;
    this.listed = failure === null ? 'peak' : 'failure';
    this.moment = failure ?? peak; // whose blocks are listed
    element('at-failure').hidden = failure === null;
    this.clicked = null;
    this.shownRows = ROWS;
    element('axis').value = this.byTime ? 'time' : 'event';
    element('axis').options[0].disabled = !this.byTime;
    document.querySelectorAll('.facts').forEach((facts, index) => (facts.hidden = index !== number));
    this.clearFilters();
    this.offerKeys();
    this.segmentMap.openDevice(number);
    this.reset();
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
    this.flame.zoomed = [];
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
    on('at-failure', 'click', () => this.listAt(this.timeline.failure, 'failure'));
    on('at-peak', 'click', () => this.listAt(this.timeline.peak, 'peak'));
    on('at-moment', 'click', () => this.listAt(this.clicked, 'clicked'));
    on('rows-by', 'change', () => { this.rowsBy = element('rows-by').value; this.shownRows = ROWS; this.list(); });
    on('more', 'click', () => { this.shownRows *= 4; this.list(); });
    for (const name of ['peak', 'failure']) {
      for (const button of document.querySelectorAll(`.to-${name}`)) button.addEventListener('click', () => this.lookAt(name));
    }
    on('timeline', 'wheel', (event) => this.wheel(event));
    on('timeline', 'pointerdown', (event) => this.press(event));
    on('timeline', 'pointermove', (event) => this.move(event));
    on('timeline', 'pointerup', (event) => this.release(event));
    on('timeline', 'pointercancel', () => { this.drag = null; this.drawOver(); });
    on('timeline', 'pointerleave', () => this.tip.hide());
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
    this.dark.addEventListener('change', () => { this.recolour(); this.renew(); });
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

  lookAt(name) {
    const place = this.axis.place(this.timeline[name]);
    const half = Math.min(this.to - this.from, this.axis.length / 5) / 2;
    this.look(place - half, place + half);
    this.listAt(this.timeline[name], name);
  }

  // `name` says which moment it is: of the peak, of the failure, or where clicked.
  listAt(moment, name) {
    [this.moment, this.listed] = [moment, name];
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
    if (this.listed === 'clicked') this.listAt(under.moment, 'clicked');
    else this.list();
  }

  under(event) {
    const column = Math.floor((event.offsetX - this.box.left) * this.ratio);
    const row = Math.floor((event.offsetY - this.box.top) * this.ratio);
    if (column < 0 || row < 0 || column >= this.image.width || row >= this.image.height) return null;
    return { id: this.ids[row * this.image.width + column], moment: this.moments[column] };
  }

  showTip(event) {
    const under = this.drag?.moved ? null : this.under(event);
    if (!under) {
      this.tip.hide();
      return;
    }
    const { id, moment } = under;
    const lines = [];
    if (id !== NOTHING) {
      const { bytes } = this.wordsOf(id);
      lines.push(make('strong', { textContent: bytes === undefined ? 'Smaller blocks' : humanBytes(bytes) }), ...this.tipLines(id));
    }
    lines.push(make('div', { className: 'hint', textContent: `${humanBytes(this.timeline.total[moment])} in all at ${this.whenWords(moment)}` }));
    this.tip.show(lines, event.offsetX, event.offsetY - 20);
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

unpack(element('data').textContent)
  .then((data) => new Page(data))
  .catch((error) => {
    element('chosen').replaceChildren(make('p', { className: 'error', textContent: `This browser can not show the page: ${error.message}` }));
  });