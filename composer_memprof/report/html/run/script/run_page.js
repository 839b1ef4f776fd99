import { drawn } from './figures.js';

const figures = JSON.parse(document.getElementById('figures').textContent);
const charts = [...document.querySelectorAll('.chart')];
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ['select2d', 'lasso2d', 'toImage'] };

/** Draws every chart in the colors of the page's theme. */
function draw() {
  const style = getComputedStyle(document.documentElement);
  const colors = {};
  for (const name of ['text', 'soft', 'line', 'ground', 'failed']) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const narrow = document.body.clientWidth < 600;
  for (const chart of charts) {
    const figure = drawn(figures[chart.dataset.figure], colors, narrow);
    globalThis.Plotly.react(chart, figure.data, figure.layout, config);
  }
}

draw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
