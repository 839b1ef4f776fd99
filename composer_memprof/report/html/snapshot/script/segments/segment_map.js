import { cssColor, cssOfPixel, GRAY } from '../../../script/colors.js';
import { byId, context2d, make, makeButton, themeColors } from '../../../script/dom.js';
import { formatBytes, formatCount, formatPlural } from '../../../script/format.js';
import { listenToKeys, SEGMENT_KEYS } from '../../../script/keyboard.js';
import { Tooltip } from '../../../script/tooltip.js';
import { Grouping } from '../model/groupings.js';
import { factList, tooltipLines } from '../text.js';
import { ALLOCATED, AWAITING, BAR, FREE, isSplit, segmentLayout, segmentsOf } from './segment_layout.js';

/** @import { Actions, SegmentGroup } from '../types.d.ts' */
/** @import { Model } from '../model/model.js' */
/** @import { Layout, Piece, Segment } from './segment_layout.js' */
/** @import { Paint } from '../chart/paint.js' */

const MAX_SCALE = 16;
/** Browsers draw nothing on a canvas that is higher. */
const MAX_CANVAS_HEIGHT = 16000;

/** The segments at the end of the recording, each a bar of its blocks by address, by pool and stream. */
export class SegmentMap {
  /**
   * @param {() => Model} modelOf
   * @param {Actions} actions
   */
  constructor(modelOf, actions) {
    this.modelOf = modelOf;
    this.actions = actions;
    this.canvas = byId('segment-map', HTMLCanvasElement);
    this.scrolled = /** @type {HTMLElement} */ (this.canvas.parentElement);
    this.tooltip = new Tooltip(/** @type {HTMLElement} */ (this.scrolled.parentElement));
    this.larger = byId('segments-closer', HTMLButtonElement);
    this.smaller = byId('segments-farther', HTMLButtonElement);
    /** @type {SegmentGroup[]} */
    this.groups = [];
    /** @type {Segment[]} */
    this.segments = [];
    /** @type {Layout} */
    this.layout = { frames: [], places: [], labels: [], height: 0 };
    this.scale = 1;
    this.focused = -1; // index of the place that the keyboard is at
    this.listen();
  }

