// One group: partitions, members, what is in flight and due; reset with a preview, policy, delete.

import { del, get, groupPath, may, post, put, query } from "./api.js";
import { chart, spark } from "./chart.js";
import { confirmLoss, form } from "./dialog.js";
import { age, button, card, check, field, figures, h, head, link, live, num, numberOf, options, pill, plural, rate, table, toast } from "./dom.js";

const PAGE = 50;
/** How many looks the lag of a partition is drawn of: 15 minutes. */
const LOOKS = 450;
/** How many partitions are drawn at a time. */
const PARTITIONS = 200;

/** Where a reset leads; throws if that is not said yet. */
function resetTo(how, control) {
  if (how === "age") {
    const minutes = numberOf(control, "Minutes", { whole: false });
    if (minutes === undefined) throw new Error("Minutes: write a number.");
    return { age_ms: Math.round(minutes * 60_000) };
  }
  if (how === "time") {
    const time = new Date(control.value).getTime();
    if (!control.value || !Number.isFinite(time) || time < 0) throw new Error("Choose a date and a time.");
    return { time_ms: time };
  }
  return { to: how };
}

async function reset(topic, group, again) {
  const how = h("select", { name: "to" }, options([["oldest", "The oldest record"], ["newest", "The end: skip everything that waits"], ["age", "Records of the last minutes"], ["time", "Records from a time on"]]));
  const value = h("input", { value: "60", inputmode: "numeric" }), valued = field("Minutes", value), drop = h("input", { type: "checkbox" });
  const preview = h("p", { class: "preview-text", role: "status", "aria-live": "polite" }, "…");
  // What the shown preview is of; the button does this and nothing else.
  let previewed = null, run = 0;
  const ready = (wish) => {
    previewed = wish;
    const go = preview.closest("form")?.querySelector("[data-k=go]");
    if (go) go.disabled = wish === null;
  };
  async function look() {
    run += 1;
    const mine = run;
    ready(null);
    preview.textContent = "…";
    valued.hidden = !["age", "time"].includes(how.value);
    valued.firstChild.textContent = how.value === "age" ? "Minutes" : "Time";
    const type = how.value === "time" ? "datetime-local" : "text";
    if (value.type !== type) { value.type = type; value.value = type === "text" ? "60" : ""; }
    try {
      const wish = { ...resetTo(how.value, value), drop_due: drop.checked };
      const found = await post(groupPath(topic, group, "/reset/preview"), wish);
      if (mine !== run) return;
      const parts = [found.repeats && `repeats ${plural(found.repeats, "record")}`, found.skips && `skips ${plural(found.skips, "record")}`, found.dropped && `forgets ${plural(found.dropped, "record")} due for another attempt`].filter(Boolean);
      preview.textContent = parts.length ? `This ${parts.join(", ")}.` : "This repeats and skips nothing.";
      ready(wish);
    } catch (error) {
      if (mine === run) preview.textContent = error.message;
    }
  }
  for (const control of [how, value, drop]) control.addEventListener("input", look);
  const closed = form({
    title: `Reset ${group} on ${topic}`, action: "Reset", danger: true,
    body: h("div", { class: "stack" }, h("div", { class: "fields" }, field("Go on with", how), valued), check("Forget records that are due for another attempt", drop), preview,
      h("p", { class: "note" }, "Consumers go on from there at once. Skipped records stay in the topic.")),
    act: async () => {
      if (!previewed) throw new Error("Wait for the preview.");
      await post(groupPath(topic, group, "/reset"), previewed);
      toast("The group was reset");
      again();
    },
  });
  look();
  await closed;
}

async function policy(topic, group) {
  const now = await get(groupPath(topic, group, "/policy"));
  const input = (value) => h("input", { inputmode: "numeric", value: value === null || value === undefined ? "" : String(value) });
  const parts = { max_attempts: input(now.max_attempts), backoff_ms: input(now.backoff_ms), max_backoff_ms: input(now.max_backoff_ms), factor: input(now.factor), max_crashes: input(now.max_crashes) };
  const ordering = h("select", {}, options([["strict", "strict"], ["relaxed", "relaxed"]], now.ordering));
  const names = { max_attempts: "Attempts", backoff_ms: "First wait (ms)", max_backoff_ms: "Longest wait (ms)", factor: "Each wait is longer by", max_crashes: "Crashes before a record is given up" };
  await form({
    title: `Retry policy of ${group}`, action: "Save",
    body: h("div", { class: "stack" }, h("div", { class: "fields" }, Object.entries(parts).map(([name, control]) => field(names[name], control)), field("Order of a key", ordering)),
      h("p", { class: "note" }, "This holds for consumers over HTTP and on the command line. Programs with the library bring their own.")),
    act: async () => {
      // What the form does not show stays as it is.
      const wish = { ...now, ordering: ordering.value };
      for (const [name, control] of Object.entries(parts)) {
        const number = numberOf(control, names[name], { whole: name !== "factor" });
        if (number === undefined) delete wish[name]; else wish[name] = number;
      }
      await put(groupPath(topic, group, "/policy"), wish);
      toast("Saved");
    },
  });
}

