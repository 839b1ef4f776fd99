// Draws the calls of one thread: time to the right, each call in the row below the one that made it.

const ROW = 17;
const TOP = 22;
const element = (id) => document.getElementById(id);

class CallTimeline {
  constructor(header, columns) {
    this.header = header;
    this.columns = columns;
    this.canvas = element('timeline');
    this.context = this.canvas.getContext('2d');
    this.colours = header.names.map((name) => {
      let hash = 7;
      for (let place = 0; place < name.length; place++) hash = (hash * 31 + name.charCodeAt(place)) | 0;
      return `hsl(${Math.abs(hash) % 360} 45% 62%)`;
    });
    this.matches = null;
    this.listen();
    this.show(Number(element('thread').value));
  }

  show(thread) {
    const { thread: threads, depth, start, duration } = this.columns;
    this.calls = [];
    let deepest = 0;
    for (let call = 0; call < threads.length; call++) {
      if (threads[call] !== thread) continue;
      this.calls.push(call);
      deepest = Math.max(deepest, depth[call]);
    }
    this.rows = deepest + 1;
    this.start = start;
    this.duration = duration;
    this.fit(0, this.header.end);
  }

  fit(from, to) {
    const least = this.header.tick * 10;
    const middle = (from + to) / 2;
    const half = Math.max(to - from, least) / 2;
    this.from = Math.max(middle - half, 0);
    this.to = Math.min(middle + half, Math.max(this.header.end, least));
    this.later();
  }

  zoom(factor, at) {
    this.fit(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(by) {
    const shift = Math.min(Math.max(by, -this.from), this.header.end - this.to);
    this.fit(this.from + shift, this.to + shift);
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    const height = TOP + this.rows * ROW + 4;
    this.canvas.width = this.width * ratio;
    this.canvas.height = height * ratio;
    this.canvas.style.height = `${height}px`;
    const context = this.context;
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.body);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    this.drawMarks(style.color);
    const { name, depth } = this.columns;
    const drawnTo = new Float64Array(this.rows).fill(-1); // what lies within one pixel is drawn once
    for (const call of this.calls) {
      const left = this.place(this.start[call] * this.header.tick);
      const right = this.place((this.start[call] + this.duration[call]) * this.header.tick);
      if (right < 0) continue;
      if (left > this.width) break;
      const row = depth[call];
      if (right < drawnTo[row]) continue;
      const width = Math.max(right - left, 0.6);
      drawnTo[row] = left + Math.max(width, 0.5);
      context.globalAlpha = this.matches && !this.matches[name[call]] ? 0.15 : 1;
      context.fillStyle = this.colours[name[call]];
      context.fillRect(left, TOP + row * ROW, width > 3 ? width - 0.7 : width, ROW - 1);
      if (width > 40) this.write(this.header.names[name[call]], Math.max(left, 0) + 3, Math.min(right, this.width) - 3, row);
    }
    context.globalAlpha = 1;
    document.body.dataset.drawn = String(this.calls.length);
  }

  write(text, left, right, row) {
    const fits = Math.floor((right - left) / 5.8);
    if (fits < 4) return;
    this.context.fillStyle = '#14181f';
    const shown = text.length > fits ? `${text.slice(0, fits - 1)}…` : text;
    this.context.fillText(shown, left, TOP + row * ROW + ROW / 2, right - left);
  }

  drawMarks(colour) {
    const context = this.context;
    context.fillStyle = colour;
    const span = this.to - this.from;
    const step = 10 ** Math.floor(Math.log10(span / 5 || 1));
    for (let time = Math.ceil(this.from / step) * step, drawn = -100; time <= this.to; time += step) {
      const left = this.place(time);
      if (left - drawn < 90) continue;
      drawn = left;
      context.fillText(humanTime(time), left + 2, 6);
    }
    let drawn = -100;
    for (const [time, name] of this.header.marks) {
      const left = this.place(time);
      if (left < 0 || left > this.width) continue;
      context.fillRect(left, 0, 1, TOP + this.rows * ROW);
      if (left - drawn > 60) context.fillText(name.slice(0, 40), left + 3, 16);
      drawn = left;
    }
  }

  place(time) {
    return ((time - this.from) / (this.to - this.from)) * this.width;
  }

  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.from + ((event.clientX - box.left) / box.width) * (this.to - this.from);
  }

