import { NO_KEY } from '../model/groupings.js';

/** @import { Selection } from '../types.d.ts' */
/** @import { Grouping } from '../model/groupings.js' */
/** @import { Model } from '../model/model.js' */

/**
 * A row of the list: a group of blocks, or one block.
 *
 * @typedef {object} Row
 * @property {number} bytes
 * @property {number | null} blocks that are drawn one by one; null for one block
 * @property {boolean} hasSmaller
 * @property {number} largest id
 * @property {string} label
 * @property {string} within
 * @property {Selection} selection
 */

/**
 * The blocks that are drawn one by one, the largest first.
 *
 * @param {Model} model
 * @returns {Row[]}
 */
export function blockRows(model) {
  const { timeline, filters, moment } = model;
  const blocks = timeline.liveAt(moment).filter((block) => filters.showsBlock(block));
  blocks.sort((one, other) => timeline.size[other] - timeline.size[one]);
  return blocks.map((block) => {
    const { kind, frames, within } = model.describe(block);
    const label = `${kind} · ${model.frames.join(frames)}`;
    const bytes = timeline.size[block];
    return { bytes, blocks: null, hasSmaller: false, largest: block, label, within, selection: { block } };
  });
}

/**
 * @param {Model} model
 * @param {Grouping} grouping
 * @returns {Row[]}
 */
export function groupRows(model, grouping) {
  return model.groupsAt(model.moment, grouping).map((group) => ({
    ...group,
    label: group.key === NO_KEY ? 'smaller blocks of all groups' : grouping.label(group.key),
    within: group.key === NO_KEY ? '' : grouping.within(group.key),
    selection: { grouping, key: group.key },
  }));
}
