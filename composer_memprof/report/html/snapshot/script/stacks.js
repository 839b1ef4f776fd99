import { make } from '../../script/dom.js';

/** @import { Model } from './model/model.js' */

/**
 * The user's own frames of a stack, and all of its frames, folded.
 *
 * @param {Model} model
 * @param {number} stack
 */
export function stackElements(model, stack) {
  const { header, recording } = model;
  const frames = header.stacks[stack];
  if (!frames.length) return [make('p', { className: 'hint', textContent: 'No stack was recorded for it.' })];
  const path = recording.columns.pathOfStack[stack];
  const own = header.paths[path];
  const details = make(
    'details',
    {},
    make('summary', { textContent: `All frames (${frames.length}), innermost first` }),
  );
  details.addEventListener('toggle', () => {
    if (details.children.length === 1) details.append(frameList(model, frames, own));
  });
  const within = header.pathsWithin[path];
  const hint = within ? [make('p', { className: 'hint', textContent: within })] : [];
  return [...hint, frameList(model, own, own), details];
}

/**
 * @param {Model} model
 * @param {number[]} frames
 * @param {number[]} own
 */
function frameList(model, frames, own) {
  const items = frames.map((frame) => {
    const { name, where } = model.frames.partsOf(frame);
    const className = own.includes(frame) ? 'own' : 'other';
    return make('li', { className }, name, make('span', { textContent: where }));
  });
  return make('ol', {}, ...items);
}
