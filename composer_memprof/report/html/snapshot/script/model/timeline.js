import { lastAtMost } from '../../../script/sorted.js';

/** @import { Recording } from '../types.d.ts' */

/**
 * The history of one device. Moment n is the state after n events; a block is allocated from moment `born` to `died`,
 * without the latter. Blocks too small to be drawn one by one are summed into curves, one for each line and category,
 * and a last one for all other lines.
 */
export class Timeline {
  /**
   * @param {Recording} recording
   * @param {number} number of the device
   */
  constructor({ header, columns }, number) {
    /** @param {string} name */
    const optional = (name) => columns[`${number}.${name}`] ?? null;
    /** @param {string} name */
    const column = (name) => optional(name) ?? new Int32Array();
    const device = header.devices[number];
    const { lineOfStack, pathOfStack } = columns;
    this.events = device.events;
    this.peak = device.peak;
    this.failure = device.failure;
    this.outOfMemory = device.outOfMemory;
    this.curves = device.curves;
    this.curveCategories = device.curveCategories;
    this.curveCount = device.curves.length + 1;
    this.born = column('born');
    this.died = column('life').map((life, block) => life + this.born[block]);
    const sizes = column('sizes');
    this.size = Float64Array.from(column('size'), (index) => sizes[index]);
    this.stack = column('stack');
    this.module = column('module');
    this.line = this.stack.map((stack) => lineOfStack[stack]);
    this.path = this.stack.map((stack) => pathOfStack[stack]);
    this.category = column('category');
    this.rule = column('rule');
    this.tensor = column('tensor');
    this.smallerMoments = column('smallerMoments');
    this.smallerSizes = column('smallerSizes');
    this.reservedMoments = optional('reservedMoments');
    this.reservedSizes = optional('reservedSizes');
    const times = optional('times');
    this.time = times && interpolate(column('timeMoments'), times, this.events);
    this.phases = {
      moments: column('phaseMoments'),
      times: column('phaseTimes'),
      batches: column('phaseBatches'),
      names: column('phaseNames'),
    };
    this.total = this.totals();
  }

  /** Bytes allocated at every moment. */
  totals() {
    const change = new Float64Array(this.events + 2);
    for (let block = 0; block < this.born.length; block++) {
      change[this.born[block]] += this.size[block];
      change[this.died[block]] -= this.size[block];
    }
    const total = new Float64Array(this.events + 1);
    let drawn = 0;
    let known = -1;
    let smaller = 0;
    for (let moment = 0; moment <= this.events; moment++) {
      drawn += change[moment];
      if (this.smallerMoments[known + 1] === moment) {
        known += 1;
        smaller = 0;
        for (let curve = 0; curve < this.curveCount; curve++) smaller += this.smallerAt(curve, known);
      }
      total[moment] = drawn + smaller;
    }
    return total;
  }

  /**
   * Bytes in a curve.
   *
   * @param {number} curve
   * @param {number} known index of one of the `smallerMoments`
   */
  smallerAt(curve, known) {
    return this.smallerSizes[curve * this.smallerMoments.length + known];
  }

  /**
   * @param {number} moment
   * @returns {[curve: number, bytes: number][]} of all curves with bytes
   */
  curvesAt(moment) {
    const known = lastAtMost(this.smallerMoments, moment);
    /** @type {[number, number][]} */
    const found = [];
    for (let curve = 0; curve < this.curveCount; curve++) {
      const bytes = this.smallerAt(curve, known);
      if (bytes) found.push([curve, bytes]);
    }
    return found;
  }

  /**
   * The blocks allocated at a moment, the oldest first.
   *
   * @param {number} moment
   */
  liveAt(moment) {
    const live = [];
    for (let block = 0; block < this.born.length && this.born[block] <= moment; block++) {
      if (moment < this.died[block]) live.push(block);
    }
    return live;
  }

  /**
   * The phase of the event that led to a moment, or -1.
   *
   * @param {number} moment
   */
  phaseOf(moment) {
    return lastAtMost(this.phases.moments, moment - 1);
  }
}

/**
 * A time for every moment from those of some.
 *
 * @param {ArrayLike<number>} moments
 * @param {ArrayLike<number>} times in microseconds
 * @param {number} events
 */
export function interpolate(moments, times, events) {
  const every = new Float64Array(events + 1);
  for (let knot = 1; knot < moments.length; knot++) {
    const [begin, end] = [moments[knot - 1], moments[knot]];
    const step = (times[knot] - times[knot - 1]) / (end - begin);
    for (let moment = begin; moment <= end; moment++) every[moment] = times[knot - 1] + (moment - begin) * step;
  }
  return every;
}
