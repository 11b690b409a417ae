// Dead letters over all topics: reasons first; open, edit, replay, delete, one or all of a filter.

import { get, getRecords, may, post, query, topicPath } from "./api.js";
import { confirmLoss, form } from "./dialog.js";
import { age, button, card, check, field, figures, h, head, link, num, options, plural, route, swap, table, toast } from "./dom.js";
import { parse } from "./json.js";
import { keyOf, messageOf, openable, previewOf, textOf, viewer } from "./record.js";

const PAGE = 25;

/** How many topics one look takes in, and how many with letters are shown at a time. */
const LOOK = 1000;
const SHOWN = 100;

const lettersOf = (one) => card(link(["dead", one.topic], one.topic), [
  table([["Reason", "text"], ["Letters", "num"]], one.reasons.map((reason) => [/^[^\n\r]+$/.test(reason.reason) ? h("a", { href: route(["dead", one.topic], { reason: reason.reason }) }, reason.reason) : reason.reason || "no reason was given", num(reason.count)]),
    may("consume", one.topic) ? "Not counted: too many letters at a time. Open the topic to see them." : "This token may count dead letters, not read them.", `Reasons of ${one.topic}`),
  one.counted < one.count && one.reasons.length ? h("p", { class: "empty" }, `Reasons of the first ${num(one.counted)} letters.`) : null,
], h("span", { class: "note" }, `${plural(one.count, "letter")} of ${one.groups.map((group) => group.group).join(", ")}`), h("a", { class: "button", href: route(["dead", one.topic]) }, "Open"));

export async function dead(context) {
  const out = h("div", {});
  let topics = [], after;
  async function look() {
    do {
      const page = await get(query("/v1/dead", { after, max: LOOK }), context.signal);
      topics.push(...page.topics);
      after = page.next;
    } while (after && topics.length === 0);
    draw();
  }
  function draw() {
    swap(out, figures([["Dead letters", num(topics.reduce((sum, one) => sum + one.count, 0)), after ? "so far" : null], ["Topics", num(topics.length), after ? "so far" : null]]),
      h("div", { class: "stack" }, topics.length ? topics.slice(0, SHOWN).map(lettersOf) : card(null, h("p", { class: "empty" }, h("br"), "No record was given up. A record becomes a dead letter when its attempts are used up, or when a consumer rejects it.")),
        topics.length > SHOWN ? h("p", { class: "note" }, `The first ${num(SHOWN)} topics with dead letters are shown. Each topic shows its own.`) : null,
        after ? h("div", { class: "row" }, button(`Look at topics after ${after}`, look)) : null));
  }
  await look();
  return [head("Dead letters", null, button("Look again", context.again)), out];
}

function edit(topic, letter, again) {
  const record = letter.record, binary = textOf(record) === null;
  const kind = record.json !== undefined ? "json" : binary ? "payload_base64" : "payload";
  const text = h("textarea", { spellcheck: "false", rows: 12, name: "payload", value: kind === "json" ? JSON.stringify(record.json, null, 2) : binary ? record.payload_base64 : record.payload });
  const key = h("input", { value: record.key || "", autocomplete: "off" }), everyone = h("input", { type: "checkbox" });
  return form({
    title: "Edit and replay", action: "Replay this",
    body: h("div", { class: "stack" }, field({ json: "Payload, JSON", payload: "Payload, text", payload_base64: "Payload, base64" }[kind], text), record.key_base64 === undefined ? field("Key", key) : null,
      check("For every group, not only the one that gave it up", everyone), h("p", { class: "note" }, "The letter is gone afterwards. This cannot be undone.")),
    act: async () => {
      const message = messageOf(record);
      if (kind === "json") { try { message.json = parse(text.value); } catch { throw new Error("The payload is not JSON."); } } else message[kind] = text.value;
      if (record.key_base64 === undefined) { if (key.value) message.key = key.value; else delete message.key; }
      await post(topicPath(topic, "/dead/edit"), { id: letter.id, message, everyone: everyone.checked });
      toast("Replayed as edited");
      await again();
    },
  });
}

