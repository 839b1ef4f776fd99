import { parseBytes } from '../../../script/format.js';

/** @import { Recording } from '../types.d.ts' */
/** @import { Timeline } from './timeline.js' */
/** @import { FrameText } from './frames.js' */

/** The blocks that are shown: by size, and by text in their stack. */
export class Filters {
  /**
   * @param {Recording} recording
   * @param {Timeline} timeline
   * @param {FrameText} frames
   */
  constructor(recording, timeline, frames) {
    this.recording = recording;
    this.timeline = timeline;
    this.frames = frames;
    this.smallest = 0;
    /** @type {boolean[] | null} of each stack */
    this.found = null;
    /** @type {Set<number>} */
    this.foundLines = new Set();
  }

  clear() {
    this.smallest = 0;
    this.found = null;
  }

  get isActive() {
    return this.smallest > 0 || this.found !== null;
  }

  /**
   * @param {string} text such as `512 KiB`
   * @returns {boolean} false if that is no size; all sizes are shown then
   */
  setSmallest(text) {
    const bytes = parseBytes(text);
    this.smallest = bytes || 0;
    return !Number.isNaN(bytes);
  }

  /** @param {string} text part of a file or function, in any case */
  setText(text) {
    const wanted = text.trim().toLowerCase();
    this.found = null;
    if (!wanted) return;
    const matches = this.frames.matches(wanted);
    const found = this.recording.header.stacks.map((stack) => stack.some((frame) => matches[frame]));
    this.found = found;
    this.foundLines = new Set([...this.recording.columns.lineOfStack].filter((_, stack) => found[stack]));
  }

  /** @param {number} block */
  showsBlock(block) {
    return this.timeline.size[block] >= this.smallest && (!this.found || this.found[this.timeline.stack[block]]);
  }

  /** @param {number} curve */
  showsCurve(curve) {
    const line = this.timeline.curves[curve];
    return this.smallest === 0 && (!this.found || (line !== undefined && this.foundLines.has(line)));
  }
}
