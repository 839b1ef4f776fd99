import assert from 'node:assert/strict';
import { test } from 'node:test';
import { blockRows, groupRows } from '../../composer_memprof/report/html/snapshot/script/list/rows.js';
import { FrameText, NO_STACK, shortSymbol } from '../../composer_memprof/report/html/snapshot/script/model/frames.js';
import { Grouping, NO_KEY } from '../../composer_memprof/report/html/snapshot/script/model/groupings.js';
import { idOfCurve } from '../../composer_memprof/report/html/snapshot/script/model/ids.js';
import { Model } from '../../composer_memprof/report/html/snapshot/script/model/model.js';
import { MIB, recording } from './recording.js';

const modelOf = () => new Model(recording(), 0, false);

test('frames are named by function, file and line', () => {
  const text = new FrameText(recording().header);
  assert.equal(text.join([1, 0]), 'forward me/train.py:7  ←  main me/train.py:3');
  assert.equal(text.join([]), NO_STACK);
  assert.equal(text.summarize([3, 2]), 'linear nn/functional.py:1 and 1 more');
  assert.equal(shortSymbol('at::native::BmmBackward0::apply(int, at::Tensor)'), 'BmmBackward0::apply');
  assert.equal(shortSymbol('main train.py:3'), 'main train.py:3');
});

test('groups hold all that is allocated, the largest first', () => {
  const model = modelOf();
  assert.deepEqual(
    model.groupings.map(({ name }) => name),
    ['category', 'line', 'call path', 'module', 'phase'],
  );
  for (const grouping of model.groupings) {
    const groups = model.groupsAt(2, grouping);
    const sum = groups.reduce((bytes, group) => bytes + group.bytes, 0);
    assert.equal(sum, model.timeline.total[2], grouping.name);
    assert.deepEqual(
      groups,
      groups.toSorted((one, other) => other.bytes - one.bytes),
    );
  }
  const [first, second] = model.groupsAt(2, model.groupings[1]);
  assert.deepEqual([first.key, first.bytes, first.hasSmaller], [1, 4 * MIB, false]);
  assert.deepEqual([second.key, second.bytes, second.blocks, second.hasSmaller], [2, 2 * MIB + 512, 1, true]);
});

test('a grouping that tells nothing apart is not offered', () => {
  const bare = recording({}, { modules: [''] });
  bare.columns['0.module'] = Int32Array.of(0, 0);
  const names = new Model(bare, 0, false).groupings.map(({ name }) => name);
  assert.deepEqual(names, ['category', 'line', 'call path', 'phase']);
});

test('lines give the colors where most has no known category', () => {
  assert.equal(modelOf().palette.grouping.name, 'category');
  assert.equal(new Model(recording({}, { unknownCategory: 0 }), 0, false).palette.grouping.name, 'line');
});

test('filters leave out small blocks, and those without the text', () => {
  const { filters } = modelOf();
  assert.ok(filters.showsBlock(0) && filters.showsBlock(1) && filters.showsCurve(0));
  assert.ok(filters.setSmallest('3 MiB'));
  assert.ok(filters.showsBlock(0) && !filters.showsBlock(1) && !filters.showsCurve(0));
  assert.ok(!filters.setSmallest('many') && !filters.isActive);
  filters.setText('FORWARD');
  assert.ok(filters.isActive && filters.showsBlock(0) && !filters.showsBlock(1) && !filters.showsCurve(0));
  filters.setText('main');
  assert.ok(filters.showsBlock(1) && filters.showsCurve(0) && !filters.showsCurve(1));
  filters.clear();
  assert.ok(!filters.isActive && filters.showsCurve(1));
});

test('a block, a group or a piece is selected', () => {
  const model = modelOf();
  assert.ok(!model.isSelected(0));
  model.selection = { block: 0 };
  assert.ok(model.isSelected(0) && !model.isSelected(1));
  model.selection = model.lineOf(idOfCurve(0));
  assert.ok(!model.isSelected(0) && model.isSelected(1) && model.isSelected(idOfCurve(0)));
  const piece = new Grouping('piece', { keys: [1, 0], label: () => 'a piece' });
  model.selection = { grouping: piece, key: 1 };
  assert.ok(model.isSelected(0) && !model.isSelected(1) && !model.isSelected(idOfCurve(0)));
});

test('what is not selected is painted fainter, what is filtered out is gray', () => {
  const model = modelOf();
  const plain = model.painter()(0);
  model.selection = { block: 1 };
  assert.notDeepEqual(model.painter()(0), plain);
  assert.deepEqual(model.painter()(1), model.palette.paints.get(1)?.[0]);
  model.filters.setSmallest('3 MiB');
  assert.equal(model.painter()(1), model.palette.filtered);
  assert.equal(model.painter()(idOfCurve(1)), model.palette.filtered);
});

test('dark pages keep the colors of the groups', () => {
  const model = modelOf();
  const before = [...model.palette.colors];
  model.setDark(true);
  assert.deepEqual([...model.palette.colors], before);
});

test('the list has a row for each block, or for each group', () => {
  const model = modelOf();
  assert.deepEqual(
    blockRows(model).map(({ bytes, blocks, label }) => [bytes, blocks, label.split(' me/')[0]]),
    [
      [4 * MIB, null, 'parameter weight · forward'],
      [2 * MIB, null, 'unknown · main'],
    ],
  );
  const rows = groupRows(model, model.groupings[1]);
  assert.deepEqual(
    rows.map(({ blocks, label, within }) => [blocks, label, within]),
    [
      [1, 'forward me/train.py:7', ''],
      [1, 'main me/train.py:3', '(in torch)'],
      [0, 'smaller blocks of all groups', ''],
    ],
  );
  assert.deepEqual(rows[2].selection, { grouping: model.groupings[1], key: NO_KEY });
});

test('the page begins at the failure if there is one', () => {
  assert.deepEqual([modelOf().moment, modelOf().momentText], [2, 'at the peak']);
  const failed = new Model(recording({ failure: 3 }), 0, false);
  assert.deepEqual([failed.moment, failed.momentText], [3, 'at the failure']);
  assert.equal(failed.timeText(3), '3 ms, event 3, batch 7, forward');
});
