/** Parts of a figure that a filter shows: traces by their name, rows and columns by their text. */

/** @typedef {import('./figures.js').Figure} Figure */
/** @typedef {{chosen: string, x: string, y: string}} Shown the name of one trace, and the filters of both axes */

/**
 * Whether a text passes a filter: terms with commas between them, of which one must match. A number, or a range such as
 * `8-15`, matches a text that has such a number; another term matches a part of the text, in any case.
 *
 * @param {string} filter
 * @returns {(text: string) => boolean}
 */
export function matcher(filter) {
  const terms = filter.split(',').map((term) => term.trim().toLowerCase());
  const tests = terms.filter(Boolean).map((term) => {
    const range = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(term);
    if (!range) return (/** @type {string} */ text) => text.toLowerCase().includes(term);
    const [first, last] = [Number(range[1]), Number(range[2] ?? range[1])];
    return (/** @type {string} */ text) => (text.match(/\d+/g) ?? []).some((each) => within(Number(each), first, last));
  });
  return (text) => !tests.length || tests.some((test) => test(text));
}

/**
 * @param {number} number
 * @param {number} first
 * @param {number} last
 */
function within(number, first, last) {
  return first <= number && number <= last;
}

/**
 * The figure with one trace of those in `choices`, or all for `''`, and with what passes the filters of its axes.
 *
 * @param {Figure} figure
 * @param {string[]} choices names of traces
 * @param {Shown} shown
 * @returns {Figure}
 */
export function filtered(figure, choices, shown) {
  const data = figure.data.map((trace) => {
    const hidden = shown.chosen && choices.includes(trace.name) && trace.name !== shown.chosen;
    return withoutOthers(hidden ? { ...trace, visible: 'legendonly' } : trace, shown);
  });
  return { data, layout: figure.layout };
}

/**
 * @param {any} trace
 * @param {Shown} shown
 */
function withoutOthers(trace, shown) {
  if (trace.type === 'heatmap') {
    const [columns, rows] = [places(trace.x, shown.x), places(trace.y, shown.y)];
    const cut = (/** @type {any[][]} */ values) => rows.map((row) => columns.map((column) => values[row][column]));
    return { ...trace, x: pick(trace.x, columns), y: pick(trace.y, rows), z: cut(trace.z), text: cut(trace.text) };
  }
  if (trace.type === 'bar') {
    const rows = places(trace.y, shown.y);
    const columns = ['x', 'y', 'customdata'].map((name) => [name, pick(trace[name], rows)]);
    return { ...trace, ...Object.fromEntries(columns) };
  }
  return trace;
}

/**
 * @param {string[]} texts
 * @param {string} filter
 */
function places(texts, filter) {
  const matches = matcher(filter);
  return [...texts.keys()].filter((place) => matches(texts[place]));
}

/**
 * @param {any[]} values
 * @param {number[]} chosen
 */
function pick(values, chosen) {
  return chosen.map((place) => values[place]);
}
