/** Small elements that several parts of the page show. */

import { cssColor } from '../../script/colors.js';
import { make } from '../../script/dom.js';

/** @import { Model } from './model/model.js' */
/** @import { Palette } from './model/palette.js' */

/**
 * A square in the color of a group.
 *
 * @param {Palette} palette
 * @param {number} key
 */
export function swatch(palette, key) {
  const made = make('i', { className: 'swatch' });
  made.style.background = cssColor(palette.colorOf(key));
  return made;
}

/**
 * @param {[term: string, text: string][]} facts
 */
export function factList(facts) {
  const list = make('dl');
  for (const [term, text] of facts) list.append(make('dt', { textContent: term }), make('dd', { textContent: text }));
  return list;
}

/**
 * What a tooltip shows of a block or a curve below its size.
 *
 * @param {Model} model
 * @param {number} id
 */
export function tooltipLines(model, id) {
  const { kind, frames, within } = model.describe(id);
  const lines = kind && id >= 0 ? [make('div', { textContent: kind })] : [];
  if (within) lines.push(make('div', { className: 'hint', textContent: within }));
  if (frames) lines.push(make('div', { textContent: model.frames.join(frames) }));
  return lines;
}
