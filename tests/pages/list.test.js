import assert from 'node:assert/strict';
import { test } from 'node:test';
import { COLUMNS } from '../../composer_memprof/report/html/snapshot/script/list/list.js';
import { blockRows, groupRows } from '../../composer_memprof/report/html/snapshot/script/list/rows.js';
import { Model } from '../../composer_memprof/report/html/snapshot/script/model/model.js';
import { recording } from './recording.js';

const [, size, share, blocks, where] = COLUMNS;

test('columns have heads that fit what is listed', () => {
  const model = new Model(recording(), 0, false);
  const heads = () => COLUMNS.map(({ head }) => head(model));
  assert.deepEqual(heads(), ['', 'Size', 'Share', 'Blocks', 'Line']);
  model.listedBy = null;
  assert.deepEqual(heads(), ['', 'Size', 'Share', '', 'Category and call path']);
});

test('a row has the cells of its group', () => {
  const model = new Model(recording(), 0, false);
  const rows = groupRows(model, model.groupings[1]);
  const text = rows.map((row) => [size, share, blocks].map(({ cell }) => cell(row, model).join('')));
  assert.deepEqual(text, [
    ['4.0 MiB', '66.7 %', '1'],
    ['2.0 MiB', '33.3 %', '1 +'],
    ['100 B', '0.0 %', 'smaller'],
  ]);
  assert.deepEqual(where.cell(rows[0], model), ['forward me/train.py:7']);
  assert.deepEqual(blocks.cell(blockRows(model)[0], model), ['']);
});
