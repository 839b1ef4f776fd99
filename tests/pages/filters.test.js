import assert from 'node:assert/strict';
import { test } from 'node:test';

import { filtered, matcher } from '../../composer_memprof/report/html/run/script/filters.js';

const all = { chosen: '', x: '', y: '' };
const heatmap = {
  data: [
    {
      type: 'heatmap',
      x: ['rank 0', 'rank 1', 'rank 12'],
      y: ['total: peak', 'blocks.*.up'],
      z: [
        [0, 1, 2],
        [3, 4, 5],
      ],
      text: [
        ['a', 'b', 'c'],
        ['d', 'e', 'f'],
      ],
    },
  ],
  layout: {},
};

/**
 * @param {string} filter
 * @param {string[]} texts
 */
function found(filter, texts) {
  return texts.filter(matcher(filter));
}

test('a number is a whole number, a range has both its ends, other terms are parts of a text', () => {
  const ranks = ['rank 1', 'rank 8', 'rank 10', 'rank 15', 'rank 81'];
  assert.deepEqual(found('1', ranks), ['rank 1']);
  assert.deepEqual(found('8-15, 81', ranks), ['rank 8', 'rank 10', 'rank 15', 'rank 81']);
  assert.deepEqual(found('UP, head', ['blocks.*.up', 'head', 'norm']), ['blocks.*.up', 'head']);
  assert.deepEqual(found(' , ', ranks), ranks, 'nothing is asked for');
});

test('a heat map keeps the rows and columns that pass, and its own data', () => {
  const [trace] = filtered(heatmap, [], { ...all, x: '1, 12', y: 'up' }).data;
  assert.deepEqual(
    [trace.x, trace.y, trace.z, trace.text],
    [['rank 1', 'rank 12'], ['blocks.*.up'], [[4, 5]], [['e', 'f']]],
  );
  assert.equal(heatmap.data[0].x.length, 3);
  assert.deepEqual(filtered(heatmap, [], { ...all, x: '7' }).data[0].z, [[], []]);
});

test('bars keep the ranks that pass', () => {
  const bar = { type: 'bar', name: 'forward', y: ['rank 0', 'rank 1'], x: [1, 2], customdata: ['1 s', '2 s'] };
  const [trace] = filtered({ data: [bar], layout: {} }, [], { ...all, y: '1' }).data;
  assert.deepEqual([trace.y, trace.x, trace.customdata], [['rank 1'], [2], ['2 s']]);
});

test('the chosen trace stays and the others of the choices can be brought back by the legend', () => {
  const data = ['parameter', 'activation', 'reserved'].map((name) => ({ type: 'scatter', name }));
  const shown = filtered({ data, layout: {} }, ['parameter', 'activation'], { ...all, chosen: 'activation' }).data;
  assert.deepEqual(
    shown.map((trace) => trace.visible),
    ['legendonly', undefined, undefined],
  );
});
