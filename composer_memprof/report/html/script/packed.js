/** The data of a page, as packed.py wrote it. */

/** @typedef {Int32Array | Float64Array} Column */

/**
 * @param {string} text base64 of a gzipped header and its columns
 * @returns {Promise<{header: any, columns: Record<string, Column>}>}
 */
export async function unpack(text) {
  return parsePacked(new Uint8Array(await unzipped(text).arrayBuffer()));
}

/**
 * @param {string} text base64 of a gzipped text
 * @returns {Promise<string>}
 */
export function unpackText(text) {
  return unzipped(text).text();
}

/** @param {string} text */
function unzipped(text) {
  const letters = atob(text);
  const zipped = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) zipped[place] = letters.charCodeAt(place);
  return new Response(new Blob([zipped]).stream().pipeThrough(new DecompressionStream('gzip')));
}

/**
 * The bytes of a column are stored as differences, all first bytes before all second ones.
 *
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {{header: any, columns: Record<string, Column>}}
 */
export function parsePacked(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  /** @type {Record<string, Column>} */
  const columns = {};
  let offset = 4 + length;
  for (const [name, type, count] of header.columns) {
    const values = type === 'i4' ? new Int32Array(count) : new Float64Array(count);
    const raw = new Uint8Array(values.buffer);
    const width = values.BYTES_PER_ELEMENT;
    for (let byte = 0; byte < width; byte++) {
      for (let row = 0, at = byte; row < count; row++, at += width) raw[at] = bytes[offset++];
    }
    for (let row = 1; row < count; row++) values[row] += values[row - 1];
    columns[name] = values;
  }
  return { header, columns };
}
