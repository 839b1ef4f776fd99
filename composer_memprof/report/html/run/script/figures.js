/** Figures as plotly takes them, from those in the page, which know neither the theme nor the width. */

/** @typedef {{data: any[], layout: any}} Figure */
/** @typedef {Record<string, string>} Colors */

/**
 * The figure with its colors: a color that is the name of one of the theme's becomes that color.
 *
 * @param {Figure} figure from the page.
 * @param {Colors} colors of the theme, by name.
 * @param {boolean} narrow whether the window is as narrow as a phone.
 * @returns {Figure}
 */
export function drawn(figure, colors, narrow) {
  const axis = { gridcolor: colors.line, zerolinecolor: colors.line, linecolor: colors.line, automargin: true };
  const given = themed(figure.layout, colors);
  return {
    data: themed(figure.data, colors),
    layout: {
      font: { color: colors.text, size: narrow ? 11 : 12, family: 'system-ui, sans-serif' },
      paper_bgcolor: 'rgba(0,0,0,0)',
      plot_bgcolor: 'rgba(0,0,0,0)',
      margin: { l: 8, r: 8, t: 16, b: 8 },
      legend: { orientation: 'h', x: 0, y: 1.06, yanchor: 'bottom', traceorder: 'normal' },
      hoverlabel: { bgcolor: colors.ground, bordercolor: colors.line, font: { color: colors.text } },
      ...given,
      xaxis: { ...axis, ...given.xaxis },
      yaxis: { ...axis, ...given.yaxis },
    },
  };
}

/**
 * A scale of colors in which names of the theme's are replaced.
 *
 * @param {[number, string][]} scale
 * @param {Colors} colors
 */
function inTheme(scale, colors) {
  return scale.map(([place, color]) => [place, colors[color] ?? color]);
}

/**
 * A copy of a value in which each `color` that names one of the theme's is replaced.
 *
 * @param {any} value
 * @param {Colors} colors
 * @returns {any}
 */
export function themed(value, colors) {
  if (Array.isArray(value)) return value.map((each) => themed(each, colors));
  if (value === null || typeof value !== 'object') return value;
  const copies = Object.entries(value).map(([name, each]) => [
    name,
    name === 'color' && each in colors
      ? colors[each]
      : themed(name === 'colorscale' ? inTheme(each, colors) : each, colors),
  ]);
  return Object.fromEntries(copies);
}
