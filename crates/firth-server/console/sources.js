// Sources: databases and other programs whose changes become events, and what operators do to them.

import { del, get, may, post, query } from "./api.js";
import { confirmLoss, form } from "./dialog.js";
import { age, button, bytes, card, check, field, figures, h, head, link, live, num, pill, plural, table, toast, when } from "./dom.js";

const KINDS = { streaming: "ok", done: "ok", starting: "warn", retrying: "warn", waiting: "warn", removing: "warn", failed: "bad", lost: "bad" };
export const stateOf = (one) => pill(KINDS[one.state] || "", one.state);
const sourcePath = (name, rest) => `/v1/sources/${encodeURIComponent(name)}${rest || ""}`;
/** What a webhook takes is in the topic at once: it has no log and nothing to copy. */
const isDatabase = (one) => one.kind !== "webhook";

/** What an operator should look at, in words; nothing if all is well. */
export function troubleOf(one) {
  if (one.state === "lost" || one.state === "failed") return { kind: "bad", text: `${one.name} is ${one.state}: ${one.reason || "its reader gave no reason"}` };
  if (one.state === "retrying" || one.state === "waiting") return { kind: "warn", text: `${one.name} is ${one.state}: ${one.reason || "its reader gave no reason"}` };
  if (one.state === "paused" && isDatabase(one)) return { kind: "warn", text: `${one.name} is paused, and its database keeps its log meanwhile.` };
  if (one.warning) return { kind: "warn", text: `${one.name}: ${one.warning}` };
  if ((one.lag_ms || 0) > 60_000) return { kind: "warn", text: `${one.name} is ${age(one.lag_ms)} behind its database.` };
  return null;
}

export async function sources(context) {
  if (!may("observe")) return [head("Sources"), h("p", { class: "note" }, "This token lacks the scope observe.")];
  const list = h("div", {});
  const draw = live(list, (all) => card(null, table(
    [["Source", "name"], ["State", "tight"], ["Kind", "tight"], ["Topic", "text"], ["Lag", "num"], ["Behind", "num"], ["Log kept", "num"], ["Changes", "num"], ["Reader", "text"]],
    all.map((one) => [link(["sources", one.name], one.name), stateOf(one), one.kind, one.topic ? link(["topics", one.topic], one.topic) : "–", age(one.lag_ms), bytes(one.behind_bytes), bytes(one.slot_bytes), num(one.changes), one.reader || "–"]),
    "No sources: no server's configuration has a section connect. docs/connect.md shows one.", "Sources")));
  await context.every(async () => draw((await get("/v1/sources", context.signal)).sources));
  return [head("Sources"), list];
}

const bar = (copy) => h("div", { class: "meter" },
  copy.done || !copy.estimate ? null : h("progress", { max: Math.max(copy.estimate, copy.rows), value: copy.rows, "aria-label": `Rows of ${copy.table} that are copied` }),
  h("span", {}, copy.done ? plural(copy.rows, "row") : copy.estimate ? `${num(copy.rows)} of about ${plural(copy.estimate, "row")}` : plural(copy.rows, "row")));

async function snapshot(source, done) {
  const known = [...new Set(source.snapshots.map((copy) => copy.table))];
  const name = h("input", { autocomplete: "off", spellcheck: "false", name: "table", list: "tables", placeholder: "all tables" });
  const where = h("input", { autocomplete: "off", spellcheck: "false", name: "where", class: "mono", placeholder: "total > 100" });
  await form({
    title: `Copy rows of ${source.name}`, action: "Copy",
    body: h("div", { class: "stack" }, h("div", { class: "fields" }, field("Table", name), field("Only rows with, in SQL", where), h("datalist", { id: "tables" }, known.map((one) => h("option", { value: one })))),
      h("p", { class: "note" }, `Rows go to ${source.topic} beside the changes, as events with op “snapshot”. A copied row never overwrites a newer change.`)),
    act: async () => {
      const wish = { table: name.value.trim() || undefined, where: where.value.trim() || undefined };
      if (wish.where && !wish.table) throw new Error("Name the table that the condition is of.");
      await post(sourcePath(source.name, "/snapshot"), wish);
      toast("Asked for: the reader begins soon");
      await done();
    },
  });
}

