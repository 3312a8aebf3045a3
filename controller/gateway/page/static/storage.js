/** What the browser stores; one that stores nothing works as well. */

/** @param {"localStorage" | "sessionStorage"} area @returns {any} null without one */
export function read(area, name) {
  try {
    return JSON.parse(window[area].getItem(name));
  } catch {
    return null;
  }
}

/** @param {any} value null removes it */
export function write(area, name, value) {
  try {
    if (value === null) window[area].removeItem(name);
    else window[area].setItem(name, JSON.stringify(value));
  } catch (error) {
    console.warn(`${name} is not stored: ${error.name}`); // too large, or storage is off
  }
}
