import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { unpack } from '../../composer_memprof/report/html/script/packed.js';
import { firstAtLeast, lastAtMost } from '../../composer_memprof/report/html/script/sorted.js';

/**
 * As packed.py writes it.
 *
 * @param {object} header
 * @param {[name: string, kind: 'i4' | 'f8', values: number[]][]} columns
 */
function packed(header, columns) {
  const listed = columns.map(([name, kind, values]) => [name, kind, values.length]);
  const head = Buffer.from(JSON.stringify({ ...header, columns: listed }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(head.length);
  const parts = columns.map(([, kind, values]) => {
    const steps = values.map((value, row) => value - (row ? values[row - 1] : 0));
    const raw = Buffer.from((kind === 'i4' ? Int32Array.from(steps) : Float64Array.from(steps)).buffer);
    const width = kind === 'i4' ? 4 : 8;
    const planes = Buffer.alloc(raw.length);
    raw.forEach((byte, at) => {
      planes[(at % width) * values.length + Math.floor(at / width)] = byte;
    });
    return planes;
  });
  return gzipSync(Buffer.concat([length, head, ...parts])).toString('base64');
}

test('columns come back as they were', async () => {
  const numbers = [3, -7, 0, 2 ** 31 - 1, 5];
  const large = [2 ** 40, 1, 2 ** 52, 0.5];
  const text = packed({ title: 'µ </script>' }, [
    ['numbers', 'i4', numbers],
    ['none', 'i4', []],
    ['large', 'f8', large],
  ]);
  const { header, columns } = await unpack(text);
  assert.equal(header.title, 'µ </script>');
  assert.deepEqual([...columns.numbers], numbers);
  assert.deepEqual([...columns.large], large);
  assert.ok(columns.numbers instanceof Int32Array && columns.large instanceof Float64Array);
  assert.equal(columns.none.length, 0);
});

test('damaged data is an error', async () => {
  await assert.rejects(unpack(Buffer.from('nothing').toString('base64')));
});

test('a sorted column is searched from both sides', () => {
  const values = [1, 3, 3, 8];
  assert.deepEqual(
    [0, 1, 3, 7, 9].map((limit) => lastAtMost(values, limit)),
    [-1, 0, 2, 2, 3],
  );
  assert.deepEqual(
    [0, 1, 3, 7, 9].map((limit) => firstAtLeast(values, limit)),
    [0, 0, 1, 3, 4],
  );
});
