/** What call_timeline.py writes into the page. Not part of the page. */

import type { Column } from '../../script/packed.js';

export interface Header {
  names: string[];
  threads: string[];
  /** Microseconds of one unit of the columns `start` and `duration`. */
  tick: number;
  /** End of the last call, in microseconds. */
  end: number;
  /** [microseconds, name] */
  marks: [number, string][];
}

export interface Trace {
  header: Header;
  columns: Record<'name' | 'start' | 'duration' | 'thread' | 'depth', Column>;
}
