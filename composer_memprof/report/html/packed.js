'use strict';
// The columns that packed.py made, and times and counts in words.

async function unpack(text) {
  const zipped = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream('gzip'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  const columns = {};
  let place = 4 + length;
  for (const [name, kind, count] of header.columns) {
    const values = kind === 'i4' ? new Int32Array(count) : new Float64Array(count);
    const raw = new Uint8Array(values.buffer);
    const width = values.BYTES_PER_ELEMENT;
    for (let byte = 0; byte < width; byte++) {
      for (let row = 0, at = byte; row < count; row++, at += width) raw[at] = bytes[place++];
    }
    for (let row = 1; row < count; row++) values[row] += values[row - 1]; // stored as differences
    columns[name] = values;
  }
  return { header, columns };
}

// The last index whose value is at most `wanted`, or -1.
function lastAtMost(values, wanted) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function humanTime(microseconds) {
  if (Math.abs(microseconds) < 1000) return `${+microseconds.toFixed(1)} µs`;
  if (Math.abs(microseconds) < 1e7) return `${+(microseconds / 1000).toFixed(2)} ms`;
  return `${+(microseconds / 1e6).toFixed(3)} s`;
}

function humanCount(count) {
  return count.toLocaleString('en-US');
}