  /** @param {Model} model of another device */
  open({ recording, number }) {
    const { segments } = recording.header.devices[number];
    this.groups = segments?.groups ?? [];
    this.segments = segments ? segmentsOf(segments.groups, (name) => recording.columns[`${number}.${name}`]) : [];
    this.scale = 1;
    this.focused = -1;
    byId('segments', HTMLElement).hidden = !segments;
    byId('segments-words', HTMLElement).textContent = segments?.text ?? '';
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  draw() {
    const { canvas, scale } = this;
    const wide = this.scrolled.clientWidth;
    if (!wide || !this.segments.length) return;
    this.layout = segmentLayout(this.segments, this.groups, wide, scale);
    const { height } = this.layout;
    const ratio = Math.min(devicePixelRatio || 1, 2, MAX_CANVAS_HEIGHT / height);
    canvas.style.height = `${height}px`;
    [canvas.width, canvas.height] = [Math.round(wide * ratio), Math.round(height * ratio)];
    const ink = context2d(canvas);
    ink.scale(ratio, ratio);
    this.drawLabels(ink, wide);
    this.drawPieces(ink);
    this.drawFrames(ink);
    this.larger.disabled = scale >= MAX_SCALE;
    this.smaller.disabled = scale <= 1;
  }

  /**
   * @param {CanvasRenderingContext2D} ink
   * @param {number} wide
   */
  drawLabels(ink, wide) {
    ink.font = '12px system-ui, sans-serif';
    ink.fillStyle = themeColors()('text');
    for (const { text, y } of this.layout.labels) ink.fillText(text, 0, y, wide);
  }

  /** @param {CanvasRenderingContext2D} ink */
  drawPieces(ink) {
    const theme = themeColors();
    const paintOf = this.modelOf().painter();
    const hatches = { split: hatched(ink, theme('soft')), awaiting: hatched(ink, theme('text')) };
    const [raised, ground] = [theme('raised'), theme('ground')];
    for (const { x, y, width, piece } of this.layout.places) {
      const isFree = piece.state === FREE;
      ink.fillStyle = isFree ? raised : this.colorOf(piece, paintOf);
      ink.fillRect(x, y, width, BAR);
      const hatch = piece.state === AWAITING ? hatches.awaiting : isSplit(piece) ? hatches.split : null;
      if (hatch) {
        ink.fillStyle = hatch;
        ink.fillRect(x, y, width, BAR);
      }
      if (!isFree && width > 3) {
        ink.fillStyle = ground;
        ink.globalAlpha = 0.5;
        ink.fillRect(x + width - 0.7, y, 0.7, BAR);
        ink.globalAlpha = 1;
      }
    }
  }

  /** @param {CanvasRenderingContext2D} ink */
  drawFrames(ink) {
    const theme = themeColors();
    ink.strokeStyle = theme('soft');
    ink.lineWidth = 0.8;
    for (const { x, y, width } of this.layout.frames) {
      ink.globalAlpha = width > 3 ? 1 : 0.4;
      ink.strokeRect(x + 0.4, y + 0.4, Math.max(width - 0.8, 0.4), BAR - 0.8);
    }
    ink.globalAlpha = 1;
    const focused = this.layout.places[this.focused];
    if (!focused) return;
    ink.strokeStyle = theme('accent');
    ink.lineWidth = 2.5;
    ink.strokeRect(focused.x, focused.y, Math.max(focused.width, 2), BAR);
  }

  /**
   * @param {Piece} piece
   * @param {(id: number) => Paint} paintOf
   */
  colorOf({ block }, paintOf) {
    if (block >= 0) return cssOfPixel(paintOf(block)[0]);
    const { filters, selection, palette } = this.modelOf();
    return filters.isActive || selection ? cssOfPixel(palette.filtered[0]) : cssColor(GRAY);
  }

  // -- text -----------------------------------------------------------------------------------------------------------

  /** @param {Piece} piece */
  stateText(piece) {
    if (piece.segment.leftOut) return 'summed';
    if (piece.state === AWAITING) return 'freed, still used by another stream';
    if (piece.state === FREE) return isSplit(piece) ? 'free beside blocks: fragmentation' : 'free, the whole segment';
    return piece.block < 0 ? 'allocated; summed with smaller blocks above' : 'allocated';
  }

  /** @param {Segment} segment */
  segmentText({ group, leftOut, isExpandable, size }) {
    const pool = this.groups[group].text.split(':')[0];
    const one = isExpandable ? 'an expandable segment' : 'a segment';
    return `${leftOut ? `${formatCount(leftOut)} smaller segments` : one} of ${formatBytes(size)}, ${pool}`;
  }

  /** @param {Piece} piece */
  tooltipLines(piece) {
    return [
      make('strong', { textContent: formatBytes(piece.size) }),
      make('div', { textContent: this.stateText(piece) }),
      ...(piece.block >= 0 ? tooltipLines(this.modelOf(), piece.block) : []),
      make('div', { className: 'hint', textContent: `in ${this.segmentText(piece.segment)}` }),
    ];
  }

  /**
   * About a segment, in the details.
   *
   * @param {Piece} piece that was clicked
   */
  details(piece) {
    const { segment } = piece;
    /** @param {number} state */
    const sizes = (state) => segment.pieces.filter((one) => one.state === state).map(({ size }) => size);
    /** @param {number} state */
    const sum = (state) => formatBytes(sizes(state).reduce((bytes, size) => bytes + size, 0));
    /** @type {[string, string][]} */
    const facts = [
      ['this piece', `${formatBytes(piece.size)}, ${this.stateText(piece)}`],
      ['allocated', sum(ALLOCATED)],
    ];
    if (sizes(AWAITING).length) facts.push(['awaiting free', sum(AWAITING)]);
    facts.push(['free', sum(FREE)]);
    if (!segment.leftOut) {
      facts.push(['largest free', formatBytes(Math.max(0, ...sizes(FREE)))]);
      facts.push(['contains', formatPlural(segment.pieces.length - sizes(FREE).length, 'block')]);
    }
    const clear = makeButton('Clear selection', () => this.actions.select(null));
    return [
      make('div', { className: 'size', textContent: formatBytes(segment.size) }),
      make('p', { textContent: this.segmentText(segment) }),
      factList(facts),
      make('div', { className: 'actions' }, clear),
    ];
  }

  // -- the pointer and the keyboard -----------------------------------------------------------------------------------

  listen() {
    const { canvas, tooltip } = this;
    canvas.addEventListener('pointermove', (event) => {
      const place = this.layout.places[this.placeUnder(event)];
      if (place) tooltip.showAtPointer(event, this.tooltipLines(place.piece));
      else tooltip.hide();
    });
    canvas.addEventListener('pointerleave', () => tooltip.hide());
    canvas.addEventListener('click', (event) => {
      this.focused = -1;
      this.select(this.placeUnder(event));
    });
    canvas.addEventListener('blur', () => {
      tooltip.hide();
      this.focused = -1;
      this.draw();
    });
    listenToKeys(canvas, SEGMENT_KEYS, () => ({
      left: () => this.focus(this.focused - 1),
      right: () => this.focus(this.focused + 1),
      up: () => this.focus(this.nextSegment(-1)),
      down: () => this.focus(this.nextSegment(1)),
      select: () => this.select(this.focused),
      zoomIn: () => this.rescale(2),
      zoomOut: () => this.rescale(0.5),
      clear: () => this.actions.select(null),
    }));
    this.larger.addEventListener('click', () => this.rescale(2));
    this.smaller.addEventListener('click', () => this.rescale(0.5));
    new ResizeObserver(() => this.draw()).observe(this.scrolled);
  }

  /** @param {number} factor */
  rescale(factor) {
    this.scale = Math.min(Math.max(this.scale * factor, 1), MAX_SCALE);
    this.draw();
  }

  /** @param {MouseEvent} event */
  placeUnder({ offsetX, offsetY }) {
    return this.layout.places.findIndex(
      ({ x, y, width }) => y <= offsetY && offsetY < y + BAR && x <= offsetX && offsetX < x + Math.max(width, 1),
    );
  }

  /** @param {number} step */
  nextSegment(step) {
    const { places } = this.layout;
    const from = places[this.focused]?.piece.segment;
    let at = Math.max(this.focused, 0);
    while (places[at + step] && places[at].piece.segment === from) at += step;
    return at;
  }

  /** @param {number} wanted */
  focus(wanted) {
    this.focused = Math.min(Math.max(wanted, 0), this.layout.places.length - 1);
    const { x, y, piece } = this.layout.places[this.focused];
    this.draw();
    const { scrolled } = this;
    const isOutside = y < scrolled.scrollTop || y + 60 > scrolled.scrollTop + scrolled.clientHeight;
    if (isOutside) scrolled.scrollTop = y - 60;
    this.tooltip.show(this.tooltipLines(piece), x, y + BAR - scrolled.scrollTop);
  }

  /** @param {number} place */
  select(place) {
    const piece = this.layout.places[place]?.piece;
    if (!piece) this.actions.select(null);
    else if (piece.block >= 0) this.actions.select({ block: piece.block });
    else this.selectSegment(piece);
  }

  /** @param {Piece} piece */
  selectSegment(piece) {
    const blocks = new Set(piece.segment.pieces.map(({ block }) => block));
    const grouping = new Grouping('segment', {
      keys: this.modelOf().timeline.stack.map((_, block) => (blocks.has(block) ? 1 : 0)),
      label: () => this.segmentText(piece.segment),
    });
    this.actions.select({ grouping, key: 1, details: () => this.details(piece) });
  }
}

/**
 * Diagonal lines to fill with.
 *
 * @param {CanvasRenderingContext2D} ink
 * @param {string} color
 */
function hatched(ink, color) {
  const tile = make('canvas', { width: 6, height: 6 });
  const lines = context2d(tile);
  lines.strokeStyle = color;
  lines.lineWidth = 1.1;
  for (const shift of [-6, 0, 6]) {
    lines.moveTo(shift, 6);
    lines.lineTo(shift + 6, 0);
  }
  lines.stroke();
  return ink.createPattern(tile, 'repeat');
}
