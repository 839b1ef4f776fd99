/** Buttons that copy the code beside them. */

const SHOWN_MS = 1500;

/** Shows the buttons, which without a script do nothing, and lets them copy. */
export function showCopyButtons() {
  /** @type {NodeListOf<HTMLButtonElement>} */
  const buttons = document.querySelectorAll('[data-copy]');
  for (const button of buttons) {
    button.hidden = false;
    button.addEventListener('click', () => copy(button));
  }
}

/**
 * Copies the code before a button; where that is not allowed, selects it.
 *
 * @param {HTMLButtonElement} button
 */
async function copy(button) {
  const code = button.previousElementSibling;
  if (!code) return;
  try {
    await navigator.clipboard.writeText(code.textContent ?? '');
    button.textContent = 'Copied';
  } catch {
    getSelection()?.selectAllChildren(code);
    button.textContent = 'Selected';
  }
  setTimeout(() => (button.textContent = 'Copy'), SHOWN_MS);
}
