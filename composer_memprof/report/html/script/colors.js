/** Colors as [red, green, blue], 0 to 255. */

/** @typedef {[number, number, number]} Color */

/** @type {Color} */
export const GRAY = [140, 146, 156];

/**
 * Easy to tell apart; for what is largest.
 *
 * @type {readonly Color[]}
 */
const DISTINCT = [
  [76, 120, 168],
  [229, 150, 65],
  [84, 162, 75],
  [204, 92, 92],
  [126, 104, 176],
  [69, 173, 168],
  [226, 190, 76],
  [206, 120, 164],
  [150, 112, 86],
  [110, 160, 210],
  [160, 186, 86],
  [235, 142, 122],
];

/**
 * @param {number} rank
 * @returns {Color}
 */
export function colorOfRank(rank) {
  if (rank < DISTINCT.length) return DISTINCT[rank];
  return colorFromHsl((rank * 137.508) % 360, 0.32 + 0.08 * (rank % 3), 0.5 + 0.08 * (rank % 4) - 0.08);
}

/**
 * @param {number} hue 0 to 360
 * @param {number} saturation 0 to 1
 * @param {number} lightness 0 to 1
 * @returns {Color}
 */
export function colorFromHsl(hue, saturation, lightness) {
  const chroma = saturation * Math.min(lightness, 1 - lightness);
  /** @param {number} offset */
  const channel = (offset) => {
    const k = (offset + hue / 30) % 12;
    return Math.round(255 * (lightness - chroma * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

/**
 * @param {string} hex such as `#4878a8`
 * @returns {Color}
 */
export function colorFromHex(hex) {
  /** @param {number} at */
  const channel = (at) => Number.parseInt(hex.slice(at, at + 2), 16);
  return [channel(1), channel(3), channel(5)];
}

/**
 * @param {Color} color
 * @param {Color} other
 * @param {number} share of the other
 * @returns {Color}
 */
export function mixColors(color, other, share) {
  /** @param {0 | 1 | 2} index */
  const mixed = (index) => Math.round(color[index] * (1 - share) + other[index] * share);
  return [mixed(0), mixed(1), mixed(2)];
}

/**
 * @param {Color} color
 * @param {number} [alpha] 0 to 1
 */
export function cssColor([red, green, blue], alpha = 1) {
  return `rgb(${red} ${green} ${blue} / ${alpha})`;
}

/**
 * As one pixel of an ImageData, opaque.
 *
 * @param {Color} color
 */
export function pixelOf([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** @param {number} pixel */
export function cssOfPixel(pixel) {
  return cssColor([pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255]);
}
