/** What data.py writes into the page, and what the parts of the page share. Not part of the page. */

import type { Column } from '../../script/packed.js';
import type { CallNode } from './call_tree.js';
import type { Grouping } from './groupings.js';

/** [file, line, function], the first and last as indices. */
export type FrameRow = [number, number, number];

export interface SegmentGroup {
  text: string;
  /** Segments that are drawn as one. */
  leftOut: number;
  /** Their bytes by state. */
  leftOutBytes: number[];
}

export interface DeviceHeader {
  name: string;
  events: number;
  peak: number;
  failure: number | null;
  outOfMemory: number[];
  /** The line of each curve of smaller blocks. */
  curves: number[];
  curveCategories: number[];
  segments: { text: string; groups: SegmentGroup[] } | null;
}

export interface Header {
  files: string[];
  names: string[];
  ownFiles: number[];
  frames: FrameRow[];
  /** Lists of frames, innermost first. */
  stacks: number[][];
  paths: number[][];
  pathsWithin: string[];
  lines: number[][];
  linesWithin: string[];
  modules: string[];
  tensors: string[];
  phases: string[];
  /** Of each phase, as `#rrggbb`. */
  phaseColors: string[];
  categories: { label: string; color: string }[];
  unknownCategory: number;
  rules: string[];
  outOfMemory: boolean;
  devices: DeviceHeader[];
}

export interface Recording {
  header: Header;
  columns: Record<string, Column>;
}

/** One block, or all blocks with a key. */
export type Selection = BlockSelection | GroupSelection;

export interface BlockSelection {
  block: number;
}

export interface GroupSelection {
  grouping: Grouping;
  key: number;
  /** What the details show instead of a group's. */
  details?: () => Node[];
  actions?: () => HTMLElement[];
  /** The piece of the flame graph that was clicked. */
  node?: CallNode;
}

export interface Group {
  key: number;
  bytes: number;
  /** Blocks that are drawn one by one. */
  blocks: number;
  /** True if smaller blocks are part of it. */
  hasSmaller: boolean;
  /** Id of the largest block. */
  largest: number;
}

export type MomentName = 'failure' | 'peak' | 'clicked';

/** What a part of the page asks the page to do. */
export interface Actions {
  select(selection: Selection | null): void;
  listAt(moment: number, name: MomentName): void;
  showLife(block: number): void;
  click(id: number, moment: number): void;
  redraw(): void;
}
