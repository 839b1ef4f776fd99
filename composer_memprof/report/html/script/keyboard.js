/** Keys of each part of a page, and the commands they stand for. */

/** @typedef {Readonly<Record<string, string>>} KeyMap */

/** @type {KeyMap} */
export const CHART_KEYS = {
  ArrowLeft: 'left',
  ArrowRight: 'right',
  '+': 'zoomIn',
  '=': 'zoomIn',
  '-': 'zoomOut',
  0: 'showAll',
  Escape: 'clear',
};

/** @type {KeyMap} */
export const FLAME_KEYS = {
  ...CHART_KEYS,
  ArrowUp: 'up',
  ArrowDown: 'down',
  Home: 'first',
  Enter: 'select',
  ' ': 'select',
};

/** @type {KeyMap} */
export const SEGMENT_KEYS = {
  ArrowLeft: 'left',
  ArrowRight: 'right',
  ArrowUp: 'up',
  ArrowDown: 'down',
  Enter: 'select',
  ' ': 'select',
  '+': 'zoomIn',
  '=': 'zoomIn',
  '-': 'zoomOut',
  Escape: 'clear',
};

/**
 * The command of a key, or undefined. Keys with a modifier are the browser's.
 *
 * @param {Pick<KeyboardEvent, 'key' | 'ctrlKey' | 'metaKey' | 'altKey'>} event
 * @param {KeyMap} keys
 * @returns {string | undefined}
 */
export function commandOf(event, keys) {
  if (event.ctrlKey || event.metaKey || event.altKey) return undefined;
  return Object.hasOwn(keys, event.key) ? keys[event.key] : undefined;
}

/**
 * Run the command of each key pressed in `target`.
 *
 * @param {HTMLElement} target
 * @param {KeyMap} keys
 * @param {(event: KeyboardEvent) => Record<string, () => void> | null} commands by name; null where there are none
 */
export function listenToKeys(target, keys, commands) {
  target.addEventListener('keydown', (event) => {
    const command = commandOf(event, keys);
    const run = command && commands(event)?.[command];
    if (!run) return;
    event.preventDefault();
    run();
  });
}
