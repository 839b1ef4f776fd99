import { formatCount, formatTime } from '../../../script/format.js';
import { Filters } from './filters.js';
import { FrameText } from './frames.js';
import { groupingsOf, NO_KEY } from './groupings.js';
import { curveOfId, idOfCurve } from './ids.js';
import { Palette } from './palette.js';
import { Timeline } from './timeline.js';
import { View } from './view.js';

/** @import { Group, MomentName, Recording, Selection } from '../types.d.ts' */
/** @import { Grouping } from './groupings.js' */

const MOMENTS = { failure: 'at the failure', peak: 'at the peak', clicked: 'where clicked' };

/** One device, and what the page shows of it: the part in view, the filters, the listed moment, the selection. */
export class Model {
  /**
   * @param {Recording} recording
   * @param {number} number of the device
   * @param {boolean} isDark
   */
  constructor(recording, number, isDark) {
    this.recording = recording;
    this.header = recording.header;
    this.number = number;
    this.isDark = isDark;
    this.timeline = new Timeline(recording, number);
    this.frames = new FrameText(this.header);
    this.filters = new Filters(recording, this.timeline, this.frames);
    this.view = new View(this.timeline);
    const { failure, peak } = this.timeline;
    /** @type {MomentName} */
    this.listed = failure === null ? 'peak' : 'failure';
    this.moment = failure ?? peak;
    /** @type {number | null} the moment that was clicked */
    this.clicked = null;
    /** @type {Selection | null} */
    this.selection = null;
    this.groupings = groupingsOf(recording, this.timeline, this.frames);
    const [category, line] = this.groupings;
    /** @type {Grouping | null} null lists single blocks */
    this.listedBy = line;
    this.palette = this.paletteOf(this.isMostlyKnown(category) ? category : line);
  }

  /** @param {string} name */
  grouping(name) {
    return this.groupings.find((grouping) => grouping.name === name) ?? null;
  }

  // -- groups ---------------------------------------------------------------------------------------------------------

  /**
   * What the filters show at a moment, by group, the largest first.
   *
   * @param {number} moment
   * @param {Grouping} grouping
   * @returns {Group[]}
   */
  groupsAt(moment, grouping) {
    const { timeline, filters } = this;
    /** @type {Map<number, Group>} */
    const groups = new Map();
    /** @type {(id: number, bytes: number) => void} */
    const add = (id, bytes) => {
      const key = grouping.keyOf(id);
      const group = groups.get(key) ?? { key, bytes: 0, blocks: 0, hasSmaller: false, largest: id };
      group.bytes += bytes;
      if (id < 0) {
        group.hasSmaller = true;
      } else {
        group.blocks += 1;
        if (group.largest < 0 || timeline.size[id] > timeline.size[group.largest]) group.largest = id;
      }
      groups.set(key, group);
    };
    for (const block of timeline.liveAt(moment)) if (filters.showsBlock(block)) add(block, timeline.size[block]);
    for (const [curve, bytes] of timeline.curvesAt(moment)) if (filters.showsCurve(curve)) add(idOfCurve(curve), bytes);
    return [...groups.values()].sort((one, other) => other.bytes - one.bytes);
  }

  /**
   * False if most bytes at the peak have no known category: lines of code say more then.
   *
   * @param {Grouping} category
   */
  isMostlyKnown(category) {
    const { peak, total } = this.timeline;
    const unknown = this.groupsAt(peak, category).find(({ key }) => key === this.header.unknownCategory);
    return unknown === undefined || unknown.bytes <= total[peak] / 2;
  }

  // -- colors ---------------------------------------------------------------------------------------------------------

  /** @param {Grouping} grouping */
  paletteOf(grouping) {
    const sizes = new Map(this.groupsAt(this.timeline.peak, grouping).map(({ key, bytes }) => [key, bytes]));
    for (const key of grouping.allKeys()) if (!sizes.has(key)) sizes.set(key, 0);
    const ranked = [...sizes].filter(([key]) => key !== NO_KEY).sort(([, one], [, other]) => other - one);
    return new Palette(
      grouping,
      ranked.map(([key]) => key),
      this.isDark,
    );
  }

  /** @param {boolean} isDark */
  setDark(isDark) {
    this.isDark = isDark;
    this.palette = this.palette.inMode(isDark);
  }

  /** @returns {(id: number) => import('../chart/paint.js').Paint} */
  painter() {
    const isSelected = this.selection ? (/** @type {number} */ id) => this.isSelected(id) : null;
    return this.palette.painter(this.filters, isSelected);
  }

  // -- selection ------------------------------------------------------------------------------------------------------

  /** @param {number} id */
  isSelected(id) {
    const { selection } = this;
    if (!selection) return false;
    return 'block' in selection ? selection.block === id : selection.grouping.keyOf(id) === selection.key;
  }

  /**
   * All blocks of a line of code.
   *
   * @param {number} id of one of them
   * @returns {Selection}
   */
  lineOf(id) {
    const [, line] = this.groupings;
    return { grouping: line, key: line.keyOf(id) };
  }

  // -- text -----------------------------------------------------------------------------------------------------------

  get momentText() {
    return MOMENTS[this.listed];
  }

  /** @param {number} moment */
  timeText(moment) {
    const { timeline, header } = this;
    const parts = [`event ${formatCount(moment)}`];
    if (timeline.time) parts.unshift(formatTime(timeline.time[moment]));
    const phase = timeline.phaseOf(moment);
    if (phase >= 0) {
      const { batches, names } = timeline.phases;
      parts.push(`batch ${batches[phase]}, ${header.phases[names[phase]]}`);
    }
    return parts.join(', ');
  }

  /**
   * A block, or a curve of smaller ones.
   *
   * @param {number} id
   */
  describe(id) {
    const { timeline, header } = this;
    const category = header.categories[this.groupings[0].keyOf(id)]?.label ?? '';
    if (id >= 0) {
      const kind = [category, header.tensors[timeline.tensor[id]]].filter(Boolean).join(' ');
      const path = timeline.path[id];
      return { bytes: timeline.size[id], kind, frames: header.paths[path], within: header.pathsWithin[path] };
    }
    const line = timeline.curves[curveOfId(id)];
    return { bytes: null, kind: category, frames: header.lines[line], within: header.linesWithin[line] };
  }
}
