import { byId, make } from '../../../script/dom.js';
import { formatBytes } from '../../../script/format.js';
import { CHART_KEYS, listenToKeys } from '../../../script/keyboard.js';
import { Tooltip } from '../../../script/tooltip.js';
import { NOTHING } from '../model/ids.js';
import { tooltipLines } from '../text.js';

/** @import { Actions } from '../types.d.ts' */
/** @import { Chart } from './chart.js' */
/** @import { Model } from '../model/model.js' */

/** A pointer that moves less than this clicks. */
const MIN_DRAG = 4;
const WHEEL_SPEED = 0.0016;
const KEY_ZOOM = 0.7;
const KEY_MOVE = 0.2;

/**
 * The pointer, the wheel and the keyboard on the timeline.
 *
 * @param {Chart} chart
 * @param {() => Model} modelOf the model that is shown now
 * @param {Actions} actions
 */
export function listenToChart(chart, modelOf, actions) {
  const { canvas } = chart;
  const tooltip = new Tooltip(byId('plot', HTMLElement));
  /** @type {{start: number, end: number, hasMoved: boolean} | null} */
  let drag = null;

  /** @param {() => void} change */
  const redrawAfter = (change) => {
    change();
    actions.redraw();
  };

  /** @param {PointerEvent} event */
  const showTooltip = ({ offsetX, offsetY }) => {
    const under = drag?.hasMoved ? null : chart.under(offsetX, offsetY);
    if (under) tooltip.show(linesUnder(modelOf(), under), offsetX, offsetY - 20);
    else tooltip.hide();
  };

  canvas.addEventListener('wheel', (event) => {
    const { view } = modelOf();
    const factor = Math.exp((event.deltaY || event.deltaX) * WHEEL_SPEED);
    if (factor > 1 && view.isAll && !event.shiftKey) return; // scrolls the page: all is in view
    event.preventDefault();
    redrawAfter(() => {
      if (event.shiftKey) view.zoomBytes(factor, chart.bytesAt(event.offsetY));
      else view.zoom(factor, chart.placeAt(event.offsetX));
    });
  });
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { start: event.offsetX, end: event.offsetX, hasMoved: false };
  });
  canvas.addEventListener('pointermove', (event) => {
    if (drag) {
      drag.end = event.offsetX;
      drag.hasMoved ||= Math.abs(drag.end - drag.start) > MIN_DRAG;
      chart.range = drag.hasMoved ? drag : null;
      if (drag.hasMoved) chart.drawOverlay();
    }
    showTooltip(event);
  });
  canvas.addEventListener('pointerup', (event) => {
    const ended = drag;
    drag = chart.range = null;
    if (ended?.hasMoved) {
      const [begin, end] = [ended.start, ended.end].sort((one, other) => one - other);
      redrawAfter(() => modelOf().view.show(chart.placeAt(Math.max(begin, chart.box.left)), chart.placeAt(end)));
    } else if (ended) {
      const under = chart.under(event.offsetX, event.offsetY);
      if (under) actions.click(under.id, under.moment);
    }
  });
  canvas.addEventListener('pointercancel', () => {
    drag = chart.range = null;
    chart.drawOverlay();
  });
  canvas.addEventListener('pointerleave', () => tooltip.hide());
  canvas.addEventListener('dblclick', () => redrawAfter(() => modelOf().view.showAll()));
  listenToKeys(canvas, CHART_KEYS, () => {
    const { view } = modelOf();
    return {
      left: () => redrawAfter(() => view.move(-KEY_MOVE)),
      right: () => redrawAfter(() => view.move(KEY_MOVE)),
      zoomIn: () => redrawAfter(() => view.zoom(KEY_ZOOM)),
      zoomOut: () => redrawAfter(() => view.zoom(1 / KEY_ZOOM)),
      showAll: () => redrawAfter(() => view.showAll()),
      clear: () => actions.select(null),
    };
  });
}

/**
 * @param {Model} model
 * @param {{id: number, moment: number}} under the pointer
 */
function linesUnder(model, { id, moment }) {
  const total = formatBytes(model.timeline.total[moment]);
  const lines = [make('div', { className: 'hint', textContent: `${total} in total at ${model.timeText(moment)}` })];
  if (id === NOTHING) return lines;
  const { bytes } = model.describe(id);
  const title = bytes === null ? 'Smaller blocks' : formatBytes(bytes);
  return [make('strong', { textContent: title }), ...tooltipLines(model, id), ...lines];
}
