/** Ids of what is drawn: a block is its row, 0 and up; a curve of smaller blocks is -2, -3, ... */

export const NOTHING = -1;
const FIRST_CURVE = -2;

/** @param {number} curve */
export function idOfCurve(curve) {
  return FIRST_CURVE - curve;
}

/** @param {number} id */
export function curveOfId(id) {
  return FIRST_CURVE - id;
}
