/**
 * A timeline as pixels. Each column of pixels shows one moment, the one with the largest total in its span, with the
 * blocks allocated then on top of each other, the oldest at the bottom. So no peak is lost between two pixels, and the
 * time to draw does not grow with the number of events.
 */

import { lastAtMost } from '../../../script/sorted.js';
import { idOfCurve, NOTHING } from '../model/ids.js';

/** @import { Axis } from '../model/axis.js' */
/** @import { Timeline } from '../model/timeline.js' */

/** @typedef {readonly [fill: number, edge: number, isHatched: boolean]} Paint */

/**
 * The moment that each column shows.
 *
 * @param {{total: ArrayLike<number>, events: number}} timeline
 * @param {Axis} axis
 * @param {number} from
 * @param {number} to
 * @param {number} width
 */
export function momentsOfColumns(timeline, axis, from, to, width) {
  const moments = new Int32Array(width);
  const step = (to - from) / width;
  let next = axis.firstFrom(from);
  for (let column = 0; column < width; column++) {
    const begin = next;
    next = axis.firstFrom(from + (column + 1) * step);
    let shown = Math.max(begin - 1, 0); // without an event here, the state before it lasts
    if (begin < next) {
      shown = begin;
      for (let moment = begin + 1; moment < next; moment++) {
        if (timeline.total[moment] > timeline.total[shown]) shown = moment;
      }
    }
    moments[column] = Math.min(shown, timeline.events);
  }
  return moments;
}

/**
 * Paint `pixels` (RGBA as one number), and write to `ids` what each pixel shows.
 *
 * @param {Timeline} timeline
 * @param {Int32Array} moments of the columns
 * @param {{bottom: number, top: number}} view
 * @param {{width: number, height: number, pixels: Uint32Array, ids: Int32Array}} image
 * @param {(id: number) => Paint} paintOf
 */
export function paint(timeline, moments, { bottom, top }, { width, height, pixels, ids }, paintOf) {
  ids.fill(NOTHING);
  pixels.fill(0);
  const { born, died, size } = timeline;
  const scale = height / (top - bottom);
  /** @type {number[]} */
  const live = [];
  let next = 0;
  for (let column = 0; column < width; column++) {
    const moment = moments[column];
    const before = column ? moments[column - 1] : -1;
    const soon = moments[Math.min(column + 4, width - 1)];
    let kept = 0;
    for (let place = 0; place < live.length; place++) {
      if (died[live[place]] > moment) live[kept++] = live[place];
    }
    live.length = kept;
    for (; next < born.length && born[next] <= moment; next++) {
      if (died[next] > moment) live.push(next);
    }
    let sum = 0;
    let row = height - 1; // the next to paint, upward
    /**
     * @param {number} id
     * @param {number} bytes
     * @param {boolean} isFirst true for the first column of a block
     */
    const band = (id, bytes, isFirst) => {
      sum += bytes;
      const upTo = height - Math.round((sum - bottom) * scale); // the topmost row of this band
      if (upTo > row) return;
      const end = Math.max(upTo, 0);
      const [fill, edge, isHatched] = paintOf(id);
      const hasEdge = row - end >= 3;
      for (let at = row; at >= end; at--) {
        const place = at * width + column;
        const isEdge = isHatched ? ((at + column) & 7) < 2 : hasEdge && (isFirst || at === upTo);
        pixels[place] = isEdge ? edge : fill;
        ids[place] = id;
      }
      row = end - 1;
    };
    for (let place = 0; place < live.length && row >= 0; place++) {
      const block = live[place];
      band(block, size[block], column > 0 && born[block] > before && died[block] > soon);
    }
    const known = lastAtMost(timeline.smallerMoments, moment);
    for (let curve = timeline.curveCount - 1; curve >= 0 && row >= 0; curve--) {
      band(idOfCurve(curve), timeline.smallerAt(curve, known), false);
    }
  }
}
