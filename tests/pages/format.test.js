import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  colorFromHex,
  colorOfRank,
  cssOfPixel,
  mixColors,
  pixelOf,
} from '../../composer_memprof/report/html/script/colors.js';
import {
  formatBytes,
  formatByteTick,
  formatPlural,
  formatTime,
  parseBytes,
} from '../../composer_memprof/report/html/script/format.js';
import { byteTicks, ticks } from '../../composer_memprof/report/html/script/ticks.js';

const MIB = 1 << 20;

test('sizes have one digit and a binary unit', () => {
  const sizes = [0, 1023, 1024, 1.5 * MIB, 80 * 1024 * MIB, 5000 * 1024 ** 4];
  assert.deepEqual(sizes.map(formatBytes), ['0 B', '1023 B', '1.0 KiB', '1.5 MiB', '80.0 GiB', '5000.0 TiB']);
});

test('a size is read in the forms that people write', () => {
  for (const text of ['512 KiB', '512k', '0.5M', '524288', '524288 b', ' 512kib '])
    assert.equal(parseBytes(text), MIB / 2);
  assert.equal(parseBytes('  '), 0);
  assert.ok(Number.isNaN(parseBytes('many')));
});

test('what is formatted is read back', () => {
  for (const size of [0, 700, 1024, 1.5 * MIB, 2048 * MIB]) assert.equal(parseBytes(formatBytes(size)), size);
});

test('times have the unit that suits them', () => {
  assert.deepEqual([0, 999.96, 1500, 9_999_000, 12_345_678].map(formatTime), [
    '0 µs',
    '1000 µs',
    '1.5 ms',
    '9999 ms',
    '12.346 s',
  ]);
});

test('one is singular', () => {
  assert.deepEqual(
    [0, 1, 2000].map((count) => formatPlural(count, 'block')),
    ['0 blocks', '1 block', '2,000 blocks'],
  );
});

test('labels of an axis differ from each other', () => {
  const { step, values } = byteTicks(1.02 * 1024 * MIB, 1.03 * 1024 * MIB, 6);
  const labels = values.map((bytes) => formatByteTick(bytes, step));
  assert.ok(labels.length >= 3);
  assert.equal(new Set(labels).size, labels.length);
  assert.deepEqual(ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
});

test('a pixel has its color back', () => {
  assert.equal(cssOfPixel(pixelOf(colorFromHex('#4878a8'))), 'rgb(72 120 168 / 1)');
  assert.deepEqual(mixColors([0, 0, 0], [100, 200, 50], 0.5), [50, 100, 25]);
  const ranks = Array.from({ length: 100 }, (_, rank) => colorOfRank(rank));
  assert.ok(ranks.flat().every((channel) => channel >= 0 && channel <= 255));
  assert.equal(new Set(ranks.map(String)).size, 100);
});
