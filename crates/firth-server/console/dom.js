// Elements, figures and tables. Data becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Replaces what a node holds, and keeps the focus on the control with the same address or name. */
export function swap(node, ...children) {
  const active = node.contains(document.activeElement) ? document.activeElement : null;
  const key = active && (active.getAttribute("data-k") || active.getAttribute("href"));
  node.replaceChildren(...children.flat(9).filter(Boolean));
  if (key) {
    const same = [...node.querySelectorAll("[data-k], a[href]")].find(
      (other) => (other.getAttribute("data-k") || other.getAttribute("href")) === key);
    if (same) same.focus({ preventScroll: true });
  }
  return node;
}

/** Draws again only if the data changed. */
export function live(node, draw) {
  let last;
  return (data) => {
    const now = JSON.stringify(data);
    if (now === last) return;
    last = now;
    swap(node, draw(data));
  };
}

export const num = (value) => value === null || value === undefined ? "–"
  : Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 || value === 0 ? num(value) : String(Math.round(value * 10) / 10);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function age(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.floor(ms / 1000), minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (seconds < 60) return `${seconds} s`;
  if (minutes < 60) return `${minutes} min ${seconds % 60} s`;
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export function when(ms) {
  const date = new Date(ms);
  const day = `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;
  return `${day} ${date.toLocaleTimeString("en-GB")}`;
}
export const plural = (count, one, many) => `${num(count)} ${Math.round(count) === 1 ? one : many || one + "s"}`;
export const cut = (text, max) => text.length > max ? `${text.slice(0, max)}…` : text;

/** A link inside the console. */
export const link = (parts, ...children) => h("a", { href: route(parts) }, ...children);
export const route = (parts, query) => {
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  const set = Object.entries(query || {}).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return set.length ? `${path}?${new URLSearchParams(set)}` : path;
};

export const pill = (kind, text) => h("span", { class: `pill ${kind || ""}` }, text);

export function figures(list) {
  return h("dl", { class: "figures" }, list.filter(Boolean).map(([name, value, extra]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, extra ? [" ", h("small", {}, extra)] : null))));
}

/** `columns` are [title, class]; a row is a list of cells. */
export function table(columns, rows, empty, caption) {
  if (!rows.length) return h("p", { class: "empty" }, empty || "Nothing here.");
  const head = h("tr", {}, columns.map(([title, kind]) => title ? h("th", { scope: "col", class: kind }, title) : h("td", { class: kind })));
  const body = rows.map((row) => row instanceof Node ? row
    : h("tr", {}, row.map((cell, at) => h("td", { class: columns[at][1] }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "Table" },
    h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}

export function card(title, body, ...actions) {
  return h("section", { class: "card" },
    title ? h("header", {}, h("h2", {}, title), actions.length ? h("div", { class: "row" }, actions) : null) : null, body);
}

/** The top of a page. */
export function head(title, crumbs, ...actions) {
  return h("div", { class: "head" },
    h("div", {}, crumbs ? h("div", { class: "crumbs" }, crumbs) : null, h("h1", {}, title)),
    h("div", { class: "row" }, actions));
}

export const button = (text, act, kind, key) => h("button", {
  type: "button", class: kind, "data-k": key || text,
  onclick: async (event) => {
    // Not disabled: that would take the focus away.
    const pressed = event.currentTarget;
    if (pressed.hasAttribute("aria-busy")) return;
    pressed.setAttribute("aria-busy", "true");
    try { await act(event); } catch (error) { failed(error); } finally { pressed.removeAttribute("aria-busy"); }
  },
}, text);

export const field = (name, control, wide) => h("label", { class: wide === true ? "wide" : wide }, name, control);
/** The number in a control, or undefined if it is empty. `what` names the control in errors. */
export function numberOf(control, what, { whole = true, least = 0 } = {}) {
  const text = control.value.trim(), value = Number(text);
  if (text === "") return undefined;
  if (!Number.isFinite(value) || value < least || (whole && !Number.isSafeInteger(value))) throw new Error(`${what}: write a ${whole ? "whole number" : "number"} from ${least} on.`);
  return value;
}

export const check = (name, control) => h("label", { class: "check" }, control, name);
export const options = (list, chosen) => list.map(([value, text]) =>
  h("option", { value, selected: String(value) === String(chosen) }, text));

export function toast(text) {
  const note = h("div", { class: "toast" }, text);
  const all = document.getElementById("toasts");
  all.append(note);
  while (all.children.length > 4) all.firstChild.remove();
  setTimeout(() => note.remove(), 6000);
}

export function failed(error) {
  if (error && error.name === "AbortError") return;
  toast(error && error.message ? error.message : String(error));
}

/** Tabs; each draws when it is chosen first. */
export function tabs(list, chosen, onchange) {
  const panel = h("div", {});
  const bar = h("div", { class: "tabs", role: "tablist" });
  const choose = (name, isFirst) => {
    for (const tab of bar.children) {
      const is = tab.dataset.name === name;
      tab.setAttribute("aria-selected", String(is));
      tab.tabIndex = is ? 0 : -1;
    }
    panel.replaceChildren(list.find((tab) => tab.name === name).draw());
    if (!isFirst && onchange) onchange(name);
  };
  for (const { name, title } of list) {
    bar.append(h("button", { type: "button", role: "tab", "data-name": name, onclick: () => choose(name) }, title));
  }
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...bar.children], at = all.indexOf(document.activeElement);
    const next = all[(at + step + all.length) % all.length];
    next.focus();
    choose(next.dataset.name);
  });
  choose(list.some((tab) => tab.name === chosen) ? chosen : list[0].name, true);
  return h("div", {}, bar, panel);
}
