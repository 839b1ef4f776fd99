import assert from 'node:assert/strict';
import { test } from 'node:test';
import { momentsOfColumns, paint } from '../../composer_memprof/report/html/snapshot/script/chart/paint.js';
import { Axis } from '../../composer_memprof/report/html/snapshot/script/model/axis.js';
import { idOfCurve, NOTHING } from '../../composer_memprof/report/html/snapshot/script/model/ids.js';
import { Timeline } from '../../composer_memprof/report/html/snapshot/script/model/timeline.js';
import { View } from '../../composer_memprof/report/html/snapshot/script/model/view.js';
import { MIB, recording } from './recording.js';

const timeline = new Timeline(recording(), 0);

test('a timeline is decoded from its columns', () => {
  assert.deepEqual([...timeline.size], [4 * MIB, 2 * MIB]);
  assert.deepEqual([...timeline.died], [3, 4]);
  assert.deepEqual([...timeline.line], [1, 2]);
  assert.deepEqual([...(timeline.time ?? [])], [0, 1000, 2000, 3000]);
});

test('the total has all blocks and the sums of smaller ones', () => {
  assert.deepEqual([...timeline.total], [0, 4 * MIB, 6 * MIB + 612, 2 * MIB + 612]);
  assert.deepEqual(timeline.liveAt(2), [0, 1]);
  assert.deepEqual(timeline.liveAt(3), [1]);
  assert.deepEqual(timeline.curvesAt(3), [
    [0, 512],
    [1, 100],
  ]);
  assert.deepEqual(timeline.curvesAt(1), []);
});

test('a moment belongs to the phase of the event before it', () => {
  assert.deepEqual(
    [0, 1, 2, 3].map((moment) => timeline.phaseOf(moment)),
    [-1, -1, 0, 0],
  );
});

test('an axis finds the moments of its places', () => {
  for (const byTime of [true, false]) {
    const axis = new Axis(timeline, byTime);
    for (let moment = 0; moment <= timeline.events; moment++) {
      assert.equal(axis.momentAt(axis.placeOf(moment)), moment);
      assert.equal(axis.firstFrom(axis.placeOf(moment)), moment);
    }
    assert.equal(axis.firstFrom(axis.length + 1), timeline.events + 1);
  }
});

test('the view never leaves the timeline', () => {
  const view = new View(timeline);
  const all = [view.from, view.to];
  view.zoom(0.5, 0);
  assert.deepEqual([view.from, view.to], [0, all[1] / 2]);
  view.move(-3);
  assert.equal(view.from, 0);
  view.move(30);
  assert.equal(view.to, all[1]);
  view.zoom(100);
  assert.deepEqual([view.from, view.to], all);
  assert.ok(view.isAll);
  view.zoomBytes(1e-12, 3 * MIB);
  assert.equal(view.top - view.bottom, 1024);
  view.zoomBytes(1e12, 0);
  assert.equal(view.bottom, 0);
  assert.equal(view.top, view.ceiling);
});

test('another axis shows the same moments', () => {
  const view = new View(timeline);
  view.show(0, 2000);
  view.setAxis(false);
  assert.deepEqual([view.from, view.to], [0, 4]); // at least four events
  view.showAll();
  view.setAxis(true);
  assert.ok(view.isAll);
});

test('no peak is lost between two columns of pixels', () => {
  const axis = new Axis(timeline, true);
  assert.deepEqual([...momentsOfColumns(timeline, axis, 0, axis.length, 1)], [2]);
  const moments = momentsOfColumns(timeline, axis, 0, axis.length, 100);
  assert.equal(moments[0], 0);
  assert.equal(moments[99], 3);
  assert.ok(moments.includes(2));
});

test('each pixel knows the block that it shows', () => {
  const [width, height] = [4, 8];
  const image = { width, height, pixels: new Uint32Array(width * height), ids: new Int32Array(width * height) };
  const view = { bottom: 0, top: 8 * MIB };
  paint(timeline, Int32Array.of(0, 1, 2, 3), view, image, (id) => [10 + id, 10 + id, false]);
  /** @param {number} column */
  const upward = (column) => Array.from({ length: height }, (_, row) => image.ids[(height - 1 - row) * width + column]);
  assert.deepEqual(upward(0), Array(8).fill(NOTHING));
  assert.deepEqual(upward(1), [0, 0, 0, 0, NOTHING, NOTHING, NOTHING, NOTHING]);
  assert.deepEqual(upward(2), [0, 0, 0, 0, 1, 1, NOTHING, NOTHING]);
  assert.deepEqual(upward(3), [1, 1, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]);
  assert.equal(image.pixels[7 * width + 1], 10);
  assert.equal(idOfCurve(0), -2);
});
