/** The box beside the pointer, or beside what the keyboard is at. */
export class Tooltip {
  /** @param {HTMLElement} stage what the box is placed in; has an element of class `tip` */
  constructor(stage) {
    this.stage = stage;
    const box = stage.querySelector('.tip');
    if (!(box instanceof HTMLElement)) throw new Error('the page has no tooltip here');
    this.box = box;
  }

  /**
   * @param {MouseEvent} event
   * @param {(Node | string)[]} lines
   */
  showAtPointer(event, lines) {
    const { left, top } = this.stage.getBoundingClientRect();
    this.show(lines, event.clientX - left, event.clientY - top);
  }

  hide() {
    this.box.hidden = true;
  }

  /**
   * @param {(Node | string)[]} lines
   * @param {number} x in the stage
   * @param {number} y in the stage
   */
  show(lines, x, y) {
    const { box, stage } = this;
    box.hidden = false;
    box.replaceChildren(...lines);
    const isRight = x > stage.clientWidth / 2;
    box.style.left = isRight ? 'auto' : `${Math.max(x + 14, 0)}px`;
    box.style.right = isRight ? `${Math.max(stage.clientWidth - x + 14, 0)}px` : 'auto';
    // Above, where there is no room below.
    const isLow = stage.getBoundingClientRect().top + y + box.offsetHeight + 16 > innerHeight;
    box.style.top = `${isLow ? Math.max(y - box.offsetHeight - 12, -box.offsetHeight) : y + 4}px`;
  }
}
