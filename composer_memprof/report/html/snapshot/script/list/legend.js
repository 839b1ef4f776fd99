import { byId, make } from '../../../script/dom.js';
import { formatBytes, formatCount } from '../../../script/format.js';
import { NO_KEY } from '../model/groupings.js';
import { swatch } from '../text.js';

/** @import { Actions } from '../types.d.ts' */
/** @import { Model } from '../model/model.js' */

const MAX_ENTRIES = 8;

/**
 * The meaning of the colors, with the bytes of each at the listed moment.
 *
 * @param {Model} model
 * @param {Actions} actions
 */
export function drawLegend(model, actions) {
  const { palette } = model;
  const { grouping } = palette;
  /** @type {{key: number, bytes: number}[]} */
  const groups = model.groupsAt(model.moment, grouping).filter(({ key }) => key !== NO_KEY);
  if (grouping.colors) {
    // There are few, and the timeline shows all of them.
    const listed = new Set(groups.map(({ key }) => key));
    for (const key of grouping.allKeys()) if (key !== NO_KEY && !listed.has(key)) groups.push({ key, bytes: 0 });
  }
  const entries = groups.slice(0, MAX_ENTRIES).map(({ key, bytes }) => {
    const label = grouping.fullLabel(key);
    return make(
      'button',
      { type: 'button', title: label, onclick: () => actions.select({ grouping, key }) },
      swatch(palette, key),
      make('span', { textContent: label }),
      make('b', { textContent: formatBytes(bytes) }),
    );
  });
  byId('legend', HTMLElement).replaceChildren(...entries);
  if (groups.length <= MAX_ENTRIES) return;
  const rest = `and ${formatCount(groups.length - MAX_ENTRIES)} more`;
  byId('legend', HTMLElement).append(make('span', { className: 'hint', textContent: rest }));
}
