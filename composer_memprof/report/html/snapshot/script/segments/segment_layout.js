/** The segments of a device as bars in rows: the pieces of each, and their places. */

/** @import { Column } from '../../../script/packed.js' */
/** @import { SegmentGroup } from '../types.d.ts' */

export const FREE = 0;
export const ALLOCATED = 1;
export const AWAITING = 2; // freed, but another stream still uses it
export const BAR = 18; // pixels high
const GAP = 5;
const LABEL = 22;
const ROWS = 12;

/**
 * @typedef {object} Segment
 * @property {number} size
 * @property {number} group
 * @property {boolean} isExpandable
 * @property {number} leftOut segments that this one stands for, or 0
 * @property {Piece[]} pieces by address
 */

/**
 * @typedef {object} Piece
 * @property {number} size
 * @property {number} state
 * @property {number} block of the timeline; -1 if free, or not drawn there
 * @property {Segment} segment
 */

/** @typedef {{x: number, y: number, width: number}} Frame */
/** @typedef {{frames: Frame[], places: (Frame & {piece: Piece})[], labels: {text: string, y: number}[], height: number}} Layout */

/**
 * @param {SegmentGroup[]} groups
 * @param {(name: string) => Column} column
 * @returns {Segment[]}
 */
export function segmentsOf(groups, column) {
  const [expandable, group, sizes] = [column('segmentExpandable'), column('segmentGroup'), column('pieceSizes')];
  /** @type {Segment[]} */
  const segments = Array.from(column('segmentSize'), (size, index) => ({
    size,
    group: group[index],
    isExpandable: expandable[index] === 1,
    leftOut: 0,
    pieces: [],
  }));
  const [size, state, block] = [column('pieceSize'), column('pieceState'), column('pieceBlock')];
  column('pieceSegment').forEach((number, piece) => {
    const segment = segments[number];
    segment.pieces.push({ size: sizes[size[piece]], state: state[piece], block: block[piece], segment });
  });
  return [...segments, ...groups.flatMap(leftOutSegment)];
}

/**
 * The segments of a group that are too small to be drawn, as one.
 *
 * @param {SegmentGroup} group
 * @param {number} index
 * @returns {Segment[]}
 */
function leftOutSegment({ leftOut, leftOutBytes }, index) {
  if (!leftOut) return [];
  const size = leftOutBytes.reduce((sum, bytes) => sum + bytes, 0);
  /** @type {Segment} */
  const segment = { size, group: index, isExpandable: false, leftOut, pieces: [] };
  for (const state of [ALLOCATED, AWAITING, FREE]) {
    if (leftOutBytes[state]) segment.pieces.push({ size: leftOutBytes[state], state, block: -1, segment });
  }
  return [segment];
}

/**
 * True if a free piece lies beside blocks, so that it cannot be returned to the device.
 *
 * @param {Piece} piece
 */
export function isSplit({ state, segment }) {
  return state === FREE && segment.pieces.length > 1 && !segment.leftOut;
}

/**
 * Bars in rows of a width, group after group. A segment longer than a row continues in the next one.
 *
 * @param {Segment[]} segments
 * @param {SegmentGroup[]} groups
 * @param {number} wide in pixels
 * @param {number} scale 1 takes about a dozen rows, 2 twice as many
 * @returns {Layout}
 */
export function segmentLayout(segments, groups, wide, scale) {
  const total = segments.reduce((sum, { size }) => sum + size, 0);
  const rows = Math.min(ROWS, segments.length) * scale;
  const bytesPerPixel = Math.max(total / rows / wide, 1e-9);
  /** @type {Layout} */
  const layout = { frames: [], places: [], labels: [], height: 0 };
  let y = 0;
  groups.forEach(({ text }, index) => {
    layout.labels.push({ text, y: y + LABEL - 7 });
    y += LABEL;
    let x = 0;
    for (const segment of segments) {
      if (segment.group !== index) continue;
      const width = Math.max(segment.size / bytesPerPixel, 2);
      if (x > 0 && x + width > wide + 0.5) [x, y] = [0, y + BAR + GAP];
      [x, y] = placeSegment(layout, segment, { x, y, width }, wide);
    }
    y += BAR + GAP + 4;
  });
  layout.height = y;
  return layout;
}

/**
 * @param {Layout} layout
 * @param {Segment} segment
 * @param {Frame} frame
 * @param {number} wide
 * @returns {[x: number, y: number]} where the next segment may begin
 */
function placeSegment({ frames, places }, segment, frame, wide) {
  const bytesPerPixel = segment.size / frame.width;
  let { x, y, width: rest } = frame;
  frames.push({ x, y, width: Math.min(rest, wide - x) });
  for (const piece of segment.pieces) {
    let left = piece.size / bytesPerPixel;
    do {
      if (x >= wide - 0.01) {
        [x, y] = [0, y + BAR + GAP];
        frames.push({ x, y, width: Math.min(rest, wide) });
      }
      const width = Math.min(left, wide - x);
      places.push({ x, y, width, piece });
      x += width;
      left -= width;
      rest -= width;
    } while (left > 0.01);
  }
  return [Math.max(x, frame.x + Math.min(frame.width, wide - frame.x)) + 1.5, y];
}