  callAt(event) {
    const row = Math.floor((event.clientY - this.canvas.getBoundingClientRect().top - TOP) / ROW);
    const tick = this.header.tick;
    const time = this.timeAt(event) / tick;
    const slack = (this.to - this.from) / this.width / tick; // a pixel
    let found = -1;
    for (const call of this.calls) {
      if (this.start[call] > time + slack) break;
      if (this.columns.depth[call] === row && this.start[call] + this.duration[call] >= time - slack) found = call;
    }
    return found;
  }

  tell(event) {
    const call = this.callAt(event);
    const tip = element('tip');
    tip.hidden = call < 0;
    if (call < 0) return;
    const title = document.createElement('strong');
    title.textContent = this.header.names[this.columns.name[call]];
    const tick = this.header.tick;
    tip.replaceChildren(title, `${humanTime(this.duration[call] * tick)}, from ${humanTime(this.start[call] * tick)}`);
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8)}px`;
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = wanted ? this.header.names.map((name) => name.toLowerCase().includes(wanted)) : null;
    const found = this.matches ? this.calls.filter((call) => this.matches[this.columns.name[call]]) : [];
    element('found').textContent = wanted ? `${humanCount(found.length)} drawn calls` : '';
    for (const row of element('functions').tBodies[0].rows) {
      row.hidden = Boolean(wanted) && !row.cells[3].textContent.toLowerCase().includes(wanted);
    }
    this.later();
  }

  press(key) {
    const span = this.to - this.from;
    const middle = (this.from + this.to) / 2;
    const actions = {
      ArrowLeft: () => this.move(-span / 5),
      ArrowRight: () => this.move(span / 5),
      '+': () => this.zoom(0.6, middle),
      '-': () => this.zoom(1 / 0.6, middle),
      0: () => this.fit(0, this.header.end),
    };
    if (!actions[key]) return false;
    actions[key]();
    return true;
  }

  listen() {
    let held = null;
    let moved = 0;
    this.canvas.addEventListener('pointerdown', (event) => {
      held = event.clientX;
      moved = 0;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (held === null) return this.tell(event);
      const by = held - event.clientX;
      moved += Math.abs(by);
      held = event.clientX;
      return this.move((by / this.width) * (this.to - this.from));
    });
    this.canvas.addEventListener('pointerup', (event) => {
      held = null;
      const call = moved < 4 ? this.callAt(event) : -1;
      if (call < 0) return;
      const [begin, length] = [this.start[call] * this.header.tick, this.duration[call] * this.header.tick];
      this.fit(begin - length / 10, begin + length * 1.1);
    });
    this.canvas.addEventListener('pointerleave', () => {
      element('tip').hidden = true;
    });
    this.canvas.addEventListener('wheel', (event) => {
      if (event.shiftKey) return; // scrolls the rows
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event));
    });
    this.canvas.addEventListener('keydown', (event) => {
      if (this.press(event.key)) event.preventDefault();
    });
    element('thread').addEventListener('change', (event) => this.show(Number(event.target.value)));
    element('find').addEventListener('input', (event) => this.find(event.target.value));
    element('reset').addEventListener('click', () => this.fit(0, this.header.end));
    element('controls').addEventListener('submit', (event) => event.preventDefault());
    window.addEventListener('resize', () => this.later());
  }
}

async function open() {
  const { header, columns } = await unpack(element('data').textContent);
  const counts = header.threads.map(() => 0);
  for (const thread of columns.thread) counts[thread] += 1;
  const busiest = counts.indexOf(Math.max(...counts, 0));
  header.threads.forEach((name, number) => {
    if (counts[number]) element('thread').add(new Option(name, number, number === busiest, number === busiest));
  });
  if (columns.thread.length) new CallTimeline(header, columns);
  else document.body.dataset.drawn = '0';
}

open();