export async function deadTopic(context) {
  const topic = context.params.topic, admin = may("admin", topic);
  const groups = await get(topicPath(topic, "/groups"), context.signal);
  const start = context.query;
  const parts = {
    group: h("select", { name: "group" }, options([["", "Any group"], ...groups.groups.map((one) => [one.group, `${one.group} (${num(one.dead)})`])], start.group || "")),
    reason: h("input", { type: "search", value: start.reason || "", name: "reason" }), key: h("input", { type: "search", value: start.key || "" }),
    hours: h("input", { inputmode: "decimal", value: "" }),
  };
  const out = h("div", {}), foot = h("div", {}), bulk = h("div", { class: "row" }), top = h("div", {});
  const columns = [["Reason", "text"], ["Group", "tight"], ["Attempts", "num"], ["Dead for", "num"], ["Key", "text"], ["Payload", "text"]];
  let trail = [undefined], run = 0;
  const filter = () => {
    const hours = parts.hours.value.trim();
    if (hours !== "" && !(Number(hours) >= 0)) throw new Error("Hours: write a number.");
    return { group: parts.group.value || undefined, reason: parts.reason.value || undefined, key: parts.key.value || undefined, older_than_ms: hours === "" ? undefined : Math.round(Number(hours) * 3_600_000) };
  };
  const told = (set) => [...Object.entries({ group: "of group", reason: "whose reason contains", key: "with key" }).filter(([name]) => set[name]).map(([name, words]) => `${words} “${set[name]}”`),
    set.older_than_ms ? `dead for at least ${age(set.older_than_ms)}` : null].filter(Boolean).join(" ") || "of this topic";

  function act(letter) {
    if (!admin) return null;
    const one = (path, body, done) => async () => { const answer = await post(topicPath(topic, path), { ids: [letter.id], ...body }); toast(answer.count ? done : "It was gone already"); await load(); };
    return [
      button("Replay", one("/dead/replay", {}, "Replayed"), "small primary"), button("Edit and replay", () => edit(topic, letter, load), "small"),
      button("Replay for every group", one("/dead/replay", { everyone: true }, "Replayed for every group"), "small"),
      button("Delete", () => confirmLoss({ title: "Delete this dead letter?", action: "Delete", lost: [`${letter.id}: ${letter.reason}`], act: one("/dead/delete", {}, "Deleted") }), "small danger"),
    ];
  }
  const attemptsOf = (letter) => letter.history.length ? h("div", { class: "stack" }, h("h3", {}, letter.attempts > letter.history.length ? `Last ${plural(letter.history.length, "attempt")}` : "Attempts"),
    table([["Attempt", "num"], ["Failed", "tight"], ["Owner of the partition", "tight"], ["Reason", "text"]], letter.history.map((one) => [num(one.attempt), one.age_ms === null ? "–" : `${age(one.age_ms)} ago`, one.member || "–", one.reason || "no reason was given"]), null, "Attempts")) : null;
  async function bulkAct(path, verb, words) {
    const set = filter(), { count } = await get(query(topicPath(topic, "/dead/count"), set));
    if (!count) { toast("No letter passes the filter"); return; }
    await confirmLoss({
      title: `${verb} ${plural(count, "dead letter")}?`, action: `${verb} ${num(count)}`, lost: [`${plural(count, "letter")} ${told(set)} ${words}`],
      note: "Letters that come until then and pass the filter go with them. This cannot be undone.",
      act: async () => { const done = await post(topicPath(topic, path), { all: true, ...set }); toast(`${verb === "Replay" ? "Replayed" : "Deleted"}: ${num(done.count)}`); trail = [undefined]; await load(); },
    });
  }
  async function load() {
    run += 1;
    const mine = run, set = filter();
    const [page, counted] = await Promise.all([getRecords(query(topicPath(topic, "/dead"), { ...set, after: trail.at(-1), max: PAGE }), context.signal), get(query(topicPath(topic, "/dead/count"), set), context.signal)]);
    if (mine !== run) return;
    const isFiltered = Object.values(set).some((value) => value !== undefined);
    swap(top, figures([[isFiltered ? "Letters that pass the filter" : "Dead letters", num(counted.count)]]));
    swap(out, card(null, table(columns, page.letters.map((letter) => openable(
      [letter.reason || "no reason was given", letter.group, num(letter.attempts), age(letter.age_ms), keyOf(letter.record), h("div", { class: "preview" }, previewOf(letter.record))], columns,
      () => viewer(letter.record, [["Reason", letter.reason], ["Given up by", `${letter.group} after ${plural(letter.attempts, "attempt")}, ${age(letter.age_ms)} ago`]], act(letter), attemptsOf(letter)))),
    isFiltered ? "No letter passes the filter." : "No dead letters.", "Dead letters")));
    swap(foot, trail.length > 1 || page.next ? h("div", { class: "pager" },
      trail.length > 1 ? button("Previous", () => { trail.pop(); return load(); }, "small") : null,
      page.next ? button("Next", () => { trail.push(page.next); return load(); }, "small") : null, `Page ${trail.length}`) : null);
    swap(bulk, admin && counted.count ? [button(isFiltered ? `Replay these ${num(counted.count)}` : `Replay all ${num(counted.count)}`, () => bulkAct("/dead/replay", "Replay", "go to their groups again"), null, "replay-all"),
      button(isFiltered ? `Delete these ${num(counted.count)}` : `Delete all ${num(counted.count)}`, () => bulkAct("/dead/delete", "Delete", "are removed for good"), "danger", "delete-all")] : null);
  }
  let typing;
  const again = () => { trail = [undefined]; clearTimeout(typing); typing = setTimeout(() => load().catch((error) => { if (error.name !== "AbortError") toast(error.message); }), 250); };
  for (const control of Object.values(parts)) control.addEventListener("input", again);
  await load();
  return [
    head(topic, link(["dead"], "Dead letters"), bulk), top,
    h("div", { class: "stack" }, h("div", { class: "fields" }, field("Group", parts.group), field("Reason contains", parts.reason), field("Key", parts.key), field("Dead for at least hours", parts.hours), h("div", { class: "row" }, button("Look again", load))), h("div", {}, out, foot)),
  ];
}
