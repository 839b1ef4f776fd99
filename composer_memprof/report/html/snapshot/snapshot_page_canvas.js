'use strict';
// The canvases: the painted blocks, what lies over them, and the overview below.

const GUTTER = { left: 70, top: 18, axis: 22, phases: 15, batches: 15 };

const PHASES = ['forward', 'backward', 'optimizer', 'dataloader', 'eval', 'checkpoint'];

function phaseColour(name) {
  const place = PHASES.indexOf(name);
  return place < 0 ? [150, 156, 166] : DISTINCT[place];
}

class Canvases extends Keys {
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
    const top = GUTTER.top * (timeline.failure !== null || timeline.outOfMemory.length ? 2 : 1); // a second row of labels
    this.box = { left: GUTTER.left, top, width: Math.max(wide - GUTTER.left - 6, 10) };
    this.box.height = Math.max(high - top - GUTTER.axis - strip, 10);
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
    this.drawFailures(ink);
    this.drawMark(ink, this.timeline.peak, `peak ${humanBytes(this.timeline.total[this.timeline.peak])}`, 'mark');
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
    const first = this.y(sizes[Math.max(lastAtMost(moments, this.axis.momentAt(this.from)), 0)]);
    ink.fillText('reserved', this.box.left + 6, first - 3 > this.box.top + 12 ? first - 3 : first + 16);
  }

  // Where memory ran out, the last time first, and where the training failed; above the peak's label.
  drawFailures(ink) {
    const { failure, outOfMemory } = this.timeline;
    const labelled = [];
    for (const moment of new Set([failure, ...outOfMemory.toReversed()])) {
      if (moment === null) continue;
      const x = this.x(this.axis.place(moment));
      const isFree = labelled.every((other) => Math.abs(other - x) > 110);
      const words = outOfMemory.includes(moment) || this.header.outOfMemory ? 'out of memory' : 'broke off';
      this.drawMark(ink, moment, isFree ? words : '', 'failed', GUTTER.top);
      if (isFree) labelled.push(x);
    }
  }

  drawMark(ink, moment, words, name, above = 0) {
    const style = getComputedStyle(document.body);
    const [colour, ground] = [name, 'ground'].map((found) => style.getPropertyValue(`--${found}`));
    const x = this.x(this.axis.place(moment));
    if (x < this.box.left - 1 || x > this.box.left + this.box.width + 1) return;
    ink.beginPath();
    const top = this.box.top - above;
    ink.moveTo(x, top);
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
    ink.moveTo(x - 5, top - 7);
    ink.lineTo(x + 5, top - 7);
    ink.lineTo(x, top);
    ink.fill();
    const onLeft = x > this.box.left + this.box.width - ink.measureText(words).width - 16;
    ink.textAlign = onLeft ? 'right' : 'left';
    ink.textBaseline = 'alphabetic';
    ink.fillText(words, x + (onLeft ? -9 : 9), top - 4);
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
}