async function remove(topic, group) {
  const now = await get(groupPath(topic, group));
  const gone = await confirmLoss({
    title: `Delete group ${group} of ${topic}?`, action: "Delete group", typed: group,
    lost: ["Its place in the topic: a new group of this name starts anew", now.due > 0 && `${plural(now.due, "record")} due for another attempt`, now.dead > 0 && plural(now.dead, "dead letter"), now.lag > 0 && `${plural(now.lag, "record")} that it has not settled stay in the topic`],
    act: () => del(groupPath(topic, group)),
  });
  if (gone) { toast(`Group ${group} is deleted`); location.hash = `#/topics/${encodeURIComponent(topic)}?tab=groups`; }
}

const kinds = { server: "HTTP clients of a server", library: "program with the library", cli: "command line" };
const where = (one) => one.host ? `${one.host}${one.pid ? `, process ${one.pid}` : ""}` : "–";
const holder = (one) => one.client || one.remaining_ms !== null ? `${one.client || "unnamed"} · ${one.address || "this process"}` : `${one.member}${one.address ? ` · ${one.address}` : ""}`;

export async function group(context) {
  const { topic, group: name } = context.params;
  const [top, parts, members, flight, due] = Array.from({ length: 5 }, () => h("div", {}));
  const lag = chart("Lag", [{ name: "waiting", kind: "one" }]), settled = chart("Settled per second", [{ name: "settled", kind: "two" }], { format: rate });
  const handling = chart("Handling time of a delivery", [{ name: "mean", kind: "two" }], { format: age }), deadChart = chart("Dead letters", [{ name: "kept", kind: "one" }]);
  const charts = h("div", { class: "cols" }, lag.node, settled.node, handling.node, deadChart.node);
  // Waiting records of each partition since this page is open.
  const past = new Map(), lagOf = (one) => one.waiting + one.due;
  const note = (list) => {
    // Nothing moves unless the data moved.
    if (list.every((one) => past.get(one.partition)?.at(-1) === lagOf(one))) return;
    for (const one of list) past.set(one.partition, [...(past.get(one.partition) || []), lagOf(one)].slice(-LOOKS));
  };
  const admin = may("admin", topic);
  let skip = 0;

  const release = (partition, owner) => confirmLoss({
    title: `Take partition ${partition} away?`, action: "Release", lost: [`${owner} loses partition ${partition}; its deliveries there may come again to the next owner`], note: "The member that should own the partition takes it next.",
    act: () => post(groupPath(topic, name, `/partitions/${partition}/release`)),
  }).then(() => update());
  const drawTop = live(top, (shown) => figures(shown));
  const drawParts = live(parts, (list) => card("Partitions", [table(
    [["Partition", "num"], ["Waiting", "num"], ["Since it is open", "tight"], ["Due", "num"], ["Dead", "num"], ["Owner", "text"], ["Done up to", "mono tight"], ["", "tight"]],
    list.slice(0, PARTITIONS).map(({ one, values }) => [num(one.partition), num(one.waiting), spark(values, `Lag of partition ${one.partition}`), num(one.due), num(one.dead), one.owner || pill("warn", "no owner"), one.frontier === "0-0" ? "–" : one.frontier,
      admin && one.owner ? button("Release", () => release(one.partition, one.owner), "small", `release-${one.partition}`) : null]), null, "Partitions"),
  list.length > PARTITIONS ? h("p", { class: "empty" }, `The ${num(PARTITIONS)} of ${num(list.length)} with the largest lag.`) : null]));
  const drawMembers = live(members, (list) => card("Members", table(
    [["Member", "name"], ["Kind", "text"], ["Where", "text"], ["Owns", "text"], ["Clients", "text"]],
    list.map((one) => [one.name, kinds[one.kind] || one.kind, where(one), one.owns.length ? `partitions ${one.owns.join(", ")}` : "nothing",
      one.clients && one.clients.length ? h("div", {}, one.clients.map((client) => h("div", {}, `${client.name || "unnamed"} · ${client.address || "this process"} · ${client.kind} · ${num(client.unsettled)} unsettled`))) : "–"]),
    "No consumer is there now.", "Members")));
  const drawFlight = live(flight, (found) => card(`In flight${found.total ? `: ${num(found.total)}` : ""}`, [table(
    [["Record", "mono tight"], ["P", "num"], ["Attempt", "num"], ["For", "num"], ["Time left", "num"], ["Who has it", "text"], ["Kind", "tight"]],
    found.deliveries.map((one) => [one.id, num(one.partition), num(one.attempt), age(one.age_ms), age(one.remaining_ms), holder(one), one.kind]),
    "No consumer has an unsettled delivery.", "In flight"),
  found.deliveries.length < found.total ? h("p", { class: "empty" }, `The oldest ${num(found.deliveries.length)} are shown.`) : null,
  (found.silent || []).length ? h("p", { class: "empty" }, `No answer from ${found.silent.join(", ")}: hung, gone, or of an older version.`) : null]));
  const drawDue = live(due, (found) => card(`Due for another attempt${found.total ? `: ${num(found.total)}` : ""}`, [table(
    [["Record", "mono tight"], ["P", "num"], ["Attempt", "num"], ["Due in", "num"], ["Reason", "text"]],
    found.records.map((one) => [one.id, num(one.partition), num(one.attempt), one.due_ms === null ? "running" : age(one.due_ms), one.reason]), "Nothing waits for another attempt.", "Due"),
  found.total > PAGE ? h("div", { class: "pager" }, button("Previous", () => { skip = Math.max(0, skip - PAGE); return update(); }, "small"), button("Next", () => { skip = skip + PAGE < found.total ? skip + PAGE : skip; return update(); }, "small"),
    `${num(skip + 1)} to ${num(Math.min(found.total, skip + PAGE))}`) : null]));

  async function update() {
    const ask = (rest) => get(groupPath(topic, name, rest), context.signal);
    const wants = [ask(""), ask("/members"), ask("/in_flight?max=50"), ask(query("/pending", { sort: "due", skip, max: PAGE }))];
    wants.push(may("observe") ? get(query("/v1/stats", { topic, max: 1000 }), context.signal) : null);
    const [now, who, flying, waiting, stats] = await Promise.all(wants);
    const own = stats && stats.groups.find((one) => one.group === name);
    drawTop([["Lag", num(now.lag)], ["Oldest", age(now.oldest_ms)], own && ["Settled per second", rate(own.settled_per_second)], own && own.handling_ms !== null && ["Handling time", age(own.handling_ms)], ["In flight", num(flying.total)], ["Due", num(now.due)], ["Dead letters", num(now.dead)], ["Members", num(now.members)]].filter(Boolean));
    charts.hidden = !(own && own.series);
    if (own && own.series) {
      lag.draw({ from: own.series.from_ms, step: stats.step_ms, columns: [own.series.lag] });
      settled.draw({ from: own.series.from_ms, step: stats.step_ms, columns: [own.series.settled] });
      handling.draw({ from: own.series.from_ms, step: stats.step_ms, columns: [own.series.handling_ms] });
      deadChart.draw({ from: own.series.from_ms, step: stats.step_ms, columns: [own.series.dead] });
    }
    note(now.partitions);
    const lines = now.partitions.map((one) => ({ one, values: past.get(one.partition) }));
    drawParts(lines.length > PARTITIONS ? lines.sort((a, b) => lagOf(b.one) - lagOf(a.one)) : lines);
    drawMembers(who.members.map(({ beats, remaining_ms, ...rest }) => ({ ...rest, clients: (rest.clients || []).map(({ idle_ms, ...client }) => client) })));
    drawFlight(flying);
    drawDue(waiting);
  }
  await context.every(update);
  return [
    head(name, [link(["topics", topic], topic), " / groups"], link(["dead", topic], "Dead letters"), button("Retry policy", () => policy(topic, name)),
      admin ? [button("Reset", () => reset(topic, name, update)), button("Delete", () => remove(topic, name), "danger")] : null),
    top, h("div", { class: "stack" }, charts, parts, members, flight, due),
  ];
}

