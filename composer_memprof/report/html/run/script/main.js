import { byId } from '../../script/dom.js';
import { drawn } from './figures.js';

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
/** Plotly's script, which the page has before this one. */
const { Plotly } = /** @type {any} */ (globalThis);

/** Draws every chart in the colors of the page's theme. */
function draw() {
  const style = getComputedStyle(document.documentElement);
  const names = ['text', 'soft', 'line', 'ground', 'failed'];
  const colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const narrow = document.body.clientWidth < 600;
  for (const chart of charts) {
    const figure = drawn(figures[chart.dataset.figure ?? ''], colors, narrow);
    Plotly.react(chart, figure.data, figure.layout, config);
  }
}

draw();
// Paper has the light theme.
matchMedia('screen and (prefers-color-scheme: dark)').addEventListener('change', draw);
