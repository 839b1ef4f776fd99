/** A treemap's parts, and where the keyboard is in it. */

/** @typedef {{ids: string[], labels: string[], parents: string[], values: number[], customdata: string[][]}} Parts */

/** The part that fills the picture, and the one inside it that is marked. */
export class TreeCursor {
  /** @param {Parts} parts as plotly's trace has them */
  constructor(parts) {
    this.parts = parts;
    /** @type {Map<string, number>} */
    this.places = new Map(parts.ids.map((id, place) => [id, place]));
    this.level = parts.ids[parts.parents.indexOf('')] ?? '';
    /** @type {string | null} */
    this.marked = null;
  }

  /**
   * The parts directly inside of one, the largest first.
   *
   * @param {string} id
   * @returns {string[]}
   */
  inside(id) {
    const { ids, parents, values } = this.parts;
    const found = [...ids.keys()].filter((place) => parents[place] === id && values[place] > 0);
    return found.sort((one, other) => values[other] - values[one]).map((place) => ids[place]);
  }

  /** @returns {string[]} from the whole to the part that fills the picture */
  path() {
    const found = [];
    for (let id = this.level; id; id = this.parts.parents[this.placeOf(id)]) found.unshift(id);
    return found;
  }

  /** @param {number} step 1 for the next smaller part, -1 for the next larger one; around the ends */
  move(step) {
    const parts = this.inside(this.level);
    if (!parts.length) return;
    const place = this.marked === null ? -1 : parts.indexOf(this.marked);
    const next = place < 0 ? (step > 0 ? 0 : parts.length - 1) : (place + step + parts.length) % parts.length;
    this.marked = parts[next];
  }

  /** Fill the picture with the marked part, if it has parts of its own. */
  enter() {
    if (this.marked === null || !this.inside(this.marked).length) return;
    this.go(this.marked);
  }

  /** Back to the part around this one, with this one marked. */
  leave() {
    const outer = this.parts.parents[this.placeOf(this.level)];
    if (!outer) return;
    const left = this.level;
    this.go(outer);
    this.marked = left;
  }

  /** @param {string} level */
  go(level) {
    if (!this.places.has(level)) return;
    this.level = level;
    this.marked = null;
  }

  /** @param {string} id */
  labelOf(id) {
    return this.parts.labels[this.placeOf(id)];
  }

  /** @returns {string} the marked part in words; empty if none is */
  words() {
    if (this.marked === null) return '';
    const [name, amount] = this.parts.customdata[this.placeOf(this.marked)];
    const parts = this.inside(this.level);
    const opens = this.inside(this.marked).length ? ' Enter opens it.' : '';
    return `${name}: ${amount}, part ${parts.indexOf(this.marked) + 1} of ${parts.length}.${opens}`;
  }

  /** @param {string} id */
  placeOf(id) {
    return this.places.get(id) ?? -1;
  }
}
