/** Simple Markdown as nodes: code, lists, headings, bold. Everything else stays text. */

import { copyButton } from "./clipboard.js";
import { el, setText } from "./dom.js";
import { clean, cleanProse } from "./format.js";

const INLINE = /`([^`\n]{1,300})`|\*\*([^*\n]{1,300})\*\*/g;
const INLINE_LIMIT = 20_000; // longer blocks are plain text
const FENCE = /^\s{0,3}(```+|~~~+)\s*([^`]*)$/;
const ITEM = /^(\s{0,12})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^(#{1,6})\s+(.*)$/;

/**
 * @typedef {{kind: "code", language: string, text: string} | {kind: "heading" | "paragraph", text: string}
 *   | {kind: "list", ordered: boolean, items: {depth: number, number: number | null, text: string}[]}} Block
 */

/** @param {string} text @returns {Block[]} an open code block ends with the text */
export function blocksOf(text) {
  const blocks = [];
  let open = null;
  let fence = null;
  for (const line of text.split("\n")) {
    if (fence !== null) {
      if (line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "") fence = open = null;
      else open.text += `${line}\n`;
      continue;
    }
    const [, mark, language] = line.match(FENCE) ?? [];
    const [, indent, bullet, item] = mark ? [] : (line.match(ITEM) ?? []);
    const [, , heading] = bullet ? [] : (line.match(HEADING) ?? []);
    if (mark) {
      fence = mark.slice(0, 3);
      blocks.push((open = { kind: "code", language: language.trim(), text: "" }));
    } else if (bullet) {
      const ordered = /\d/.test(bullet);
      if (open?.kind !== "list" || (indent === "" && open.ordered !== ordered)) {
        blocks.push((open = { kind: "list", ordered, items: [] }));
      }
      const number = ordered ? Number.parseInt(bullet, 10) : null;
      open.items.push({ depth: Math.min(4, Math.floor(indent.length / 2)), number, text: item });
    } else if (heading !== undefined) {
      blocks.push({ kind: "heading", text: heading });
      open = null;
    } else if (line.trim() === "") {
      if (open?.kind !== "list") open = null;
    } else if (open?.kind === "list" && /^\s+/.test(line)) {
      open.items.at(-1).text += `\n${line.trim()}`;
    } else if (open?.kind === "paragraph") {
      open.text += `\n${line}`;
    } else blocks.push((open = { kind: "paragraph", text: line }));
  }
  return blocks;
}

/** Make `parent` show `text`; blocks that have not changed are not touched. */
export function renderMarkdown(parent, text) {
  const known = (parent.blocks ??= []);
  const blocks = blocksOf(text);
  blocks.forEach((block, index) => {
    const source = JSON.stringify(block);
    if (known[index]?.source === source) return;
    if (block.kind === "code" && known[index]?.kind === "code") {
      setText(known[index].code, cleanProse(block.text)); // it grows: its node stays
      setText(known[index].language, languageOf(block));
      known[index].source = source;
      return;
    }
    const made = { kind: block.kind, source, ...nodeOf(block) };
    if (known[index]) known[index].node.replaceWith(made.node);
    else parent.append(made.node);
    known[index] = made;
  });
  for (const { node } of known.splice(blocks.length)) node.remove();
}

/** @param {Block} block */
function nodeOf(block) {
  if (block.kind === "code") return codeBlock(block);
  if (block.kind === "heading") return { node: el("p", { class: "heading", dir: "auto" }, ...inline(block.text)) };
  if (block.kind === "paragraph") return { node: el("p", { dir: "auto" }, ...inline(block.text)) };
  const items = block.items.map(({ depth, number, text }) => {
    return el("li", { "data-depth": depth, "data-bullet": number === null, value: number, dir: "auto" }, ...inline(text));
  });
  return { node: el(block.ordered ? "ol" : "ul", {}, ...items) };
}

const languageOf = (block) => clean(block.language, 30) || "code";
function codeBlock(block) {
  const [code, language] = [el("code", {}, cleanProse(block.text)), el("span", {}, languageOf(block))];
  const copy = copyButton(() => code.textContent, "Copy the code");
  const head = el("div", { class: "code-head" }, language, copy);
  const pre = el("pre", { tabindex: "0", "aria-label": "code", role: "region" }, code);
  return { node: el("div", { class: "code" }, head, pre), code, language };
}

function inline(text) {
  if (text.length > INLINE_LIMIT) return [cleanProse(text)];
  const nodes = [];
  let end = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > end) nodes.push(cleanProse(text.slice(end, found.index)));
    nodes.push(found[1] === undefined ? el("strong", {}, cleanProse(found[2])) : el("code", {}, cleanProse(found[1])));
    end = found.index + found[0].length;
  }
  if (end < text.length) nodes.push(cleanProse(text.slice(end)));
  return nodes;
}
