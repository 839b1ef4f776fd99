import assert from 'node:assert/strict';
import { test } from 'node:test';

import { TreeCursor } from '../../composer_memprof/report/html/run/script/tree.js';

const names = ['', 'blocks', 'blocks.0', 'blocks.1', 'head', 'empty'];

function cursor() {
  return new TreeCursor({
    ids: names.map((name) => name || '(model)'),
    labels: names.map((name) => name.split('.').at(-1) || 'the model'),
    parents: ['', '(model)', 'blocks', 'blocks', '(model)', '(model)'],
    values: [10, 7, 3, 4, 3, 0],
    customdata: names.map((name, place) => [name || 'the model', `${place} MiB`]),
  });
}

test('arrows go through the parts by size, around both ends, and leave out empty ones', () => {
  const tree = cursor();
  const marked = [1, 1, 1, -1].map((step) => {
    tree.move(step);
    return tree.marked;
  });
  assert.deepEqual(marked, ['blocks', 'head', 'blocks', 'head']);
});

test('entering a part shows its path, and leaving it marks it', () => {
  const tree = cursor();
  tree.enter();
  assert.equal(tree.level, '(model)', 'nothing is marked');
  tree.move(1);
  assert.equal(tree.words(), 'blocks: 1 MiB, part 1 of 2. Enter opens it.');
  tree.enter();
  assert.deepEqual(
    tree.path().map((id) => tree.labelOf(id)),
    ['the model', 'blocks'],
  );
  tree.move(1);
  assert.equal(tree.words(), 'blocks.1: 3 MiB, part 1 of 2.');
  tree.enter();
  assert.equal(tree.level, 'blocks', 'a part without parts is not entered');
  tree.leave();
  assert.deepEqual([tree.level, tree.marked], ['(model)', 'blocks']);
  tree.leave();
  assert.equal(tree.level, '(model)');
});

test('a part that is not there is not gone to', () => {
  const tree = cursor();
  tree.go('nothing');
  assert.equal(tree.level, '(model)');
});
