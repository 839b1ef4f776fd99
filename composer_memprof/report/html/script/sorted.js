/** Binary search. */

/**
 * The last index whose value is at most `limit`, or -1.
 *
 * @param {ArrayLike<number>} values in ascending order
 * @param {number} limit
 */
export function lastAtMost(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * The first index whose value is at least `limit`, or the length.
 *
 * @param {ArrayLike<number>} values in ascending order
 * @param {number} limit
 */
export function firstAtLeast(values, limit) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
