import { make, makeButton } from '../../script/dom.js';
import { listenToKeys } from '../../script/keyboard.js';
import { fromAddress, toAddress } from './address.js';
import { TreeCursor } from './tree.js';

const TREE_KEYS = {
  ArrowLeft: 'larger',
  ArrowUp: 'larger',
  ArrowRight: 'smaller',
  ArrowDown: 'smaller',
  Enter: 'enter',
  ' ': 'enter',
  Escape: 'leave',
  Backspace: 'leave',
};

/**
 * A treemap that the keyboard zooms: arrows mark a part, Enter opens it, Escape goes back. Above it is the path to the
 * part that fills the picture, as buttons.
 *
 * @param {any} chart plotly's element, drawn
 * @param {any} plotly
 * @param {string} key of the part that fills the picture, in the address
 * @returns {() => void} draws the mark and the level again, on a chart that was drawn anew
 */
export function makeTreemapUsable(chart, plotly, key) {
  const cursor = new TreeCursor(chart.data[0]);
  const whole = cursor.level;
  cursor.go(fromAddress(key));
  const path = make('nav', { className: 'path', ariaLabel: 'path to the part that is shown' });
  const words = make('p', { className: 'hint' });
  words.setAttribute('role', 'status');
  chart.before(path);
  chart.after(words);
  chart.tabIndex = 0;
  chart.setAttribute('role', 'group');

  const draw = () => {
    const { ids } = chart.data[0];
    const color = getComputedStyle(chart).color;
    const width = ids.map((/** @type {string} */ id) => (id === cursor.marked ? 4 : 0));
    plotly.restyle(chart, { level: [cursor.level], 'marker.line.width': [width], 'marker.line.color': [color] });
    show();
  };
  const show = () => {
    words.textContent = cursor.words();
    toAddress(key, cursor.level === whole ? '' : cursor.level);
    const buttons = cursor.path().map((id) => {
      const button = makeButton(cursor.labelOf(id), () => {
        cursor.go(id);
        draw();
        chart.focus();
      });
      if (id === cursor.level) button.setAttribute('aria-current', 'true');
      return button;
    });
    path.replaceChildren(...buttons);
  };
  const commands = {
    larger: () => cursor.move(-1),
    smaller: () => cursor.move(1),
    enter: () => cursor.enter(),
    leave: () => cursor.leave(),
  };
  listenToKeys(chart, TREE_KEYS, () =>
    Object.fromEntries(
      Object.entries(commands).map(([name, run]) => [
        name,
        () => {
          run();
          draw();
        },
      ]),
    ),
  );
  chart.on('plotly_treemapclick', (/** @type {any} */ event) => {
    cursor.go(event.nextLevel ?? '');
    show();
  });
  if (cursor.level === whole) show();
  else draw();
  return draw;
}
