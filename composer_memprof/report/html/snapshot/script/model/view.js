import { Axis } from './axis.js';

/** @import { Timeline } from './timeline.js' */

/** Zooming in stops at so many microseconds, events, bytes. */
const MIN_TIME = 2;
const MIN_EVENTS = 4;
const MIN_BYTES = 1024;

/** The part of a timeline that is in view: from left to right, and from bottom to top in bytes. */
export class View {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    const reserved = Array.from(timeline.reservedSizes ?? []).reduce((one, other) => Math.max(one, other), 0);
    const peak = timeline.total[timeline.peak];
    // The reserved line is in view too, unless it is so high that the blocks would be flat.
    this.ceiling = Math.max(peak, Math.min(reserved, peak * 1.5), 1) * 1.03;
    this.axis = new Axis(timeline, true);
    this.from = 0;
    this.to = this.axis.length;
    this.bottom = 0;
    this.top = this.ceiling;
  }

  get width() {
    return this.to - this.from;
  }

  get isAll() {
    return this.width >= this.axis.length;
  }

  showAll() {
    this.bottom = 0;
    this.top = this.ceiling;
    this.show(0, this.axis.length);
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    const least = this.axis.time ? MIN_TIME : MIN_EVENTS;
    const width = Math.min(Math.max(to - from, least), this.axis.length);
    this.from = Math.min(Math.max(from, 0), this.axis.length - width);
    this.to = this.from + width;
  }

  /**
   * @param {number} place to be in the middle
   * @param {number} [width]
   */
  showAround(place, width = this.width) {
    this.show(place - width / 2, place + width / 2);
  }

  /** @param {number} by share of the width */
  move(by) {
    this.show(this.from + by * this.width, this.to + by * this.width);
  }

  /**
   * @param {number} factor below 1 zooms in
   * @param {number} [at] the place that stays where it is
   */
  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  /**
   * @param {number} factor below 1 zooms in
   * @param {number} at the bytes that stay where they are
   */
  zoomBytes(factor, at) {
    const height = Math.min((this.top - this.bottom) * factor, this.ceiling);
    const bottom = at - (at - this.bottom) * factor;
    this.bottom = Math.min(Math.max(bottom, 0), this.ceiling - height);
    this.top = this.bottom + Math.max(height, MIN_BYTES);
  }

  /** @param {boolean} byTime or by event */
  setAxis(byTime) {
    const { isAll } = this;
    const [begin, end] = [this.axis.momentAt(this.from), this.axis.momentAt(this.to)];
    this.axis = new Axis(this.timeline, byTime);
    if (isAll) this.show(0, this.axis.length);
    else this.show(this.axis.placeOf(begin), this.axis.placeOf(end));
  }

  /**
   * All of a block's life, and its neighbors.
   *
   * @param {number} block
   */
  showLife(block) {
    const { born, died, size, events } = this.timeline;
    const last = Math.min(died[block] - 1, events);
    const below = [born[block], last].map((moment) =>
      this.timeline.liveAt(moment).reduce((sum, other) => (other < block ? sum + size[other] : sum), 0),
    );
    this.bottom = Math.max(Math.min(...below) - size[block], 0);
    this.top = Math.min(Math.max(...below) + 2 * size[block], this.ceiling);
    const begin = this.axis.placeOf(born[block]);
    const end = died[block] > events ? this.axis.length : this.axis.placeOf(last + 1);
    const margin = Math.max((end - begin) * 0.15, this.axis.time ? 1 : 2);
    this.show(begin - margin, end + margin);
  }
}
