/** What the reader chose, kept in the address: a link to the page shows what its sender saw. */

function chosen() {
  return new URLSearchParams(location.hash.slice(1));
}

/**
 * @param {string} key a section's id and the name of one of its controls
 * @returns {string} empty if nothing was chosen
 */
export function fromAddress(key) {
  return chosen().get(key) ?? '';
}

/**
 * @param {string} key
 * @param {string} value empty to forget it
 */
export function toAddress(key, value) {
  const all = chosen();
  if (value) all.set(key, value);
  else all.delete(key);
  history.replaceState(null, '', `${location.pathname}${location.search}${all.size ? `#${all}` : ''}`);
}
