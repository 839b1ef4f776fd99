import { colorFromHex, colorOfRank, GRAY, mixColors, pixelOf } from '../../../script/colors.js';
import { NO_KEY } from './groupings.js';
import { curveOfId } from './ids.js';

/** @import { Color } from '../../../script/colors.js' */
/** @import { Grouping } from './groupings.js' */
/** @import { Filters } from './filters.js' */
/** @import { Paint } from '../chart/paint.js' */

/** @type {Color} */
const FILTERED = [128, 134, 144];

/** The colors of the groups of one grouping. */
export class Palette {
  /**
   * @param {Grouping} grouping
   * @param {number[]} ranked keys, the largest first: it gets the color that is easiest to tell apart
   * @param {boolean} isDark
   */
  constructor(grouping, ranked, isDark) {
    const fixed = grouping.colors;
    this.grouping = grouping;
    this.ranked = ranked;
    /** @type {Map<number, Color>} */
    this.colors = new Map(ranked.map((key, rank) => [key, fixed ? colorFromHex(fixed[key]) : colorOfRank(rank)]));
    this.colors.set(NO_KEY, GRAY);
    /** @type {Color} */
    const ground = isDark ? [20, 24, 31] : [255, 255, 255];
    /** @type {Color} */
    const edge = isDark ? [0, 0, 0] : [255, 255, 255];
    /** @type {(color: Color, isHatched: boolean) => Paint} */
    const paint = (color, isHatched) => [pixelOf(color), pixelOf(mixColors(color, edge, 0.45)), isHatched];
    /** @type {Map<number, Paint[]>} of each key: a block, one that is not selected, and the same for curves */
    this.paints = new Map();
    for (const [key, color] of this.colors) {
      const faint = mixColors(color, ground, 0.72);
      this.paints.set(key, [paint(color, false), paint(faint, false), paint(color, true), paint(faint, true)]);
    }
    /** @type {Paint} */
    this.filtered = paint(mixColors(FILTERED, ground, 0.75), false);
  }

  /**
   * The same colors on the other background.
   *
   * @param {boolean} isDark
   */
  inMode(isDark) {
    return new Palette(this.grouping, this.ranked, isDark);
  }

  /**
   * @param {number} key
   * @returns {Color}
   */
  colorOf(key) {
    return this.colors.get(key) ?? GRAY;
  }

  /**
   * @param {Filters} filters
   * @param {((id: number) => boolean) | null} isSelected null where nothing is
   * @returns {(id: number) => Paint}
   */
  painter(filters, isSelected) {
    const { grouping, paints, filtered } = this;
    return (id) => {
      const isShown = id < 0 ? filters.showsCurve(curveOfId(id)) : filters.showsBlock(id);
      if (!isShown) return filtered;
      const isFaint = isSelected !== null && !isSelected(id);
      return paints.get(grouping.keyOf(id))?.[(id < 0 ? 2 : 0) + (isFaint ? 1 : 0)] ?? filtered;
    };
  }
}
