import { byId, context2d, themeColors } from '../../../script/dom.js';
import { momentsOfColumns } from './paint.js';

/** @import { Actions } from '../types.d.ts' */
/** @import { Axis } from '../model/axis.js' */
/** @import { Chart } from './chart.js' */
/** @import { Model } from '../model/model.js' */

/** The whole timeline below the chart, with a frame around the part in view. */
export class Overview {
  /**
   * @param {() => Model} modelOf
   * @param {Chart} chart that it lies below
   * @param {Actions} actions
   */
  constructor(modelOf, chart, actions) {
    this.chart = chart;
    this.canvas = byId('overview', HTMLCanvasElement);
    this.moments = new Int32Array();
    /** @type {Axis | null} of the moments */
    this.axis = null;
    /** @param {PointerEvent} event */
    const pan = (event) => {
      if (!event.buttons) return;
      const { view } = modelOf();
      view.showAround(((event.offsetX - chart.box.left) / chart.box.width) * view.axis.length);
      actions.redraw();
    };
    this.canvas.addEventListener('pointerdown', (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      pan(event);
    });
    this.canvas.addEventListener('pointermove', pan);
  }

  /** @param {Model} model */
  draw({ timeline, view }) {
    const { canvas } = this;
    const { box, ratio } = this.chart;
    const width = Math.round(box.width);
    const height = canvas.clientHeight;
    [canvas.width, canvas.height] = [Math.round(canvas.clientWidth * ratio), Math.round(height * ratio)];
    const ink = context2d(canvas);
    const theme = themeColors();
    ink.scale(ratio, ratio);
    if (this.axis !== view.axis || this.moments.length !== width) {
      this.axis = view.axis;
      this.moments = momentsOfColumns(timeline, view.axis, 0, view.axis.length, width);
    }
    ink.fillStyle = theme('soft');
    ink.globalAlpha = 0.55;
    this.moments.forEach((moment, column) => {
      const high = (timeline.total[moment] / view.ceiling) * height;
      ink.fillRect(box.left + column, height - high, 1, high);
    });
    const [begin, end] = [view.from, view.to].map((place) => box.left + (place / view.axis.length) * width);
    ink.fillStyle = theme('accent');
    ink.globalAlpha = 0.2;
    ink.fillRect(begin, 0, end - begin, height);
    ink.globalAlpha = 1;
    ink.strokeStyle = theme('accent');
    ink.strokeRect(begin + 0.5, 0.5, Math.max(end - begin - 1, 2), height - 1);
  }
}
