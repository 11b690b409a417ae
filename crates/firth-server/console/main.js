// The frame around the pages: addresses, navigation, the token, and the clock of all updates.

import { askWith, forgetToken, hasToken, known, learn } from "./api.js";
import { form } from "./dialog.js";
import { button, failed, h, head, pill, swap } from "./dom.js";
import { claims, service } from "./claims.js";
import { dead, deadTopic } from "./dead.js";
import { group } from "./group.js";
import { groups } from "./groups.js";
import { overview } from "./overview.js";
import { routing } from "./routing.js";
import { source, sources } from "./sources.js";
import { topic } from "./topic.js";
import { topics } from "./topics.js";
import { tryIt } from "./try.js";

const EVERY = 2000;
const PAGES = [
  { path: [], title: "Overview", draw: overview },
  { path: ["topics"], title: "Topics", draw: topics },
  { path: ["topics", ":topic"], draw: topic },
  { path: ["groups"], title: "Groups", draw: groups },
  { path: ["groups", ":topic", ":group"], draw: group },
  { path: ["dead"], title: "Dead letters", draw: dead },
  { path: ["dead", ":topic"], draw: deadTopic },
  { path: ["claims"], title: "Claims", draw: claims },
  { path: ["claims", ":service"], draw: service },
  { path: ["routing"], title: "Routing", draw: routing },
  { path: ["sources"], title: "Sources", draw: sources },
  { path: ["sources", ":source"], draw: source },
  { path: ["try"], title: "Try it", draw: tryIt },
];

const main = document.getElementById("main");
let leaving = new AbortController();
let updates = [];

askWith(async (wasWrong) => {
  const input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", name: "token" });
  let given = "";
  await form({
    title: "This server asks for a token", action: "Continue", cancel: null,
    body: h("div", { class: "stack" },
      h("p", { class: "note" }, wasWrong ? "The server does not know this token." : "`firth token` makes one. This tab keeps it until it is closed."),
      h("label", {}, "Token", input)),
    act: () => {
      given = input.value.trim();
      if (!given) throw new Error("Enter a token.");
    },
  });
  return given;
});

function match(parts) {
  for (const page of PAGES) {
    if (page.path.length !== parts.length) continue;
    const params = {};
    const fits = page.path.every((want, at) => {
      if (!want.startsWith(":")) return want === parts[at];
      params[want.slice(1)] = parts[at];
      return true;
    });
    if (fits) return { page, params };
  }
  return null;
}

function address() {
  const [path, query] = (location.hash.replace(/^#/, "") || "/").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { parts, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

function drawNav(parts) {
  const first = parts[0] || "";
  swap(document.getElementById("nav"), PAGES.filter((page) => page.title).map((page) => h("a", {
    href: `#/${page.path.join("/")}`, "aria-current": (page.path[0] || "") === first ? "page" : null,
  }, page.title)));
  showHere();
}

/** On a narrow screen the pages stand in a row that is wider than the screen. */
function showHere() {
  const nav = document.getElementById("nav"), here = nav.querySelector("[aria-current]");
  if (here) nav.scrollLeft = here.offsetLeft - nav.offsetLeft - (nav.clientWidth - here.offsetWidth) / 2;
}

function drawAbout() {
  const about = known();
  swap(document.getElementById("about"), h("span", {}, `firth ${about.version || ""}`),
    h("span", {}, about.caller ? `token ${about.caller}` : `${about.engine || ""} engine`),
    hasToken() ? button("Forget token", () => { forgetToken(); location.reload(); }, "small") : null);
}

/** Shows the page of the address. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  updates = [];
  const { parts, query } = address(), signal = leaving.signal;
  const found = match(parts);
  drawNav(parts);
  window.scrollTo(0, 0);
  if (!found) {
    document.title = "firth";
    swap(main, head("There is no such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview")));
    return;
  }
  document.title = `${found.page.title || parts.at(-1)} · firth`;
  const context = {
    params: found.params, query, signal,
    /** Calls this now and on every tick while the page is seen. */
    every: async (update) => {
      const entry = { update, running: true };
      updates.push(entry);
      try { await update(); } finally { entry.running = false; }
    },
    again: () => show(),
  };
  try {
    const drawn = await found.page.draw(context);
    if (!signal.aborted) swap(main, drawn);
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    swap(main, head(found.page.title || parts.at(-1), null, button("Try again", show)),
      h("div", { class: "card" }, h("div", { class: "body" }, pill("bad", "Problem"), " ", error.message)));
  }
}

async function tick() {
  if (document.visibilityState !== "visible") return;
  for (const entry of updates) {
    if (entry.running) continue;
    entry.running = true;
    const signal = leaving.signal;
    entry.update().then(() => online(true), (error) => {
      if (signal.aborted || error.name === "AbortError") return;
      if (error.status === 0) online(false);
      // It was deleted meanwhile: show that instead of figures that stand still.
      else if (error.status === 404) show();
      else failed(error);
    }).finally(() => { entry.running = false; });
  }
}

/** Says once that the server is away, and takes it back when it answers. */
function online(is) {
  let note = document.getElementById("offline");
  if (is && note) note.remove();
  if (!is && !note) {
    note = h("div", { id: "offline", class: "card", role: "alert" },
      h("div", { class: "body" }, pill("bad", "No answer"), " The server does not answer. The figures below are old."));
    main.prepend(note);
  }
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => {
  // A dialog belongs to the page that opened it.
  for (const box of document.querySelectorAll("dialog[open]")) box.close();
  show().then(() => main.focus({ preventScroll: true }));
});
addEventListener("resize", showHere);
document.addEventListener("visibilitychange", tick);
setInterval(tick, EVERY);

learn().then(() => { drawAbout(); return show(); }, async (error) => {
  swap(main, head("firth"), h("p", { class: "error" }, error.message));
});
