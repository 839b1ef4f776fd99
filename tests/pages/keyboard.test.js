import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CHART_KEYS, commandOf, FLAME_KEYS, SEGMENT_KEYS } from '../../composer_memprof/report/html/script/keyboard.js';

const plain = { ctrlKey: false, metaKey: false, altKey: false };

test('keys have commands', () => {
  assert.equal(commandOf({ ...plain, key: '+' }, CHART_KEYS), 'zoomIn');
  assert.equal(commandOf({ ...plain, key: '=' }, CHART_KEYS), 'zoomIn');
  assert.equal(commandOf({ ...plain, key: '0' }, CHART_KEYS), 'showAll');
  assert.equal(commandOf({ ...plain, key: 'Enter' }, FLAME_KEYS), 'select');
  assert.equal(commandOf({ ...plain, key: 'ArrowDown' }, SEGMENT_KEYS), 'down');
});

test('Escape clears the selection everywhere', () => {
  for (const keys of [CHART_KEYS, FLAME_KEYS, SEGMENT_KEYS])
    assert.equal(commandOf({ ...plain, key: 'Escape' }, keys), 'clear');
});

test('keys with a modifier, and all others, are left to the browser', () => {
  for (const modifier of ['ctrlKey', 'metaKey', 'altKey']) {
    assert.equal(commandOf({ ...plain, key: '+', [modifier]: true }, CHART_KEYS), undefined);
  }
  for (const key of ['a', 'Tab', 'toString', '__proto__'])
    assert.equal(commandOf({ ...plain, key }, CHART_KEYS), undefined);
});
