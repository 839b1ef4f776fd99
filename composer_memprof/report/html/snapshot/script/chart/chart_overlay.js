/** The lines and labels over the timeline. */

import { colorFromHex, cssColor, GRAY } from '../../../script/colors.js';
import { formatBytes, formatByteTick, formatCount, formatTime } from '../../../script/format.js';
import { lastAtMost } from '../../../script/sorted.js';
import { byteTicks, ticks } from '../../../script/ticks.js';

/** @import { Color } from '../../../script/colors.js' */
/** @import { Chart } from './chart.js' */
/** @import { Model } from '../model/model.js' */

/** @typedef {CanvasRenderingContext2D} Ink */
/** @typedef {(name: string) => string} Theme */

const PHASE_ROW = 15;
const BATCH_ROW = 15;
/** Height of the phases and batches below the timeline. */
export const PHASE_ROWS = PHASE_ROW + BATCH_ROW;
const LABEL_ROW = 18;
/** Labels of failures closer than this would lie on each other. */
const LABEL_DISTANCE = 110;

/** @type {(ink: Ink, chart: Chart, model: Model, theme: Theme) => void} */
export function drawAxes(ink, chart, { view, timeline }, theme) {
  const { box } = chart;
  ink.fillStyle = theme('soft');
  ink.strokeStyle = theme('line');
  ink.textAlign = 'right';
  ink.textBaseline = 'middle';
  const { step, values } = byteTicks(view.bottom, view.top, box.height / 55);
  for (const bytes of values) {
    const y = Math.round(chart.y(bytes)) + 0.5;
    ink.globalAlpha = 0.5;
    ink.beginPath();
    ink.moveTo(box.left, y);
    ink.lineTo(box.left + box.width, y);
    ink.stroke();
    ink.globalAlpha = 1;
    ink.fillText(formatByteTick(bytes, step), box.left - 6, y);
  }
  ink.textAlign = 'center';
  ink.textBaseline = 'top';
  const y = box.top + box.height + (timeline.phases.moments.length ? PHASE_ROWS : 0);
  for (const place of ticks(view.from, view.to, box.width / 110)) {
    const x = Math.min(Math.max(chart.x(place), box.left + 8), box.left + box.width - 24);
    ink.fillText(view.axis.time ? formatTime(place) : formatCount(place), x, y + 6);
    ink.fillRect(Math.round(chart.x(place)), y, 1, 4);
  }
  ink.strokeRect(box.left - 0.5, box.top - 0.5, box.width + 1, box.height + 1);
}

/** @type {(ink: Ink, chart: Chart, model: Model, theme: Theme) => void} */
export function drawReserved(ink, chart, { view, timeline }, theme) {
  const { reservedMoments: moments, reservedSizes: sizes } = timeline;
  if (!moments || !sizes) return;
  ink.strokeStyle = theme('text');
  ink.lineWidth = 1.3;
  ink.setLineDash([5, 3]);
  ink.beginPath();
  for (let step = 0; step < moments.length; step++) {
    const x = chart.x(view.axis.placeOf(moments[step]));
    if (step) ink.lineTo(x, chart.y(sizes[step - 1]));
    ink.lineTo(x, chart.y(sizes[step]));
  }
  ink.lineTo(chart.x(view.axis.length), chart.y(sizes[sizes.length - 1]));
  ink.stroke();
  ink.setLineDash([]);
  ink.fillStyle = theme('text');
  ink.strokeStyle = theme('ground'); // an outline, so that the label is seen on any band
  ink.lineWidth = 3;
  ink.textAlign = 'left';
  ink.textBaseline = 'bottom';
  const first = chart.y(sizes[Math.max(lastAtMost(moments, view.axis.momentAt(view.from)), 0)]);
  const y = first - 3 > chart.box.top + 12 ? first - 3 : first + 16;
  ink.strokeText('reserved', chart.box.left + 6, y);
  ink.fillText('reserved', chart.box.left + 6, y);
  ink.lineWidth = 1;
}

/**
 * The failure, the moments out of memory (the last one first), the peak, and the moment that was clicked.
 *
 * @type {(ink: Ink, chart: Chart, model: Model, theme: Theme) => void}
 */
