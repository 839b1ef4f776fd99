/** @import { CallNode } from './call_tree.js' */

/** @typedef {{node: CallNode, left: number, width: number}} Cell in shares of the whole width */

/**
 * Where each node of a flame graph goes: `top` and the nodes it is in over the whole width, and below it its children
 * side by side, the largest on the left, each as wide as its bytes.
 *
 * @param {CallNode} top
 * @param {number} narrowest nodes narrower than this share are left out
 * @param {number} most
 * @returns {{cells: Cell[], leftOut: number}}
 */
export function flameLayout(top, narrowest, most) {
  /** @type {Cell[]} */
  const cells = [];
  for (let node = /** @type {CallNode | null} */ (top); node; node = node.parent) {
    cells.unshift({ node, left: 0, width: 1 });
  }
  let leftOut = 0;
  /** @type {(node: CallNode, left: number, width: number) => void} */
  const place = (node, left, width) => {
    let from = left;
    for (const child of node.largestFirst) {
      const share = (child.bytes / node.bytes) * width;
      if (share < narrowest || cells.length >= most) {
        leftOut += 1;
        continue;
      }
      cells.push({ node: child, left: from, width: share });
      place(child, from, share);
      from += share;
    }
  };
  if (top.bytes) place(top, 0, 1);
  return { cells, leftOut };
}

/**
 * The nodes of each level, from left to right in the order of the cells.
 *
 * @param {Cell[]} cells
 */
export function levelsOf(cells) {
  /** @type {CallNode[][]} */
  const levels = [];
  for (const { node } of cells) {
    levels[node.level] ??= [];
    levels[node.level].push(node);
  }
  return levels;
}
