/**
 * The list of what is allocated at a moment. A new column takes an entry of COLUMNS here and a field of a row in
 * rows.js; numbers that the page does not have yet, a column in data.py.
 */

import { byId, make } from '../../../script/dom.js';
import { formatBytes, formatCount } from '../../../script/format.js';
import { swatch } from '../text.js';
import { blockRows, groupRows } from './rows.js';

/** @import { Actions } from '../types.d.ts' */
/** @import { Model } from '../model/model.js' */
/** @import { Row } from './rows.js' */

/**
 * @typedef {object} ListColumn
 * @property {string} width in a CSS grid
 * @property {string} [narrow] the same on a narrow screen, where a column without it is hidden
 * @property {string} [className]
 * @property {(model: Model) => string} head
 * @property {(row: Row, model: Model) => (Node | string)[]} cell
 */

/** @type {readonly ListColumn[]} */
export const COLUMNS = [
  {
    width: '.9rem',
    narrow: '.9rem',
    head: () => '',
    cell: ({ largest }, { palette }) => [swatch(palette, palette.grouping.keyOf(largest))],
  },
  {
    width: '5.6rem',
    narrow: '4.8rem',
    className: 'number',
    head: () => 'Size',
    cell: ({ bytes }) => [formatBytes(bytes)],
  },
  {
    width: '4.2rem',
    narrow: '3.4rem',
    className: 'number',
    head: () => 'Share',
    cell: (row, model) => [`${shareOf(row, model).toFixed(1)} %`],
  },
  {
    width: '4.6rem',
    className: 'number blocks',
    head: ({ listedBy }) => (listedBy ? 'Blocks' : ''),
    cell: ({ blocks, hasSmaller }) => {
      if (blocks === null) return [''];
      return [blocks ? `${formatCount(blocks)}${hasSmaller ? ' +' : ''}` : 'smaller'];
    },
  },
  {
    width: 'minmax(0, 1fr)',
    narrow: 'minmax(0, 1fr)',
    className: 'where',
    head: ({ listedBy }) => capitalized(listedBy?.name ?? 'category and call path'),
    cell: ({ label, within }) => [label, ...(within ? [make('span', { textContent: ` ${within}` })] : [])],
  },
];

const FIRST_ROWS = 25;
/** "More" shows so many times the rows. */
const MORE = 4;

export class BlockList {
  /**
   * @param {() => Model} modelOf
   * @param {Actions} actions
   */
  constructor(modelOf, actions) {
    this.actions = actions;
    this.shown = FIRST_ROWS;
    this.heads = byId('heads', HTMLElement);
    this.rows = byId('rows', HTMLElement);
    this.more = byId('more', HTMLButtonElement);
    this.more.addEventListener('click', () => {
      this.shown *= MORE;
      this.draw(modelOf());
    });
    for (const name of /** @type {const} */ (['width', 'narrow'])) {
      const widths = COLUMNS.map((column) => column[name]).filter(Boolean);
      byId('live', HTMLElement).style.setProperty(`--${name}`, widths.join(' '));
    }
  }

  reset() {
    this.shown = FIRST_ROWS;
  }

  /** @param {Model} model */
  draw(model) {
    const { timeline, moment, listed } = model;
    const total = formatBytes(timeline.total[moment]);
    byId('live-title', HTMLElement).textContent = `${total} allocated at ${model.timeText(moment)}`;
    for (const [id, name] of [
      ['at-failure', 'failure'],
      ['at-peak', 'peak'],
      ['at-moment', 'clicked'],
    ]) {
      byId(id, HTMLElement).setAttribute('aria-pressed', String(listed === name));
    }
    byId('at-moment', HTMLButtonElement).disabled = model.clicked === null;
    const rows = model.listedBy ? groupRows(model, model.listedBy) : blockRows(model);
    this.heads.hidden = !rows.length;
    this.heads.replaceChildren(...COLUMNS.map((column) => cellOf(column, [column.head(model)])));
    this.rows.replaceChildren(...rows.slice(0, this.shown).map((row) => this.rowOf(row, model)));
    if (!rows.length) this.rows.append(make('li', { className: 'hint', textContent: 'No blocks match the filters.' }));
    const rest = rows.slice(this.shown);
    const restBytes = rest.reduce((sum, row) => sum + row.bytes, 0);
    this.more.hidden = !rest.length;
    this.more.textContent = `${formatCount(rest.length)} more, ${formatBytes(restBytes)}`;
  }

  /**
   * @param {Row} row
   * @param {Model} model
   */
  rowOf(row, model) {
    const button = make(
      'button',
      {
        type: 'button',
        className: 'row',
        title: row.within ? `${row.label} ${row.within}` : row.label,
        onclick: () => this.actions.select(row.selection),
      },
      ...COLUMNS.map((column) => cellOf(column, column.cell(row, model))),
    );
    button.style.setProperty('--share', `${shareOf(row, model)}%`);
    return make('li', {}, button);
  }
}

/**
 * @param {ListColumn} column
 * @param {(Node | string)[]} children
 */
function cellOf({ className = '', narrow }, children) {
  return make('span', { className: narrow ? className : `${className} wide` }, ...children);
}

/**
 * Percent of all that is allocated at the listed moment.
 *
 * @param {Row} row
 * @param {Model} model
 */
function shareOf({ bytes }, { timeline, moment }) {
  return (100 * bytes) / Math.max(timeline.total[moment], 1);
}

/** @param {string} text */
function capitalized(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
