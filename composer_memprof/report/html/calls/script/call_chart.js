import { context2d } from '../../script/dom.js';
import { formatTime } from '../../script/format.js';
import { colorOfName } from './calls.js';

/** @import { Span } from './span.js' */
/** @import { ThreadCalls } from './calls.js' */
/** @import { Header } from './types.d.ts' */

const ROW_HEIGHT = 17;
const TOP = 22;
const LABEL_COLOR = '#14181f';
const MIN_LABEL_WIDTH = 40;
const LETTER_WIDTH = 5.8;
const MIN_LETTERS = 4;
const TICK_DISTANCE = 90;
const TICK_WIDTH = 45;
const MARK_DISTANCE = 60;

/** The calls of a thread over time, each in the row below the call that made it. */
export class CallChart {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Header} header
   */
  constructor(canvas, header) {
    this.canvas = canvas;
    this.header = header;
    this.ink = context2d(canvas);
    this.colors = header.names.map(colorOfName);
    this.width = 1;
  }

  /**
   * @param {ThreadCalls} thread
   * @param {Span} span
   * @param {boolean[] | null} matches of each name; calls of the others are faint
   */
  draw(thread, span, matches) {
    const { canvas, ink } = this;
    const ratio = devicePixelRatio || 1;
    const height = TOP + thread.rows * ROW_HEIGHT + 4;
    this.width = canvas.parentElement?.clientWidth || 1;
    [canvas.width, canvas.height] = [this.width * ratio, height * ratio];
    canvas.style.height = `${height}px`;
    ink.scale(ratio, ratio);
    ink.font = '11px system-ui, sans-serif';
    ink.textBaseline = 'middle';
    ink.fillStyle = getComputedStyle(document.body).color;
    this.drawTicks(span);
    this.drawMarks(span, thread.rows);
    const drawnTo = new Float64Array(thread.rows).fill(-1); // calls within one pixel are drawn once
    for (const call of thread.calls) {
      const { begin, end } = thread.timesOf(call);
      const [left, right] = [this.x(begin, span), this.x(end, span)];
      const row = thread.depth[call];
      if (left > this.width) break;
      if (right < 0 || right < drawnTo[row]) continue;
      const width = Math.max(right - left, 0.6);
      drawnTo[row] = left + width;
      const name = thread.name[call];
      ink.globalAlpha = matches && !matches[name] ? 0.15 : 1;
      ink.fillStyle = this.colors[name];
      ink.fillRect(left, TOP + row * ROW_HEIGHT, width > 3 ? width - 0.7 : width, ROW_HEIGHT - 1);
      if (width > MIN_LABEL_WIDTH) this.drawName(this.header.names[name], Math.max(left, 0) + 3, right - 3, row);
    }
    ink.globalAlpha = 1;
  }

  /**
   * @param {string} name
   * @param {number} left
   * @param {number} right
   * @param {number} row
   */
  drawName(name, left, right, row) {
    const width = Math.min(right, this.width - 3) - left;
    const letters = Math.floor(width / LETTER_WIDTH);
    if (letters < MIN_LETTERS) return;
    const text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
    this.ink.fillStyle = LABEL_COLOR;
    this.ink.fillText(text, left, TOP + row * ROW_HEIGHT + ROW_HEIGHT / 2, width);
  }

  /** @param {Span} span */
  drawTicks(span) {
    const step = 10 ** Math.floor(Math.log10(span.width / 5 || 1));
    let last = Number.NEGATIVE_INFINITY;
    for (let time = Math.ceil(span.from / step) * step; time <= span.to; time += step) {
      const left = this.x(time, span);
      if (left - last < TICK_DISTANCE || left > this.width - TICK_WIDTH) continue;
      last = left;
      this.ink.fillText(formatTime(time), left + 2, 6);
    }
  }

  /**
   * @param {Span} span
   * @param {number} rows
   */
  drawMarks(span, rows) {
    let last = Number.NEGATIVE_INFINITY;
    for (const [time, name] of this.header.marks) {
      const left = this.x(time, span);
      if (left < 0 || left > this.width) continue;
      this.ink.fillRect(left, 0, 1, TOP + rows * ROW_HEIGHT);
      if (left - last > MARK_DISTANCE) this.ink.fillText(name.slice(0, 40), left + 3, 16);
      last = left;
    }
  }

  /**
   * @param {number} time
   * @param {Span} span
   */
  x(time, span) {
    return ((time - span.from) / span.width) * this.width;
  }

  /**
   * @param {MouseEvent} event
   * @param {Span} span
   */
  placeOf({ clientX, clientY }, span) {
    const { left, top, width } = this.canvas.getBoundingClientRect();
    return {
      row: Math.floor((clientY - top - TOP) / ROW_HEIGHT),
      time: span.from + ((clientX - left) / width) * span.width,
      pixel: span.width / this.width,
    };
  }
}
