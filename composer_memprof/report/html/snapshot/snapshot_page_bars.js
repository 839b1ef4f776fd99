'use strict';
// The segments of a device at the end of the recording as bars: what each holds, and where each piece of it lies.

const SEGMENTS = { rows: 12, row: 18, gap: 5, label: 22, largest: 16 };
const [FREE, ALLOCATED, AWAITING] = [0, 1, 2];

class SegmentBars {
  constructor(groups, own) {
    this.groups = groups;
    const [sizes, expandable, group] = [own('pieceSizes'), own('segmentExpandable'), own('segmentGroup')];
    this.segments = Array.from(own('segmentSize'), (size, index) => (
      { size, group: group[index], isExpandable: expandable[index] === 1, pieces: [] }));
    own('pieceSegment').forEach((number, piece) => {
      const segment = this.segments[number];
      segment.pieces.push({ size: sizes[own('pieceSize')[piece]], state: own('pieceState')[piece], block: own('pieceBlock')[piece], segment });
    });
    groups.forEach((one, index) => this.addLeftOut(one, index));
  }

  // The smallest segments of a pool as one bar.
  addLeftOut({ leftOut, sizesLeftOut }, group) {
    if (!leftOut) return;
    const summed = { size: sizesLeftOut.reduce((sum, size) => sum + size, 0), group, leftOut, pieces: [] };
    for (const state of [ALLOCATED, AWAITING, FREE]) {
      if (sizesLeftOut[state]) summed.pieces.push({ size: sizesLeftOut[state], state, block: -1, segment: summed });
    }
    this.segments.push(summed);
  }

  // For bars as wide as `wide` pixels, `scale` times as long in all as at first: gives how high that is.
  layOut(wide, scale) {
    const total = this.segments.reduce((sum, { size }) => sum + size, 0);
    const rows = Math.min(SEGMENTS.rows, this.segments.length) * scale;
    const perPixel = Math.max(total / rows / wide, 1e-9);
    this.labels = [];
    this.frames = []; // of segments: {x, y, width}
    this.places = []; // of pieces
    let y = 0;
    this.groups.forEach((group, index) => {
      this.labels.push({ words: group.words, y: y + SEGMENTS.label - 7 });
      y += SEGMENTS.label;
      let x = 0;
      for (const segment of this.segments) {
        if (segment.group !== index) continue;
        const width = Math.max(segment.size / perPixel, 2);
        if (x > 0 && x + width > wide + 0.5) [x, y] = [0, y + SEGMENTS.row + SEGMENTS.gap];
        [x, y] = this.layOutSegment(segment, x, y, width, wide);
      }
      y += SEGMENTS.row + SEGMENTS.gap + 4;
    });
    return y;
  }

  // A segment longer than a row goes on in the next.
  layOutSegment(segment, left, top, width, wide) {
    const perPixel = segment.size / width;
    let [x, y, toCome] = [left, top, width];
    this.frames.push({ x, y, width: Math.min(width, wide - x) });
    for (const piece of segment.pieces) {
      let rest = piece.size / perPixel;
      do {
        if (x >= wide - 0.01) {
          [x, y] = [0, y + SEGMENTS.row + SEGMENTS.gap];
          this.frames.push({ x, y, width: Math.min(toCome, wide) });
        }
        const here = Math.min(rest, wide - x);
        this.places.push({ x, y, width: here, piece });
        x += here;
        rest -= here;
        toCome -= here;
      } while (rest > 0.01);
    }
    return [Math.max(x, left + Math.min(width, wide - left)) + 1.5, y];
  }
}
