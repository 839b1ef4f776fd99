import { byId, make } from '../../script/dom.js';
import { formatPlural, formatTime } from '../../script/format.js';
import { CHART_KEYS, listenToKeys } from '../../script/keyboard.js';
import { CallChart } from './call_chart.js';
import { ThreadCalls } from './calls.js';
import { Span } from './span.js';

/** @import { Trace } from './types.d.ts' */

/** Zooming in stops at so many ticks. */
const MIN_TICKS = 10;
/** A pointer that moves less than this clicks. */
const MIN_DRAG = 4;
const NAME_COLUMN = 3;

export class CallsPage {
  /**
   * @param {Trace} trace
   * @param {number} thread
   */
  constructor(trace, thread) {
    this.trace = trace;
    this.chart = new CallChart(byId('timeline', HTMLCanvasElement), trace.header);
    this.span = new Span(trace.header.end, trace.header.tick * MIN_TICKS);
    this.thread = new ThreadCalls(trace, thread);
    /** @type {boolean[] | null} */
    this.matches = null;
    this.frame = 0;
    this.listenToForm();
    this.listenToPointer();
    this.listenToKeyboard();
    this.redraw();
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.chart.draw(this.thread, this.span, this.matches);
      document.body.dataset.drawn = String(this.thread.calls.length);
    });
  }

  /** @param {number} thread */
  openThread(thread) {
    this.thread = new ThreadCalls(this.trace, thread);
    this.span.showAll();
    this.redraw();
  }

  /** @param {string} text part of a name, in any case */
  find(text) {
    const wanted = text.trim().toLowerCase();
    const { names } = this.trace.header;
    const matches = wanted ? names.map((name) => name.toLowerCase().includes(wanted)) : null;
    const found = matches ? this.thread.calls.filter((call) => matches[this.thread.name[call]]).length : 0;
    this.matches = matches;
    byId('found', HTMLElement).textContent = wanted ? `${formatPlural(found, 'drawn call')}` : '';
    for (const row of byId('functions', HTMLTableElement).tBodies[0].rows) {
      const name = row.cells[NAME_COLUMN].textContent ?? '';
      row.hidden = wanted !== '' && !name.toLowerCase().includes(wanted);
    }
    this.redraw();
  }

  /** @param {MouseEvent} event */
  callUnder(event) {
    const { row, time, pixel } = this.chart.placeOf(event, this.span);
    return this.thread.callAt(row, time, pixel);
  }

  /** @param {MouseEvent} event */
  showTooltip(event) {
    const call = this.callUnder(event);
    const tip = byId('tip', HTMLElement);
    tip.hidden = call < 0;
    if (call < 0) return;
    const { begin, duration } = this.thread.timesOf(call);
    const name = make('strong', { textContent: this.trace.header.names[this.thread.name[call]] });
    tip.replaceChildren(name, `${formatTime(duration)}, from ${formatTime(begin)}`);
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  }

  /** @param {MouseEvent} event */
  zoomToCall(event) {
    const call = this.callUnder(event);
    if (call < 0) return;
    const { begin, duration, end } = this.thread.timesOf(call);
    this.span.show(begin - duration / 10, end + duration / 10);
    this.redraw();
  }

  listenToForm() {
    const [thread, find] = [byId('thread', HTMLSelectElement), byId('find', HTMLInputElement)];
    thread.addEventListener('change', () => this.openThread(Number(thread.value)));
    find.addEventListener('input', () => this.find(find.value));
    byId('controls', HTMLFormElement).addEventListener('submit', (event) => event.preventDefault());
    byId('reset', HTMLButtonElement).addEventListener('click', () => {
      this.span.showAll();
      this.redraw();
    });
    addEventListener('resize', () => this.redraw());
  }

  listenToPointer() {
    const { canvas } = this.chart;
    /** @type {{x: number, moved: number} | null} */
    let drag = null;
    canvas.addEventListener('pointerdown', (event) => {
      drag = { x: event.clientX, moved: 0 };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener('pointermove', (event) => {
      if (!drag) {
        this.showTooltip(event);
        return;
      }
      const by = drag.x - event.clientX;
      drag = { x: event.clientX, moved: drag.moved + Math.abs(by) };
      this.span.move((by / this.chart.width) * this.span.width);
      this.redraw();
    });
    canvas.addEventListener('pointerup', (event) => {
      if (drag && drag.moved < MIN_DRAG) this.zoomToCall(event);
      drag = null;
    });
    canvas.addEventListener('pointercancel', () => {
      drag = null;
    });
    canvas.addEventListener('pointerleave', () => {
      byId('tip', HTMLElement).hidden = true;
    });
    canvas.addEventListener('wheel', (event) => {
      if (event.shiftKey) return; // scrolls the rows
      event.preventDefault();
      this.span.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.chart.placeOf(event, this.span).time);
      this.redraw();
    });
  }

  listenToKeyboard() {
    /** @type {(change: () => void) => () => void} */
    const redrawAfter = (change) => () => {
      change();
      this.redraw();
    };
    const { span } = this;
    const commands = {
      left: redrawAfter(() => span.move(-span.width / 5)),
      right: redrawAfter(() => span.move(span.width / 5)),
      zoomIn: redrawAfter(() => span.zoom(0.6)),
      zoomOut: redrawAfter(() => span.zoom(1 / 0.6)),
      showAll: redrawAfter(() => span.showAll()),
    };
    listenToKeys(this.chart.canvas, CHART_KEYS, () => commands);
  }
}
