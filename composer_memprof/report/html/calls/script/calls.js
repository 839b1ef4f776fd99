/** @import { Trace } from './types.d.ts' */

/** The calls of one thread, in the order of their start. */
export class ThreadCalls {
  /**
   * @param {Trace} trace
   * @param {number} thread
   */
  constructor({ header, columns }, thread) {
    this.tick = header.tick;
    this.start = columns.start;
    this.duration = columns.duration;
    this.depth = columns.depth;
    this.name = columns.name;
    /** @type {number[]} indices in the columns */
    this.calls = [];
    let deepest = 0;
    columns.thread.forEach((other, call) => {
      if (other !== thread) return;
      this.calls.push(call);
      deepest = Math.max(deepest, this.depth[call]);
    });
    this.rows = deepest + 1;
  }

  /** @param {number} call */
  timesOf(call) {
    const begin = this.start[call] * this.tick;
    const duration = this.duration[call] * this.tick;
    return { begin, duration, end: begin + duration };
  }

  /**
   * The call in a row at a time, or -1.
   *
   * @param {number} row
   * @param {number} time in microseconds
   * @param {number} slack how far beside it a call may be
   */
  callAt(row, time, slack) {
    let found = -1;
    for (const call of this.calls) {
      const { begin, end } = this.timesOf(call);
      if (begin > time + slack) break;
      if (this.depth[call] === row && end >= time - slack) found = call;
    }
    return found;
  }
}

/**
 * The thread with most calls.
 *
 * @param {Trace} trace
 */
export function busiestThread({ header, columns }) {
  const counts = header.threads.map(() => 0);
  for (const thread of columns.thread) counts[thread] += 1;
  return { counts, busiest: counts.indexOf(Math.max(...counts, 0)) };
}

/**
 * A color of its own for each name.
 *
 * @param {string} name
 */
export function colorOfName(name) {
  let hash = 7;
  for (let place = 0; place < name.length; place++) hash = (hash * 31 + name.charCodeAt(place)) | 0;
  return `hsl(${Math.abs(hash) % 360} 45% 62%)`;
}
