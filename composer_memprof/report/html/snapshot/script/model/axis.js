import { firstAtLeast, lastAtMost } from '../../../script/sorted.js';

/**
 * Places of moments from left to right: microseconds, or event numbers.
 *
 * @typedef {{events: number, time: ArrayLike<number> | null}} Times
 */
export class Axis {
  /**
   * @param {Times} timeline
   * @param {boolean} byTime
   */
  constructor(timeline, byTime) {
    this.time = byTime ? timeline.time : null;
    this.events = timeline.events;
    this.length = this.time ? (this.time[this.events] || 1) * 1.005 : this.events + 1;
  }

  /** @param {number} moment */
  placeOf(moment) {
    return this.time ? this.time[Math.min(moment, this.events)] : moment;
  }

  /**
   * The first moment at or after a place; one past the last where there is none.
   *
   * @param {number} place
   */
  firstFrom(place) {
    if (this.time) return firstAtLeast(this.time, place);
    return Math.min(Math.max(Math.ceil(place), 0), this.events + 1);
  }

  /** @param {number} place */
  momentAt(place) {
    if (this.time) return Math.max(lastAtMost(this.time, place), 0);
    return Math.min(Math.max(Math.floor(place), 0), this.events);
  }
}
