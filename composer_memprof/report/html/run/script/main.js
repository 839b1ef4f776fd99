import { byId } from '../../script/dom.js';
import { listenToControls, readControls } from './controls.js';
import { drawn } from './figures.js';
import { filtered } from './filters.js';
import { makeTreemapUsable } from './treemap.js';

/** @type {Record<string, import('./figures.js').Figure>} */
const figures = JSON.parse(byId('figures', HTMLScriptElement).textContent);
/** @type {NodeListOf<HTMLElement>} */
const charts = document.querySelectorAll('.chart');
/** Plotly offers to upload a chart unless it is told not to; nothing of a run leaves the page. */
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: false,
  showSendToCloud: false,
  showEditInChartStudio: false,
  showLink: false,
  plotlyServerURL: '',
};
/** Plotly's script, which a page with pictures has before this one. */
const { Plotly } = /** @type {any} */ (globalThis);

/**
 * Draws a chart in the colors of the page's theme.
 *
 * @param {HTMLElement} chart
 */
function draw(chart) {
  const style = getComputedStyle(document.documentElement);
  const names = ['text', 'soft', 'line', 'ground', 'failed'];
  const colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const narrow = document.body.clientWidth < 600;
  const { choices, shown } = readControls(chart.closest('section') ?? document);
  const figure = drawn(filtered(figures[chart.dataset.figure ?? ''], choices, shown), colors, narrow);
  Plotly.react(chart, figure.data, figure.layout, config);
  treemaps.get(chart)?.();
}

/** @type {Map<HTMLElement, () => void>} */
const treemaps = new Map();
for (const chart of charts) {
  draw(chart);
  const isTreemap = figures[chart.dataset.figure ?? ''].data[0]?.type === 'treemap';
  if (isTreemap) treemaps.set(chart, makeTreemapUsable(chart, Plotly));
}
/** @type {NodeListOf<HTMLElement>} */
const sections = document.querySelectorAll('main section');
for (const section of sections) {
  listenToControls(section, () => {
    for (const chart of charts) if (section.contains(chart)) draw(chart);
  });
}
// Paper has the light theme.
matchMedia('screen and (prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const chart of charts) draw(chart);
});
