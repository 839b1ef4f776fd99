'use strict';
// From a timeline to pixels: each column of pixels shows one moment, that of its largest total, with the blocks
// allocated then one on top of the other, the oldest at the bottom. So no peak is ever lost between two pixels, and
// the time to draw does not grow with how often blocks move.

const NOTHING = -1;
const FIRST_CURVE = -2; // ids of smaller blocks' curves: -2, -3, ...

// The moment that each of `width` columns shows.
function momentsOfColumns(timeline, axis, from, to, width) {
  const moments = new Int32Array(width);
  const step = (to - from) / width;
  let next = axis.firstFrom(from);
  for (let column = 0; column < width; column++) {
    const begin = next;
    next = axis.firstFrom(from + (column + 1) * step);
    let chosen = Math.max(begin - 1, 0); // no event here: what was before goes on
    if (begin < next) {
      chosen = begin;
      for (let moment = begin + 1; moment < next; moment++) {
        if (timeline.total[moment] > timeline.total[chosen]) chosen = moment;
      }
    }
    moments[column] = Math.min(chosen, timeline.events);
  }
  return moments;
}

// Paint into `pixels` (RGBA as one number) and note in `ids` which block or curve each pixel shows.
// `colours(id)` gives [fill, edge] for a block or a curve; what it gives is used as it is.
function paint(timeline, moments, bottom, top, width, height, colours, pixels, ids) {
  ids.fill(NOTHING);
  pixels.fill(0);
  const { born, died, size, curves } = timeline;
  const scale = height / (top - bottom);
  const live = [];
  let next = 0;
  for (let column = 0; column < width; column++) {
    const moment = moments[column];
    const before = column ? moments[column - 1] : -1;
    const soon = moments[Math.min(column + 4, width - 1)];
    let kept = 0;
    for (let place = 0; place < live.length; place++) {
      if (died[live[place]] > moment) live[kept++] = live[place];
    }
    live.length = kept;
    for (; next < born.length && born[next] <= moment; next++) {
      if (died[next] > moment) live.push(next);
    }
    let sum = 0;
    let row = height - 1; // the next to paint, upwards
    const band = (id, bytes, atBirth) => {
      sum += bytes;
      const upTo = height - Math.round((sum - bottom) * scale); // the topmost row of this band
      if (upTo > row) return;
      const end = Math.max(upTo, 0);
      const [fill, edge, hatched] = colours(id);
      const high = row - end >= 3;
      for (let at = row; at >= end; at--) {
        const place = at * width + column;
        const isEdge = hatched ? ((at + column) & 7) < 2 : high && (atBirth || at === upTo);
        pixels[place] = isEdge ? edge : fill;
        ids[place] = id;
      }
      row = end - 1;
    };
    for (let place = 0; place < live.length && row >= 0; place++) {
      const block = live[place];
      band(block, size[block], column > 0 && born[block] > before && died[block] > soon);
    }
    const known = lastAtMost(timeline.smallerMoments, moment);
    for (let curve = curves.length; curve >= 0 && row >= 0; curve--) {
      band(FIRST_CURVE - curve, timeline.smallerAt(curve, known), false);
    }
  }
}

// -- colours -------------------------------------------------------------------------------------------------------

function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function mixed(colour, other, share) {
  return colour.map((value, index) => Math.round(value * (1 - share) + other[index] * share));
}

function fromHsl(hue, saturation, lightness) {
  const chroma = saturation * Math.min(lightness, 1 - lightness);
  const channel = (offset) => {
    const k = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

function fromHex(colour) {
  return [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
}

// The n-th colour: a dozen that are easy to tell apart for what is largest, then any number that differ a little.
const DISTINCT = [
  [76, 120, 168], [229, 150, 65], [84, 162, 75], [204, 92, 92], [126, 104, 176], [69, 173, 168],
  [226, 190, 76], [206, 120, 164], [150, 112, 86], [110, 160, 210], [160, 186, 86], [235, 142, 122],
];

function colourOf(rank) {
  if (rank < DISTINCT.length) return DISTINCT[rank];
  return fromHsl((rank * 137.508) % 360, 0.32 + 0.08 * (rank % 3), 0.5 + 0.08 * (rank % 4) - 0.08);
}

// -- axes ----------------------------------------------------------------------------------------------------------

// Round numbers between `from` and `to`, about `count` of them.
function ticks(from, to, count) {
  const rough = (to - from) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? 10 * power;
  const found = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) found.push(value);
  return found;
}

// Powers of two, as sizes in memory are round in them.
function byteTicks(from, to, count) {
  const step = Math.max(2 ** Math.ceil(Math.log2((to - from) / Math.max(count, 1))), 1);
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) values.push(value);
  return { step, values };
}
