/** Figures as plotly takes them, from those in the page, which know neither the theme nor the width. */

/**
 * The figure with its colors: a color that is the name of one of the theme's becomes that color.
 * @param {{data: object[], layout: object}} figure from the page.
 * @param {Record<string, string>} colors of the theme, by name.
 * @param {boolean} narrow whether the window is as narrow as a phone.
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

/** A copy of a value in which each `color` that names one of the theme's is replaced. */
export function themed(value, colors) {
  if (Array.isArray(value)) {
    return value.map((each) => (each !== null && typeof each === 'object' ? themed(each, colors) : each));
  }
  const copy = {};
  for (const [name, each] of Object.entries(value)) {
    if (each !== null && typeof each === 'object') {
      copy[name] = themed(each, colors);
    } else {
      copy[name] = name === 'color' && each in colors ? colors[each] : each;
    }
  }
  return copy;
}
