// One topic: messages, groups, partitions, settings.

import { del, get, getRecords, may, patch, post, put, query, topicPath } from "./api.js";
import { chart } from "./chart.js";
import { confirmLoss, form } from "./dialog.js";
import { age, button, bytes, card, check, cut, field, figures, h, head, link, live, num, numberOf, options, plural, rate, route, swap, table, tabs, toast, when } from "./dom.js";
import { parse } from "./json.js";
import { keyOf, openable, previewOf, sizeOf, viewer } from "./record.js";
import { retention, settings } from "./topics.js";

const PAGE = 50;
const NEWEST_PARTITIONS = 16;
/** How many records a search looks at before it asks to go on. */
const SEARCH = 20_000;

async function produce(name) {
  const [key, payload, delay] = [h("input", { autocomplete: "off" }), h("textarea", { spellcheck: "false", name: "payload" }), h("input", { inputmode: "numeric", value: "" })];
  const kind = h("select", {}, options([["payload", "Text"], ["json", "JSON"], ["payload_base64", "Base64"]]));
  const headers = h("textarea", { spellcheck: "false", rows: 2, placeholder: "name: value" });
  await form({
    title: `Send to ${name}`, action: "Send",
    body: h("div", { class: "fields" }, field("Payload is", kind), field("Key", key), field("Deliver after seconds", delay), field("Payload", payload, true), field("Headers, one per line", headers, true)),
    act: async () => {
      const message = {};
      if (kind.value === "json") {
        try { message.json = parse(payload.value); } catch { throw new Error("The payload is not JSON."); }
      } else message[kind.value] = payload.value;
      if (key.value) message.key = key.value;
      const seconds = numberOf(delay, "Deliver after seconds", { whole: false });
      if (seconds) message.after_ms = Math.round(seconds * 1000);
      const lines = headers.value.split("\n").filter((line) => line.trim());
      if (lines.length) message.headers = Object.fromEntries(lines.map((line) => {
        const at = line.indexOf(":");
        if (at < 1) throw new Error("A header is written as name: value.");
        return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
      }));
      const sent = await post(topicPath(name, "/records"), message);
      const [receipt] = sent.receipts;
      toast(receipt.id ? `Stored in partition ${receipt.partition} as ${receipt.id}` : `It waits in partition ${receipt.partition} for its time`);
    },
  });
}

async function change(old, again) {
  const topic = await get(topicPath(old.name)), fields = settings(topic);
  const lossy = h("input", { type: "checkbox", checked: topic.lossy });
  const tighter = (now, was) => now !== undefined && now !== null && (was === null || now < was);
  const loss = lossOf([...fields.node.querySelectorAll("input"), lossy], () => {
    const wish = fields.read();
    const gone = tighter(wish.retention_records, topic.retention_records) ? beyond(topic, wish.retention_records) : 0;
    const parts = [gone > 0 && `up to ${plural(gone, "record")} beyond the number to keep`, tighter(wish.retention_ms, topic.retention_ms) && `records older than ${age(wish.retention_ms)}`,
      tighter(wish.retention_bytes, topic.retention_bytes) && `the oldest records beyond ${bytes(wish.retention_bytes)} per partition`].filter(Boolean);
    return parts.length ? `This removes ${parts.join(", ")}${lossy.checked ? ", also what groups have not settled" : ", once all groups have settled them"}. They cannot be brought back.` : "This removes no records.";
  });
  await form({
    title: `Change ${topic.name}`, action: "Save",
    body: h("div", { class: "stack" }, fields.node, check("Retention may remove what a group has not settled", lossy), loss,
      h("p", { class: "note" }, "An empty limit is ended. Partitions can only become more, and keys may move to other partitions then.")),
    act: async () => { await patch(topicPath(topic.name), { ...fields.read(), lossy: lossy.checked }); toast("Saved"); again(); },
  });
}

/** How many records a limit per partition removes; those beyond a time or a size are not counted. */
const beyond = (topic, keep) => topic.parts.reduce((sum, part) => sum + Math.max(0, part.records - keep), 0);

/** Says what a form removes, and says it anew when its controls change. */
function lossOf(controls, tell) {
  const node = h("p", { class: "preview-text", role: "status", "aria-live": "polite" });
  const draw = () => { try { node.textContent = tell(); } catch (error) { node.textContent = error.message; } };
  for (const control of controls) control.addEventListener("input", draw);
  draw();
  return node;
}

