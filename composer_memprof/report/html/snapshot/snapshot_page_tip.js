'use strict';
// What floats beside the pointer, or beside what the keyboard is at, and tells what is there.

class Tip {
  constructor(stage) {
    this.stage = stage;
    this.box = stage.querySelector('.tip');
  }

  // Beside the pointer.
  showAt(event, lines) {
    const { left, top } = this.stage.getBoundingClientRect();
    this.show(lines, event.clientX - left, event.clientY - top);
  }

  hide() {
    this.box.hidden = true;
  }

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
