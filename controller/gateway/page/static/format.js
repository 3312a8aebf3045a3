/** Numbers, sizes, times and foreign text as the page shows them. */

const GIB = 1024 ** 3;
const integers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const UNSAFE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const UNSAFE_IN_PROSE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb]/g;
/** A character without a glyph, or one that reorders text, as `\u{202e}`. */
const escaped = (character) => `\\u{${character.codePointAt(0).toString(16).padStart(4, "0")}}`;
/** Foreign text on one line: cut to `limit` UTF-16 units, and without characters that hide or reorder others. */
export function clean(text, limit = 80) {
  const shown = String(text ?? "").slice(0, limit + 1).replace(UNSAFE, escaped);
  return (shown.length > limit ? `${shown.slice(0, limit - 1)}…` : shown).toWellFormed();
}
/** Foreign text with lines and tabs, whole; languages written from right to left stay as they are. */
export const cleanProse = (text) => text.toWellFormed().replace(UNSAFE_IN_PROSE, escaped);
/** A model without its owner or folder. */
export const shortModel = (name) => String(name ?? "–").slice(-300).split("/").filter(Boolean).at(-1) ?? "–";
export const count = (number) => (Number.isFinite(number) ? integers.format(number) : "–");
/** One decimal below 100. */
export function rate(number) {
  if (!Number.isFinite(number)) return "–";
  return number >= 100 || number === 0 ? integers.format(number) : number.toFixed(1);
}
/** Memory in GB of 1024^3 bytes, as Macs are sold. */
export function bytes(number) {
  if (!Number.isFinite(number)) return "–";
  if (number < GIB / 10) return `${integers.format(number / 1024 ** 2)} MB`;
  return `${number >= 100 * GIB ? integers.format(number / GIB) : (number / GIB).toFixed(1)} GB`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  const rest = Math.floor(seconds % 60);
  if (minutes < 60) return `${minutes} min${rest ? ` ${rest} s` : ""}`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const percent = (share) => (Number.isFinite(share) ? `${Math.floor(share * 100)} %` : "–");
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dateAndClock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
/** @param {number} time seconds since 1970 */
export const timeOfDay = (time) => (Number.isFinite(time) ? clock.format(time * 1000) : "–");
export const dateAndTime = (time) => (Number.isFinite(time) ? dateAndClock.format(time * 1000) : "–");
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
/** A key that sorts `mac-10` after `mac-9`. */
export const natural = (text) =>
  String(text).slice(0, 200).toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, "0"));
