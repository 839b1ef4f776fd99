import assert from 'node:assert/strict';
import { test } from 'node:test';

import { drawn, themed } from '../../composer_memprof/report/html/run/script/figures.js';

const colors = { text: '#111', line: '#222', ground: '#fff', failed: '#b00' };
const figure = {
  data: [{ x: [1, null], line: { color: 'text' }, marker: { color: '#abc' }, name: 'text' }],
  layout: { xaxis: { title: { text: 'ms' } }, shapes: [{ line: { color: 'failed' } }] },
};

test('a color that names one of the theme becomes it, and nothing else changes', () => {
  const [trace] = drawn(figure, colors, false).data;
  assert.deepEqual(trace, { x: [1, null], line: { color: '#111' }, marker: { color: '#abc' }, name: 'text' });
  assert.equal(drawn(figure, colors, false).layout.shapes[0].line.color, '#b00');
  assert.equal(figure.data[0].line.color, 'text', 'the page keeps its own, for another theme');
});

test('the axes of a figure have the colors of the theme and their own titles', () => {
  const { layout } = drawn(figure, colors, true);
  assert.equal(layout.xaxis.gridcolor, '#222');
  assert.equal(layout.xaxis.title.text, 'ms');
  assert.equal(layout.yaxis.gridcolor, '#222');
  assert.equal(layout.font.color, '#111');
  assert.ok(layout.font.size < drawn(figure, colors, false).layout.font.size);
});

test('what is no object is copied as it is', () => {
  assert.deepEqual(themed([1, 'color', null], colors), [1, 'color', null]);
  assert.deepEqual(themed({ color: 'nobody' }, colors), { color: 'nobody' });
});
