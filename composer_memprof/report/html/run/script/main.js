import { byId, make } from '../../script/dom.js';
import { unpackText } from '../../script/packed.js';
import { fromAddress, toAddress } from './address.js';
import { listenToControls, readControls } from './controls.js';
import { showCopyButtons } from './copy.js';
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
/** @type {any} Plotly, once its script has run */
let plotly;

/**
 * Draws a chart in the colors of the page's theme.
 *
 * @param {HTMLElement} chart
 */
function draw(chart) {
  const style = getComputedStyle(document.documentElement);
  const names = ['text', 'soft', 'line', 'ground', 'raised', 'failed', 'accent', 'on-fill'];
  const colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const narrow = document.body.clientWidth < 600;
  const { choices, shown } = readControls(chart.closest('section') ?? document);
  const figure = drawn(filtered(figures[chart.dataset.figure ?? ''], choices, shown), colors, narrow);
  const zoom = zoomOf(chart);
  if (zoom) figure.layout.xaxis = { ...figure.layout.xaxis, range: zoom, autorange: false };
  plotly.react(chart, figure.data, figure.layout, config);
  treemaps.get(chart)?.();
}

/** @type {Map<HTMLElement, () => void>} */
const treemaps = new Map();
/** @type {NodeListOf<HTMLElement>} */
const sections = document.querySelectorAll('main section');
for (const section of sections) {
  listenToControls(section, () => {
    for (const chart of charts) if (plotly && section.contains(chart)) draw(chart);
  });
}
showCopyButtons();
// Paper has the light theme.
matchMedia('screen and (prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const chart of charts) if (plotly) draw(chart);
});
if (charts.length) drawAll();

/** The page can be read and used before its pictures are drawn. */
async function drawAll() {
  await nextFrame();
  const text = await unpackText(byId('plotly', HTMLScriptElement).textContent);
  document.head.append(make('script', { textContent: text }));
  plotly = /** @type {any} */ (globalThis).Plotly;
  for (const chart of charts) {
    draw(chart);
    const isTreemap = figures[chart.dataset.figure ?? ''].data[0]?.type === 'treemap';
    if (isTreemap) treemaps.set(chart, makeTreemapUsable(chart, plotly, `${chart.dataset.figure}.part`));
    else keepZoom(chart);
    await nextFrame();
  }
}

/** @param {any} chart drawn */
function keepZoom(chart) {
  chart.on('plotly_relayout', (/** @type {Record<string, any>} */ change) => {
    const ends = [change['xaxis.range[0]'], change['xaxis.range[1]']];
    if (ends.every((end) => typeof end === 'number')) toAddress(`${chart.dataset.figure}.zoom`, ends.join('_'));
    else if (change['xaxis.autorange']) toAddress(`${chart.dataset.figure}.zoom`, '');
  });
}

/**
 * @param {HTMLElement} chart
 * @returns {number[] | undefined} both ends of its horizontal axis, as the address has them
 */
function zoomOf(chart) {
  const ends = fromAddress(`${chart.dataset.figure}.zoom`).split('_').map(Number.parseFloat);
  return ends.length === 2 && ends.every(Number.isFinite) ? ends : undefined;
}

function nextFrame() {
  return new Promise((done) => setTimeout(done));
}
