/** The span of time that is in view, in microseconds. */
export class Span {
  /**
   * @param {number} end of all calls
   * @param {number} least width
   */
  constructor(end, least) {
    this.end = end;
    this.least = least;
    this.from = 0;
    this.to = 0;
    this.showAll();
  }

  get width() {
    return this.to - this.from;
  }

  showAll() {
    this.show(0, this.end);
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    const middle = (from + to) / 2;
    const half = Math.max(to - from, this.least) / 2;
    this.from = Math.max(middle - half, 0);
    this.to = Math.min(middle + half, Math.max(this.end, this.least));
  }

  /**
   * @param {number} factor below 1 zooms in
   * @param {number} [at] the time that stays where it is
   */
  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  /** @param {number} by in microseconds */
  move(by) {
    const shift = Math.min(Math.max(by, -this.from), this.end - this.to);
    this.show(this.from + shift, this.to + shift);
  }
}