export function drawMarks(ink, chart, { timeline, header, clicked }, theme) {
  const { failure, outOfMemory, peak, total } = timeline;
  /** @type {number[]} */
  const labeled = [];
  for (const moment of new Set([failure, ...outOfMemory.toReversed()])) {
    if (moment === null) continue;
    const x = xOf(chart, moment);
    const hasRoom = labeled.every((other) => Math.abs(other - x) > LABEL_DISTANCE);
    const label = outOfMemory.includes(moment) || header.outOfMemory ? 'out of memory' : 'training failed';
    drawMark(ink, chart, moment, hasRoom ? label : '', theme('failed'), theme('ground'), LABEL_ROW);
    if (hasRoom) labeled.push(x);
  }
  drawMark(ink, chart, peak, `peak ${formatBytes(total[peak])}`, theme('mark'), theme('ground'));
  if (clicked !== null) drawMark(ink, chart, clicked, '', theme('accent'), theme('ground'));
}

/** @type {(chart: Chart, moment: number) => number} */
function xOf(chart, moment) {
  return chart.x(chart.model?.view.axis.placeOf(moment) ?? 0);
}

/**
 * A vertical line with a label.
 *
 * @type {(ink: Ink, chart: Chart, moment: number, label: string, color: string, ground: string, above?: number) => void}
 */
function drawMark(ink, chart, moment, label, color, ground, above = 0) {
  const { box } = chart;
  const x = xOf(chart, moment);
  if (x < box.left - 1 || x > box.left + box.width + 1) return;
  const top = box.top - above;
  ink.beginPath();
  ink.moveTo(x, top);
  ink.lineTo(x, box.top + box.height);
  ink.strokeStyle = ground; // an outline, so that the line is seen on any band
  ink.lineWidth = 3.5;
  ink.stroke();
  ink.strokeStyle = ink.fillStyle = color;
  ink.lineWidth = 1.4;
  ink.stroke();
  ink.lineWidth = 1;
  if (!label) return;
  ink.beginPath();
  ink.moveTo(x - 5, top - 7);
  ink.lineTo(x + 5, top - 7);
  ink.lineTo(x, top);
  ink.fill();
  const isOnLeft = x > box.left + box.width - ink.measureText(label).width - 16;
  ink.textAlign = isOnLeft ? 'right' : 'left';
  ink.textBaseline = 'alphabetic';
  ink.fillText(label, x + (isOnLeft ? -9 : 9), top - 4);
}

/**
 * Below the timeline: a row of phases, and a row of batches.
 *
 * @type {(ink: Ink, chart: Chart, model: Model, theme: Theme) => void}
 */
export function drawPhases(ink, chart, { timeline, view, header }, theme) {
  const { moments, times, batches, names } = timeline.phases;
  const { box } = chart;
  const count = moments.length;
  /** @param {number} phase */
  const begin = (phase) => {
    if (phase >= count) return view.axis.length;
    return Math.max(view.axis.time ? times[phase] : moments[phase], 0);
  };
  /** @type {(first: number, next: number, y: number, height: number, color: Color, labels: string[]) => void} */
  const cell = (first, next, y, height, color, labels) => {
    const left = Math.max(chart.x(begin(first)), box.left);
    const width = Math.min(chart.x(begin(next)), box.left + box.width) - left;
    if (width < 0.4) return;
    ink.fillStyle = cssColor(color, 0.55);
    ink.fillRect(left, y, Math.max(width - (width > 3 ? 1 : 0), 0.5), height);
    const fitting = labels.find((text) => ink.measureText(text).width < width - 6);
    ink.fillStyle = theme('text');
    if (fitting) ink.fillText(fitting, left + 4, y + height / 2 + 0.5);
  };
  const top = box.top + box.height + 1;
  ink.textAlign = 'left';
  ink.textBaseline = 'middle';
  for (let phase = 0; phase < count; phase++) {
    const color = colorFromHex(header.phaseColors[names[phase]]);
    cell(phase, phase + 1, top, PHASE_ROW - 2, color, [header.phases[names[phase]]]);
  }
  for (let first = 0, next = 0; first < count; first = next) {
    const batch = batches[first];
    for (next = first + 1; next < count && batches[next] === batch; ) next++;
    cell(first, next, top + PHASE_ROW, BATCH_ROW - 2, GRAY, [`batch ${batch}`, String(batch)]);
  }
}

/** @type {(ink: Ink, chart: Chart, range: {start: number, end: number}, theme: Theme) => void} */
export function drawDrag(ink, { box }, { start, end }, theme) {
  ink.fillStyle = theme('accent');
  ink.globalAlpha = 0.22;
  ink.fillRect(Math.min(start, end), box.top, Math.abs(end - start), box.height);
}
