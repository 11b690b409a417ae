// A message as people read it: JSON as a tree, text, or hex; headers; the call that sends it again.

import { bytes, cut, h, plural, toast, when } from "./dom.js";
import { show } from "./dialog.js";
import { isExact, parse } from "./json.js";

const SHOWN = 64 * 1024;
const HEX = 4096;
const CHILDREN = 100;
const PARSE = 2 * 1024 * 1024;

const decode = (base64) => Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));

/** The payload as text, or null if it is no text. */
export function textOf(record) {
  if (record.json !== undefined) return JSON.stringify(record.json);
  return record.payload !== undefined ? record.payload : null;
}
export function bytesOf(record) {
  const text = textOf(record);
  return text === null ? decode(record.payload_base64 || "") : new TextEncoder().encode(text);
}
export function sizeOf(record) {
  const text = textOf(record);
  return text === null ? Math.floor((record.payload_base64 || "").replace(/=+$/, "").length * 3 / 4) : new Blob([text]).size;
}
export const keyOf = (record) => record.key !== undefined ? record.key : record.key_base64 !== undefined ? `base64 ${record.key_base64}` : "";
export function previewOf(record) {
  const text = textOf(record);
  return text === null ? `${bytes(sizeOf(record))} of binary data` : cut(text, 240);
}

function valueOf(record) {
  if (record.json !== undefined) return { json: record.json };
  const text = record.payload;
  if (text === undefined || text.length > PARSE || !/^\s*[[{]/.test(text)) return null;
  try { return { json: parse(text) }; } catch { return null; }
}

/** A node of the tree; children are made when it is opened. */
function branch(key, value, open) {
  const name = key === null ? null : [h("span", { class: "k" }, typeof key === "number" ? String(key) : JSON.stringify(key)), ": "];
  if (value === null || typeof value !== "object" || isExact(value)) {
    const kind = typeof value === "string" ? "s" : "n";
    return h("div", { class: "leaf" }, name, h("span", { class: kind }, cut(JSON.stringify(value), SHOWN)));
  }
  const isList = Array.isArray(value);
  const keys = isList ? null : Object.keys(value);
  const count = isList ? value.length : keys.length;
  const inside = h("div", {});
  let made = 0;
  const more = () => {
    const until = Math.min(count, made + CHILDREN);
    for (; made < until; made += 1) inside.append(isList ? branch(made, value[made]) : branch(keys[made], value[keys[made]]));
    if (made < count) {
      const next = h("button", { type: "button", class: "small", onclick: () => { next.remove(); more(); } }, `Show more of ${count}`);
      inside.append(next);
    }
  };
  const node = h("details", {}, h("summary", {}, name, h("span", { class: "muted" }, isList ? `[ ${plural(count, "item")} ]` : `{ ${plural(count, "field")} }`)), inside);
  node.addEventListener("toggle", () => { if (node.open && made === 0) more(); });
  if (open && count) { more(); node.open = true; }
  return node;
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX); at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const left = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const right = row.map((byte) => byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".").join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}`);
  }
  if (data.length > HEX) lines.push(`… ${bytes(data.length - HEX)} more`);
  return lines.join("\n");
}

function text(whole) {
  const pre = h("pre", { tabindex: "0", "aria-label": "Payload as text" }, whole.slice(0, SHOWN));
  if (whole.length <= SHOWN) return pre;
  const all = h("button", { type: "button", class: "small", onclick: () => { pre.textContent = whole; all.remove(); } }, `Show all ${bytes(whole.length)}`);
  return h("div", { class: "stack" }, pre, h("div", {}, all));
}

/** The message that sends a record again. */
export function messageOf(record) {
  const message = {};
  for (const name of ["key", "key_base64", "payload", "payload_base64", "json"]) {
    if (record[name] !== undefined) message[name] = record[name];
  }
  const headers = { ...(record.headers || {}) };
  if (record.json !== undefined) delete headers["content-type"];
  if (Object.keys(headers).length) message.headers = headers;
  return message;
}

const quoted = (value) => `'${value.replaceAll("'", "'\\''")}'`;
export function curlOf(record) {
  const url = `${location.origin}/v1/topics/${encodeURIComponent(record.topic)}/records`;
  return `curl -X POST ${quoted(url)} -H 'Content-Type: application/json' -d ${quoted(JSON.stringify(messageOf(record)))}`;
}

export async function copy(value, title) {
  try {
    await navigator.clipboard.writeText(value);
    toast(`${title} copied`);
  } catch {
    await show(title, value);
  }
}

/** Everything about a record; `more` stands before its headers. */
export function viewer(record, facts, actions, more) {
  const parsed = valueOf(record), plain = textOf(record), panel = h("div", {});
  const ways = [
    parsed && ["JSON", () => h("div", { class: "tree", tabindex: "0", role: "group", "aria-label": "Payload as JSON" }, branch(null, parsed.json, true))],
    plain !== null && ["Text", () => text(plain)],
    ["Hex", () => h("pre", { class: "hex", tabindex: "0", "aria-label": "Payload as hex" }, hex(bytesOf(record)))],
  ].filter(Boolean);
  const buttons = ways.map(([name, draw], at) => h("button", {
    type: "button", "aria-pressed": String(at === 0),
    onclick: () => { buttons.forEach((other, one) => other.setAttribute("aria-pressed", String(one === at))); panel.replaceChildren(draw()); },
  }, name));
  panel.append(ways[0][1]());
  const headers = Object.entries(record.headers || {}).flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: "mono" }, [value].flat().join(", "))]);
  return h("div", { class: "viewer" },
    h("dl", {}, [...(facts || []), ["Record", [record.topic, record.partition, record.id].filter((part) => part !== undefined).join(" / ")], record.sent_ms !== undefined && ["Sent", when(record.sent_ms)],
      keyOf(record) !== "" && ["Key", keyOf(record)], ["Size", bytes(sizeOf(record))]].filter(Boolean)
      .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    more, headers.length ? h("div", { class: "stack" }, h("h3", {}, "Headers"), h("dl", {}, headers)) : null,
    h("div", { class: "row" }, h("div", { class: "seg", role: "group", "aria-label": "Show the payload as" }, buttons),
      h("button", { type: "button", class: "small", onclick: () => copy(plain === null ? record.payload_base64 : plain, "Payload") }, "Copy payload"),
      h("button", { type: "button", class: "small", onclick: () => copy(curlOf(record), "curl command") }, "Copy as curl"), actions),
    panel);
}

/** Table rows that open below themselves. */
export function openable(cells, columns, inside) {
  let opened = null;
  const toggle = h("button", { type: "button", class: "linklike", "aria-expanded": "false" }, cells[0]);
  const row = h("tr", {}, h("td", { class: columns[0][1] }, toggle), cells.slice(1).map((cell, at) => h("td", { class: columns[at + 1][1] }, cell)));
  toggle.addEventListener("click", () => {
    if (opened) { opened.remove(); opened = null; } else {
      opened = h("tr", {}, h("td", { class: "inside", colspan: columns.length }, inside()));
      row.after(opened);
    }
    row.classList.toggle("open", opened !== null);
    toggle.setAttribute("aria-expanded", String(opened !== null));
  });
  return row;
}
