import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  ALLOCATED,
  FREE,
  isSplit,
  segmentLayout,
  segmentsOf,
} from '../../composer_memprof/report/html/snapshot/script/segments/segment_layout.js';

/** @type {Record<string, Int32Array>} */
const columns = {
  segmentSize: Int32Array.of(20, 16),
  segmentGroup: Int32Array.of(0, 0),
  segmentExpandable: Int32Array.of(0, 1),
  pieceSegment: Int32Array.of(0, 0, 0, 1),
  pieceSizes: Int32Array.of(4, 6, 10, 16),
  pieceSize: Int32Array.of(0, 1, 2, 3),
  pieceState: Int32Array.of(ALLOCATED, FREE, ALLOCATED, FREE),
  pieceBlock: Int32Array.of(0, -1, 1, -1),
};
const groups = [{ text: 'Large: 2 segments', leftOut: 3, leftOutBytes: [1, 2, 0] }];
const segments = segmentsOf(groups, (name) => columns[name]);

test('segments have their pieces, and those left out are one', () => {
  assert.deepEqual(
    segments.map(({ size, leftOut, pieces }) => [size, leftOut, pieces.length]),
    [
      [20, 0, 3],
      [16, 0, 1],
      [3, 3, 2],
    ],
  );
  assert.deepEqual(segments[0].pieces.map(isSplit), [false, true, false]);
  assert.deepEqual(segments[1].pieces.map(isSplit), [false]);
  assert.deepEqual(segments[2].pieces.map(isSplit), [false, false]);
});

for (const scale of [1, 2, 16]) {
  test(`bars have the width of their bytes and stay in their row, at scale ${scale}`, () => {
    const wide = 200;
    const { places, height } = segmentLayout(segments, groups, wide, scale);
    const pixels = places.reduce((sum, { width }) => sum + width, 0);
    assert.ok(Math.abs(pixels - wide * Math.min(12, segments.length) * scale) < 1);
    assert.ok(places.every(({ x, width, y }) => x >= 0 && x + width <= wide + 0.5 && y < height));
    for (const { pieces, size } of segments) {
      for (const piece of pieces) {
        const own = places.filter((place) => place.piece === piece).reduce((sum, { width }) => sum + width, 0);
        assert.ok(Math.abs(own / pixels - piece.size / 39) < 0.01, `${piece.size} of ${size}`);
      }
    }
  });
}
