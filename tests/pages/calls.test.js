import assert from 'node:assert/strict';
import { test } from 'node:test';
import { busiestThread, colorOfName, ThreadCalls } from '../../composer_memprof/report/html/calls/script/calls.js';
import { Span } from '../../composer_memprof/report/html/calls/script/span.js';

const trace = {
  header: { names: ['outer', 'inner'], threads: ['main', 'other'], tick: 0.5, end: 50, marks: [] },
  columns: {
    name: Int32Array.of(0, 1, 1, 0),
    start: Int32Array.of(0, 10, 60, 0),
    duration: Int32Array.of(100, 20, 20, 4),
    thread: Int32Array.of(0, 0, 0, 1),
    depth: Int32Array.of(0, 1, 1, 0),
  },
};

test('a thread has its own calls, and the row of each', () => {
  const calls = new ThreadCalls(trace, 0);
  assert.deepEqual([calls.calls, calls.rows], [[0, 1, 2], 2]);
  assert.deepEqual(calls.timesOf(1), { begin: 5, duration: 10, end: 15 });
  assert.deepEqual([calls.callAt(0, 20, 0), calls.callAt(1, 20, 0), calls.callAt(1, 31, 0)], [0, -1, 2]);
  assert.equal(calls.callAt(1, 16, 2), 1);
  assert.deepEqual(busiestThread(trace), { counts: [3, 1], busiest: 0 });
});

test('the span in view stays within the calls', () => {
  const span = new Span(50, 5);
  span.zoom(0.001, 20);
  assert.equal(span.width, 5);
  span.move(-100);
  assert.equal(span.from, 0);
  span.move(100);
  assert.equal(span.to, 50);
  span.zoom(1000);
  assert.deepEqual([span.from, span.to], [0, 50]);
});

test('a name has the same color in every page', () => {
  assert.equal(colorOfName('forward'), colorOfName('forward'));
  assert.match(colorOfName('x'), /^hsl\(\d+ 45% 62%\)$/);
});
