/** Round numbers on an axis. */

/**
 * About `count` round numbers between `from` and `to`.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} count
 */
export function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? 10 * power;
  return multiplesOf(step, from, to);
}

/**
 * The same in powers of two.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} count
 */
export function byteTicks(from, to, count) {
  const step = Math.max(2 ** Math.ceil(Math.log2((to - from) / Math.max(count, 1))), 1);
  return { step, values: multiplesOf(step, from, to) };
}

/**
 * @param {number} step
 * @param {number} from
 * @param {number} to
 */
function multiplesOf(step, from, to) {
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) values.push(value);
  return values;
}
