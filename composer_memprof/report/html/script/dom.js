/** Elements of the page. */

/**
 * The element with an id.
 *
 * @template {Element} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page has no ${type.name} #${id}`);
  return found;
}

/**
 * A new element. Text from a recording must only enter the page here, as `textContent` or a child: both are plain text.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Partial<HTMLElementTagNameMap[Tag]>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/**
 * @param {string} label
 * @param {() => void} onclick
 */
export function makeButton(label, onclick) {
  return make('button', { type: 'button', textContent: label, onclick });
}

/** @param {HTMLCanvasElement} canvas */
export function context2d(canvas) {
  const context = canvas.getContext('2d');
  if (!context) throw new Error('this browser has no 2D canvas');
  return context;
}

/** @returns {(name: string) => string} reads a color of the style sheet, light or dark */
export function themeColors() {
  const style = getComputedStyle(document.body);
  return (name) => style.getPropertyValue(`--${name}`);
}