async function remove(source) {
  const only = h("input", { type: "checkbox", name: "forget" });
  const gone = await confirmLoss({
    title: `Remove source ${source.name}?`, action: "Remove source", typed: source.name,
    lost: [isDatabase(source) && "Its slot and its publication in the database", `Its marks in ${source.topic || "its topic"}: how far it is. If it begins again, it is a new source`, `Events in ${source.topic || "its topic"} stay`],
    note: "Take it out of the configuration afterwards, or Resume makes it a new source. This cannot be undone.",
    extra: isDatabase(source) ? check("Leave the database alone: it is gone", only) : null,
    act: () => del(query(sourcePath(source.name), { forget: only.checked || undefined })),
  });
  if (gone) { toast(`Source ${source.name} is removed`); location.hash = "#/sources"; }
}

const list = (counts) => Object.entries(counts || {}).map(([name, count]) => `${name} ${num(count)}`).join(", ") || "–";
const ago = (ms) => ms ? h("time", { datetime: new Date(ms).toISOString() }, when(ms)) : "–";

export async function source(context) {
  const name = context.params.source, admin = may("admin");
  const [top, facts, copies, acts] = Array.from({ length: 4 }, () => h("div", {}));
  let now;
  const ask = (rest, done) => async () => { await post(sourcePath(name, rest)); toast(done); await update(); };
  const drawTop = live(top, (shown) => figures(shown));
  const drawFacts = live(facts, ({ one }) => card("How it is", h("dl", { class: "facts body" }, [
    ["State", [stateOf(one), one.reason ? ` ${one.reason}` : ""]], ["Kind", one.kind], ["Topic", one.topic ? link(["topics", one.topic], one.topic) : "–"], ["Reader", one.reader || "–"],
    ["Changes by operation", list(one.by_operation)], ["Failures of its reader", list(one.errors)], ["Its reader began anew", plural(one.reconnects, "time")],
    isDatabase(one) && ["The database may forget up to", one.confirmed || "–"], isDatabase(one) && ["The database was told so", ago(one.confirmed_ms)],
    isDatabase(one) && ["Newest change committed", ago(one.last_committed_ms)], isDatabase(one) && ["Between database and topic", bytes(one.buffer_bytes)],
    one.with_missing > 0 && ["Changes that lack large values", num(one.with_missing)], ["In this server's configuration", one.configured ? "yes" : "no"],
  ].filter(Boolean).map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]))));
  const drawCopies = live(copies, ({ one }) => isDatabase(one) ? card("Copies of tables", [
    table([["Table", "name"], ["State", "tight"], ["Rows", "text"]], one.snapshots.map((copy) => [copy.table, copy.done ? pill("ok", "copied") : pill("warn", "copies"), bar(copy)]), "Nothing was copied.", "Copies of tables"),
    one.wanted_snapshots.length ? h("p", { class: "empty" }, `Asked for: ${one.wanted_snapshots.map((wanted) => `${wanted.table || "all tables"}${wanted.where ? ` where ${wanted.where}` : ""}`).join("; ")}`) : null]) : []);
  const drawActs = live(acts, ({ state, kind }) => !admin ? [] : [
    ["paused", "removed"].includes(state) ? button("Resume", ask("/resume", "The source is read again"), "primary") : button("Pause", ask("/pause", "Its reader rests soon")),
    button("Restart", ask("/restart", "Its reader begins anew soon")), kind === "webhook" ? null : button("Copy a table", () => snapshot(now, update)),
    button("Remove", () => remove(now), "danger"),
  ]);
  async function update() {
    now = await get(sourcePath(name), context.signal);
    const { told_ms, ...one } = now;
    drawTop([["State", now.state], ["Lag", age(now.lag_ms)], isDatabase(now) && ["Behind", bytes(now.behind_bytes)], isDatabase(now) && ["Log kept for it", bytes(now.slot_bytes)], ["Changes", num(now.changes)], ["Stored", num(now.appended)]].filter(Boolean));
    drawFacts({ one });
    drawCopies({ one });
    drawActs({ state: now.state, kind: now.kind });
  }
  acts.className = "row";
  await context.every(update);
  return [head(name, link(["sources"], "Sources"), acts), top, h("div", { class: "stack" }, facts, copies)];
}