async function trim(old, again) {
  const topic = await get(topicPath(old.name));
  const keep = h("input", { inputmode: "numeric", value: "0" }), lossy = h("input", { type: "checkbox" });
  const loss = lossOf([keep, lossy], () => {
    const kept = numberOf(keep, "Records to keep");
    if (kept === undefined) return "Records to keep: write a whole number.";
    const gone = beyond(topic, kept);
    return gone === 0 ? "This removes nothing." : lossy.checked ? `This removes ${num(gone)} of ${plural(topic.records, "record")}, also what groups have not settled.` : `This removes up to ${num(gone)} of ${plural(topic.records, "record")}: those that all groups have settled.`;
  });
  await form({
    title: `Trim ${topic.name}`, action: "Remove records", danger: true,
    body: h("div", { class: "stack" }, field("Keep this many of the newest records of each partition", keep), check("Remove also what a group has not settled", lossy),
      loss, h("p", { class: "note" }, "Removed records cannot be brought back.")),
    act: async () => {
      const kept = numberOf(keep, "Records to keep");
      if (kept === undefined) throw new Error("Records to keep: write a whole number.");
      const done = await post(topicPath(topic.name, "/trim"), { keep: kept, lossy: lossy.checked });
      toast(`${plural(done.removed, "record")} removed${done.held_back ? `; groups held records back on ${plural(done.held_back, "partition")}` : ""}`);
      again();
    },
  });
}

async function remove(topic) {
  const [groups, now] = await Promise.all([get(topicPath(topic.name, "/groups")), get(topicPath(topic.name))]);
  const dead = groups.groups.reduce((sum, one) => sum + one.dead, 0);
  const gone = await confirmLoss({
    title: `Delete topic ${topic.name}?`, action: "Delete topic", typed: topic.name,
    lost: [`${plural(now.records, "record")} in ${plural(now.partitions, "partition")}`, now.delayed > 0 && `${plural(now.delayed, "delayed message")}`,
      groups.groups.length > 0 && `${plural(groups.groups.length, "group")}: ${groups.groups.slice(0, 8).map((one) => one.group).join(", ")}${groups.groups.length > 8 ? " …" : ""}`, dead > 0 && plural(dead, "dead letter")],
    act: () => del(topicPath(topic.name)),
  });
  if (gone) { toast(`Topic ${topic.name} is deleted`); location.hash = "#/topics"; }
}

