import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  callTree,
  stepsOf,
  sumsByStack,
} from '../../composer_memprof/report/html/snapshot/script/flame_graph/call_tree.js';
import { flameLayout, levelsOf } from '../../composer_memprof/report/html/snapshot/script/flame_graph/flame_layout.js';
import { Model } from '../../composer_memprof/report/html/snapshot/script/model/model.js';
import { MIB, recording } from './recording.js';

/** @param {boolean} [isUnfolded] */
function tree(isUnfolded = false) {
  const model = new Model(recording(), 0, false);
  return callTree(sumsByStack(model, model.groupings[0]), (stack) => stepsOf(model.recording, stack, isUnfolded));
}

test('frames of libraries between own frames are one step', () => {
  const steps = stepsOf(recording(), 1, false);
  assert.deepEqual(
    steps.map(({ kind, frames }) => [kind, frames]),
    [
      ['own', [0]],
      ['folded', [2, 2]],
      ['own', [1]],
      ['folded', [2]],
    ],
  );
  assert.equal(stepsOf(recording(), 1, true).length, 5);
  assert.deepEqual(stepsOf(recording(), 0, false), [{ kind: 'none', key: 'none', frames: [] }]);
  assert.deepEqual(stepsOf(recording(), null, false)[0].kind, 'smaller');
});

test('a node has the bytes of its children', () => {
  const root = tree();
  assert.equal(root.bytes, 6 * MIB + 612);
  const [main, smaller] = root.largestFirst;
  assert.deepEqual([main.kind, main.bytes, main.blocks, main.stacks], ['own', 6 * MIB, 2, [1, 2]]);
  assert.deepEqual([smaller.kind, smaller.bytes, smaller.blocks], ['smaller', 612, 0]);
  assert.deepEqual(
    [...main.shares],
    [
      [0, 4 * MIB],
      [1, 2 * MIB],
    ],
  );
  assert.deepEqual(main.largestFirst[0].keys, ['0', 'folded 2 2']);
});

test('a flame graph is as wide as its bytes, level by level', () => {
  const root = tree();
  const { cells, leftOut } = flameLayout(root, 0.01, 100);
  assert.equal(leftOut, 1); // the smaller blocks
  const main = cells.find(({ node }) => node.key === '0');
  assert.ok(main && Math.abs(main.width - (6 * MIB) / root.bytes) < 1e-9);
  for (const { node, left, width } of cells) {
    const children = cells.filter((cell) => cell.node.parent === node);
    assert.ok(children.every((cell) => cell.left >= left && cell.left + cell.width <= left + width + 1e-9));
  }
  assert.deepEqual(
    levelsOf(cells).map((level) => level.length),
    [1, 1, 2, 1, 1],
  );
});

test('a flame graph that is zoomed in keeps the nodes above', () => {
  const [main] = tree().largestFirst;
  const [first] = main.largestFirst;
  const { cells } = flameLayout(first, 0.01, 100);
  assert.deepEqual(
    cells.slice(0, 3).map(({ node, width }) => [node.level, width]),
    [
      [0, 1],
      [1, 1],
      [2, 1],
    ],
  );
  assert.equal(flameLayout(tree(), 0, 3).cells.length, 3);
});
