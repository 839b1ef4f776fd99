import { make } from '../../script/dom.js';
import { fromAddress, toAddress } from './address.js';
import { matcher } from './filters.js';

/** @import { Shown } from './filters.js' */

/**
 * What the controls of a section say to show.
 *
 * @param {ParentNode} section
 * @returns {{choices: string[], shown: Shown}}
 */
export function readControls(section) {
  /** @type {HTMLSelectElement | null} */
  const select = section.querySelector('[data-choose]');
  const choices = select ? [...select.options].map((option) => option.value).filter(Boolean) : [];
  return { choices, shown: { chosen: select?.value ?? '', x: textOf(section, 'x'), y: textOf(section, 'y') } };
}

/**
 * @param {ParentNode} section
 * @param {string} axis
 */
function textOf(section, axis) {
  /** @type {HTMLInputElement | null} */
  const input = section.querySelector(`[data-axis=${axis}]`);
  return input?.value ?? '';
}

/**
 * Show the controls, which a page without its script does not have, as the address has them, and call `draw` when one of
 * them changes.
 *
 * @param {HTMLElement} section
 * @param {() => void} draw
 */
export function listenToControls(section, draw) {
  for (const controls of section.querySelectorAll('.controls')) controls.removeAttribute('hidden');
  /** @type {NodeListOf<HTMLInputElement | HTMLSelectElement>} */
  const inputs = section.querySelectorAll('.controls input, .controls select');
  for (const control of inputs) {
    const { axis, column } = control.dataset;
    const key = `${section.id}.${axis ?? (column === undefined ? 'show' : `column${column}`)}`;
    control.value = fromAddress(key);
    control.addEventListener('input', () => toAddress(key, control.value));
    if (column === undefined) control.addEventListener('input', draw);
  }
  for (const table of section.querySelectorAll('table')) listenToTable(section, table);
}

/**
 * Hide the rows of a table that do not pass its filters.
 *
 * @param {HTMLElement} section
 * @param {HTMLTableElement} table
 */
function listenToTable(section, table) {
  /** @type {HTMLInputElement[]} */
  const inputs = [...section.querySelectorAll('input')].filter((input) => input.dataset.column !== undefined);
  if (!inputs.length) return;
  const rows = [...table.tBodies[0].rows];
  const count = make('output');
  inputs.at(-1)?.closest('.controls')?.append(count);
  const filter = () => {
    const tests = inputs.map((input) => ({ column: input.dataset.column ?? '', matches: matcher(input.value) }));
    for (const row of rows) {
      row.hidden = !tests.every(({ column, matches }) => matches(textOfRow(row, column)));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    count.textContent = shown === rows.length ? '' : `${shown} of ${rows.length} rows`;
  };
  for (const input of inputs) input.addEventListener('input', filter);
  if (inputs.some((input) => input.value)) filter();
}

/**
 * @param {HTMLTableRowElement} row
 * @param {string} column its number; empty for all of them
 */
function textOfRow(row, column) {
  const cell = column === '' ? row : row.cells[Number(column)];
  return [...(column === '' ? row.cells : [cell])].map((each) => each.textContent).join(' ');
}