/** Looks at records without consuming them. Text and filter are looked for by the server. */
function browser(topic, context) {
  const asked = context.query;
  const start = h("select", { name: "from" }, options([["newest", "Newest"], ["oldest", "Oldest"], ["id", "After an id"], ["time", "From a time"]], asked.from));
  const partition = h("select", { name: "partition" }, options([["", "All partitions"], ...Array.from({ length: topic.partitions }, (_, at) => [at, `Partition ${at}`])], asked.partition || ""));
  const place = h("input", { value: "", placeholder: "1700000000000-42", autocomplete: "off" });
  const key = h("input", { type: "search", placeholder: "The whole key", value: asked.key || "", autocomplete: "off" });
  const text = h("input", { type: "search", placeholder: "Key, payload or header", value: asked.contains || "" });
  const filter = h("input", { type: "search", placeholder: "doc.total > 100 && key.startsWith('guest-')", value: asked.filter || "", autocomplete: "off", spellcheck: "false", class: "mono" });
  const placed = field("Id", place), out = h("div", {}), foot = h("div", {});
  const columns = [["Id", "tight mono"], ["Time", "tight"], ["P", "num"], ["Key", "text"], ["Size", "num"], ["Payload", "text"]];
  let found = [], cursors = [], seen = 0, run = 0, isForced = false;

  const wanted = () => ({ key: key.value || undefined, contains: text.value.trim() || undefined, filter: filter.value.trim() || undefined });
  const isSearch = () => Object.values(wanted()).some(Boolean);
  const read = (set) => getRecords(query(topicPath(topic.name, "/records"), { ...set, ...wanted() }), context.signal);
  const form = () => {
    placed.hidden = !["id", "time"].includes(start.value);
    placed.firstChild.textContent = start.value === "time" ? "Time" : "Id";
    const type = start.value === "time" ? "datetime-local" : "text";
    // A time is no id.
    if (place.type !== type) [place.type, place.value] = [type, ""];
    // An id is of one partition. Arrow keys pass by here: what was not chosen is taken back.
    if (start.value === "id" && partition.value === "") [partition.value, isForced] = ["0", true];
    if (start.value !== "id" && isForced) [partition.value, isForced] = ["", false];
  };
  function draw(note) {
    swap(out, card(null, table(columns, found.map((record) => openable(
      [record.id, when(record.sent_ms), num(record.partition), keyOf(record), bytes(sizeOf(record)), h("div", { class: "preview" }, previewOf(record))], columns, () => viewer(record))),
    note || (isSearch() ? `None of the ${plural(seen, "record")} that were looked at passes.` : "No records here."), "Messages")));
    const goes = cursors.some((one) => one.after !== null);
    swap(foot, h("div", { class: "pager" }, goes ? button(isSearch() ? "Search on" : "Show more", () => more(), "small") : null, `${plural(found.length, "record")} shown, ${num(seen)} looked at`));
  }
  async function more() {
    const mine = run, until = found.length + PAGE;
    let looked = 0;
    while (cursors.some((one) => one.after !== null) && found.length < until && looked < SEARCH) {
      const cursor = cursors.find((one) => one.after !== null);
      const page = await read({ partition: cursor.partition, after: cursor.after, max: PAGE });
      if (mine !== run) return;
      looked += page.looked_at;
      seen += page.looked_at;
      found.push(...page.records);
      cursor.after = page.next;
    }
    draw();
  }
  async function load() {
    run += 1;
    const mine = run;
    form();
    [found, cursors, seen] = [[], [], 0];
    const all = partition.value === "" ? Array.from({ length: topic.partitions }, (_, at) => at) : [Number(partition.value)];
    if (start.value === "newest") {
      const some = all.slice(0, NEWEST_PARTITIONS);
      const pages = await Promise.all(some.map((one) => read({ partition: one, newest: true, max: isSearch() ? PAGE : Math.max(10, Math.ceil(PAGE / some.length)) })));
      if (mine !== run) return;
      seen = pages.reduce((sum, page) => sum + page.looked_at, 0);
      found = pages.flatMap((page) => page.records).sort((a, b) => b.sent_ms - a.sent_ms || b.id.localeCompare(a.id, "en", { numeric: true }));
      return draw(all.length > some.length && !found.length ? `Nothing in the first ${NEWEST_PARTITIONS} partitions.` : undefined);
    }
    let after = "0-0";
    if (start.value === "id" && place.value.trim()) after = place.value.trim();
    if (start.value === "time" && place.value) after = `${Math.max(0, new Date(place.value).getTime())}-0`;
    cursors = all.map((one) => ({ partition: one, after }));
    await more();
  }
  const again = () => load().catch((error) => { if (error.name !== "AbortError") { swap(foot); swap(out, h("p", { class: "error", role: "alert" }, error.message)); } });
  partition.addEventListener("change", () => { isForced = false; });
  for (const control of [start, partition, place, filter]) control.addEventListener("change", again);
  filter.addEventListener("keydown", (event) => { if (event.key === "Enter") again(); });
  let typing;
  for (const control of [key, text]) control.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(again, 300); });
  form();
  again();
  return h("div", { class: "stack" }, h("div", { class: "fields dense" }, field("Start", start), field("Partition", partition), placed, field("Key", key), field("Contains", text), field("Filter, CEL over doc, key, op, collection", filter, "span2"),
    h("div", { class: "row" }, button("Look again", load))), h("div", {}, out, foot));
}

/** Messages that wait for their time, the next one first. */
function delayed(topic, context) {
  const admin = may("admin", topic.name);
  const out = h("div", {}), columns = [["Due in", "tight"], ["P", "num"], ["Key", "text"], ["Size", "num"], ["Payload", "text"]];
  let found = [], cursors = [];
  async function more() {
    const some = cursors.filter((one) => one.after !== null).slice(0, NEWEST_PARTITIONS);
    const pages = await Promise.all(some.map((one) => getRecords(query(topicPath(topic.name, "/delayed/messages"), { partition: one.partition, after: one.after, max: PAGE }), context.signal)));
    pages.forEach((page, at) => { some[at].after = page.next; found.push(...page.messages); });
    found.sort((a, b) => a.due_ms - b.due_ms);
    draw();
  }
  async function change(message, path, done) {
    const { messages: [now] } = await post(topicPath(topic.name, `/delayed/messages/${path}`), { ids: [message.id] });
    const before = { cancelled: "It was cancelled before", delivered: "It is in the log already", missing: "It is gone: it was delivered or cancelled long ago" };
    toast(now.changed ? done : before[now.state]);
    await load();
  }
  const acts = (message) => admin ? [
    button("Deliver now", () => change(message, "deliver", "Delivered: groups get it now"), "small primary"),
    button("Cancel it", () => confirmLoss({
      title: "Cancel this message?", action: "Cancel the message", lost: [`A message of ${bytes(sizeOf(message))}${keyOf(message) ? ` with key ${cut(keyOf(message), 80)}` : ""}, due in ${age(message.due_ms)}: no group gets it`],
      act: () => change(message, "cancel", "Cancelled: no group gets it"),
    }), "small danger"),
  ] : null;
  function draw() {
    const goes = cursors.some((one) => one.after !== null);
    swap(out, card("Delayed messages", [table(columns, found.map((message) => openable(
      [age(message.due_ms), num(message.partition), keyOf(message), bytes(sizeOf(message)), h("div", { class: "preview" }, previewOf(message))], columns,
      () => viewer({ ...message, topic: topic.name }, [["Due", `${when(Date.now() + message.due_ms)}, in ${age(message.due_ms)}`]], acts(message)))), "No message waits for its time.", "Delayed messages"),
    goes ? h("div", { class: "pager" }, button("Show more", more, "small"), `${plural(found.length, "message")} shown`) : null], button("Look again", load, "small")));
  }
  async function load() {
    found = [];
    cursors = Array.from({ length: topic.partitions }, (_, partition) => ({ partition, after: undefined }));
    await more();
  }
  load().catch((error) => { if (error.name !== "AbortError") swap(out, h("p", { class: "error", role: "alert" }, error.message)); });
  return out;
}

