import { byId, context2d, themeColors } from '../../../script/dom.js';
import { drawAxes, drawDrag, drawMarks, drawPhases, drawReserved, PHASE_ROWS } from './chart_overlay.js';
import { momentsOfColumns, paint } from './paint.js';

/** @import { Model } from '../model/model.js' */

const MARGIN = { left: 70, right: 6, top: 18, axis: 22 };
const MAX_PIXEL_RATIO = 2;

/** The canvas with the timeline: the painted blocks, and the lines and labels over them. */
export class Chart {
  constructor() {
    this.canvas = byId('timeline', HTMLCanvasElement);
    this.ratio = 1;
    this.box = { left: MARGIN.left, top: MARGIN.top, width: 10, height: 10 };
    this.image = new ImageData(1, 1);
    this.ids = new Int32Array(1);
    this.moments = new Int32Array(1);
    /** @type {{start: number, end: number} | null} x of a range that the pointer marks */
    this.range = null;
    /** @type {Model | null} */
    this.model = null;
  }

  /** @param {Model} model */
  draw(model) {
    this.model = model;
    this.layOut(model);
    const { timeline, view } = model;
    const { width, height } = this.image;
    this.moments = momentsOfColumns(timeline, view.axis, view.from, view.to, width);
    const pixels = new Uint32Array(this.image.data.buffer);
    paint(timeline, this.moments, view, { width, height, pixels, ids: this.ids }, model.painter());
    this.drawOverlay();
  }

  /** @param {Model} model */
  layOut({ timeline }) {
    const { canvas } = this;
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
    const ratio = Math.min(devicePixelRatio || 1, MAX_PIXEL_RATIO);
    const labelRows = timeline.failure !== null || timeline.outOfMemory.length ? 2 : 1;
    const top = MARGIN.top * labelRows;
    const below = MARGIN.axis + (timeline.phases.moments.length ? PHASE_ROWS : 0);
    const width = Math.max(wide - MARGIN.left - MARGIN.right, 10);
    this.box = { left: MARGIN.left, top, width, height: Math.max(high - top - below, 10) };
    this.ratio = ratio;
    const [canvasWidth, canvasHeight] = [Math.round(wide * ratio), Math.round(high * ratio)];
    if (canvas.width !== canvasWidth || canvas.height !== canvasHeight) {
      [canvas.width, canvas.height] = [canvasWidth, canvasHeight];
    }
    const [imageWidth, imageHeight] = [Math.round(width * ratio), Math.round(this.box.height * ratio)];
    if (this.image.width !== imageWidth || this.image.height !== imageHeight) {
      this.image = new ImageData(imageWidth, imageHeight);
      this.ids = new Int32Array(imageWidth * imageHeight);
    }
  }

  /** Draws again what lies over the blocks. */
  drawOverlay() {
    const { box, canvas, ratio, model } = this;
    if (!model) return;
    const ink = context2d(canvas);
    const colors = themeColors();
    ink.setTransform(1, 0, 0, 1, 0, 0);
    ink.clearRect(0, 0, canvas.width, canvas.height);
    ink.putImageData(this.image, Math.round(box.left * ratio), Math.round(box.top * ratio));
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.font = '11.5px system-ui, sans-serif';
    drawAxes(ink, this, model, colors);
    this.clipped(ink, box.top, box.height, () => drawReserved(ink, this, model, colors));
    this.clipped(ink, 0, canvas.clientHeight, () => {
      drawMarks(ink, this, model, colors);
      drawPhases(ink, this, model, colors);
      if (this.range) drawDrag(ink, this, this.range, colors);
    });
  }

  /**
   * @param {CanvasRenderingContext2D} ink
   * @param {number} top
   * @param {number} height
   * @param {() => void} draw
   */
  clipped(ink, top, height, draw) {
    ink.save();
    ink.beginPath();
    ink.rect(this.box.left, top, this.box.width, height);
    ink.clip();
    draw();
    ink.restore();
  }

  // -- from the view to pixels and back -------------------------------------------------------------------------------

  /** @param {number} place */
  x(place) {
    const { from = 0, width = 1 } = this.model?.view ?? {};
    return this.box.left + ((place - from) / width) * this.box.width;
  }

  /** @param {number} bytes */
  y(bytes) {
    const { bottom = 0, top = 1 } = this.model?.view ?? {};
    return this.box.top + this.box.height - ((bytes - bottom) / (top - bottom)) * this.box.height;
  }

  /** @param {number} x */
  placeAt(x) {
    const { from = 0, width = 1 } = this.model?.view ?? {};
    return from + ((x - this.box.left) / this.box.width) * width;
  }

  /** @param {number} y */
  bytesAt(y) {
    const { bottom = 0, top = 1 } = this.model?.view ?? {};
    return bottom + ((this.box.top + this.box.height - y) / this.box.height) * (top - bottom);
  }

  /**
   * What is drawn at a point of the canvas.
   *
   * @param {number} x
   * @param {number} y
   */
  under(x, y) {
    const { width, height } = this.image;
    const column = Math.floor((x - this.box.left) * this.ratio);
    const row = Math.floor((y - this.box.top) * this.ratio);
    if (column < 0 || row < 0 || column >= width || row >= height) return null;
    return { id: this.ids[row * width + column], moment: this.moments[column] };
  }
}
