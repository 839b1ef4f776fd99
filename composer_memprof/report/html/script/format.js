/** Sizes, times and counts as text, and sizes from text. */

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** @param {number} count */
export function formatBytes(count) {
  let size = count;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toFixed(1) : size} ${BYTE_UNITS[unit]}`;
}

/**
 * A size on an axis, with as many digits as tell it from the next one.
 *
 * @param {number} count
 * @param {number} step bytes between two labels
 */
export function formatByteTick(count, step) {
  const power = count ? Math.min(Math.floor(Math.log2(count) / 10), BYTE_UNITS.length - 1) : 0;
  const unit = 1024 ** power;
  const digits = Math.max(Math.ceil(Math.log10(unit / step)), 0);
  return `${+(count / unit).toFixed(digits)} ${BYTE_UNITS[power]}`;
}

/**
 * `'1.5 GiB'`, `'512k'` or `'4096'` in bytes; 0 for an empty text, NaN for any other.
 *
 * @param {string} text
 */
export function parseBytes(text) {
  if (!text.trim()) return 0;
  const found = /^\s*([\d.]+)\s*(?:([kmgt])i?)?b?\s*$/i.exec(text);
  return found ? Number(found[1]) * 1024 ** ' kmgt'.indexOf((found[2] ?? ' ').toLowerCase()) : Number.NaN;
}

/** @param {number} microseconds */
export function formatTime(microseconds) {
  if (Math.abs(microseconds) < 1000) return `${+microseconds.toFixed(1)} µs`;
  if (Math.abs(microseconds) < 1e7) return `${+(microseconds / 1000).toFixed(2)} ms`;
  return `${+(microseconds / 1e6).toFixed(3)} s`;
}

/** @param {number} count */
export function formatCount(count) {
  return count.toLocaleString('en-US');
}

/**
 * `'1 block'`, `'2,000 blocks'`.
 *
 * @param {number} count
 * @param {string} noun
 */
export function formatPlural(count, noun) {
  return `${formatCount(count)} ${count === 1 ? noun : `${noun}s`}`;
}