export async function topic(context) {
  const name = context.params.topic;
  let now = await get(topicPath(name), context.signal);
  const top = h("div", {}), flow = chart("Messages per second", [{ name: "sent", kind: "one" }], { format: rate });
  const drawTop = live(top, (shown) => figures(shown));
  const groups = h("div", {}), parts = h("div", {});
  const drawGroups = live(groups, (list) => card("Groups", table(
    [["Group", "name"], ["Lag", "num"], ["Oldest", "num"], ["Due", "num"], ["Dead", "num"], ["Members", "num"]],
    list.map((one) => [link(["groups", name, one.group], one.group), num(one.lag), age(one.oldest_ms), num(one.due), one.dead ? link(["dead", name], num(one.dead)) : "0", num(one.members)]),
    "No group reads this topic yet.", "Groups"), may("consume", name) ? button("New group", newGroup, "small") : null));
  const drawParts = live(parts, (list) => card("Partitions", table(
    [["Partition", "num"], ["Records", "num"], ["Delayed", "num"], ["Newest", "mono tight"], ["Trimmed up to", "mono tight"]],
    list.map((one) => [num(one.partition), num(one.records), num(one.delayed), one.last || "–", one.trimmed || "–"]), null, "Partitions")));
  async function newGroup() {
    const input = h("input", { autocomplete: "off" }), from = h("select", {}, options([["oldest", "The oldest record"], ["newest", "What is sent from now on"]]));
    await form({
      title: `New group on ${name}`, action: "Create", body: h("div", { class: "fields" }, field("Name", input), field("Starts with", from)),
      act: async () => { await put(topicPath(name, `/groups/${encodeURIComponent(input.value.trim())}`), { start: from.value }); toast("Created"); await update(); },
    });
  }
  async function update() {
    const wants = [get(topicPath(name), context.signal), get(topicPath(name, "/groups"), context.signal)];
    wants.push(may("observe") ? get(query("/v1/stats", { topic: name }), context.signal) : null);
    const [found, list, stats] = await Promise.all(wants);
    now = found;
    const own = stats && stats.topics[0];
    drawTop([["Records", num(now.records)], ["Partitions", num(now.partitions)], own && ["Sent per second", rate(own.produced_per_second)], ["Delayed", num(now.delayed)],
      ["Kept", retention(now)], ["Largest payload", bytes(now.max_payload)]].filter(Boolean));
    if (own && own.series) flow.draw({ from: own.series.from_ms, step: stats.step_ms, columns: [own.series.produced] });
    flow.node.hidden = !(own && own.series);
    drawGroups(list.groups);
    drawParts(now.parts);
  }
  await context.every(update);
  const seen = may("consume", name);
  const facts = () => card("Settings", h("dl", { class: "facts body" }, [
    ["Made", when(now.created_ms)], ["Changed", when(now.updated_ms)], ["Kept", retention(now)], ["Retention may remove unsettled records", now.lossy ? "yes" : "no"],
    ["Dead letters are kept", now.dead_letters_ms === null ? "for ever" : age(now.dead_letters_ms)], ["Keys find partitions by", now.mapping || "–"],
  ].map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])));
  const list = [
    seen && { name: "messages", title: "Messages", draw: () => browser(now, context) },
    seen && { name: "delayed", title: "Delayed", draw: () => delayed(now, context) },
    { name: "groups", title: "Groups", draw: () => groups }, { name: "partitions", title: "Partitions", draw: () => h("div", { class: "stack" }, flow.node, parts) },
    { name: "settings", title: "Settings", draw: facts },
  ].filter(Boolean);
  return [
    head(name, link(["topics"], "Topics"),
      may("produce", name) ? button("Send a message", () => produce(name), "primary") : null,
      may("admin", name) ? [button("Change", () => change(now, context.again)), button("Trim", () => trim(now, context.again)), button("Delete", () => remove(now), "danger")] : null),
    top, tabs(list, context.query.tab, (tab) => history.replaceState(null, "", route(["topics", name], { tab }))),
  ];
}
