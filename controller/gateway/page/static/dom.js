/** Elements without markup in strings: whatever text is given stays text. */

const SVG = "http://www.w3.org/2000/svg";
/** Of `properties`, `on` has listeners by event; an attribute that is null, undefined or false is left out. */
export function el(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}
function build(node, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}
/** One for each class. */
export const spans = (...kinds) => kinds.map((kind) => el("span", { class: kind }));
/** What an empty view says: a title, what to do, and the command for it. */
export const emptyState = (title, text, command = null, ...more) =>
  el("div", { class: "empty", hidden: true }, el("h2", {}, title), el("p", {}, text), command && el("pre", {}, command), ...more);

/** Set what differs only: the browser lays out again whatever is touched. */
export function setAttribute(node, name, value) {
  const text = value === true ? "" : value;
  if (text === null || text === undefined || text === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(text)) node.setAttribute(name, text);
}
export function setText(node, text) {
  const only = node.firstChild;
  if (only === null) {
    if (text !== "") node.append(text);
  } else if (only.data !== text) only.data = text;
}
export const setHidden = (node, hidden) => setAttribute(node, "hidden", Boolean(hidden));
/** A custom property, which style.css turns into a width or a place. */
export function setVariable(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/**
 * Make the children of `parent` those of `items`, in their order; nodes stay with their keys.
 * @template T
 * @type {(parent: Element, items: T[], keyOf: (item: T) => string, create: (item: T) => import("./cells.js").Part) => void}
 */
export function keyed(parent, items, keyOf, create) {
  const parts = (parent.parts ??= new Map());
  const keys = new Set(items.map(keyOf));
  for (const [key, part] of parts) {
    if (keys.has(key)) continue;
    part.node.remove();
    parts.delete(key);
  }
  let next = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let part = parts.get(key);
    if (part === undefined) parts.set(key, (part = create(item)));
    part.update(item);
    if (part.node === next) next = next.nextSibling;
    else parent.insertBefore(part.node, next);
  }
}

/** Call `render` in the next frame, once however often it was asked for, and never while hidden. */
export function inFrames(render) {
  let asked = false;
  const perform = () => {
    asked = false;
    if (!document.hidden) render();
  };
  const request = () => {
    if (asked || document.hidden) return;
    asked = true;
    requestAnimationFrame(perform);
  };
  document.addEventListener("visibilitychange", request);
  return request;
}
