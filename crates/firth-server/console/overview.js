// Is everything well? Rates, lags and dead letters of the last 15 minutes, and problems in words.

import { get, known, may } from "./api.js";
import { chart } from "./chart.js";
import { age, bytes, card, figures, h, head, link, live, num, pill, plural, rate, table } from "./dom.js";
import { stateOf, troubleOf } from "./sources.js";
import { follow, newest } from "./stats.js";

const LATE = 60_000;
const LOW_DISK = 1 << 30;
const FULL = 0.9;

/** Everything that a person should look at, the worst first. */
export function problems({ ready, stats, gateways, routing, sources, free, nodes }) {
  const found = [];
  if (ready) found.push({ kind: "bad", what: "Not ready", text: ready });
  for (const node of nodes) {
    if (node.state !== "online") found.push({ kind: node.role === "master" ? "bad" : "warn", what: "Server", text: `The ${node.role} ${node.address} ${node.state === "away" ? "is away" : "does not have all data yet"}.` });
    if (node.max_memory && node.memory > FULL * node.max_memory) found.push({ kind: "warn", what: "Memory", text: `${node.address} uses ${bytes(node.memory)} of ${bytes(node.max_memory)}. When it is full the server refuses new messages: trim topics, or raise maxmemory.`, to: ["topics"], go: "Open the topics" });
  }
  if (free !== undefined && free !== null && free < LOW_DISK) {
    found.push({ kind: "warn", what: "Disk", text: `Only ${bytes(free)} are free on the disk. With less than 128 MiB the server refuses new messages: trim topics, or keep their records for a shorter time.`, to: ["topics"], go: "Open the topics" });
  }
  for (const gateway of gateways) {
    if (["parked", "unreachable", "probing"].includes(gateway.state)) {
      found.push({ kind: "bad", what: "Gateway", text: `${gateway.id} is ${gateway.state}.`, to: ["routing"], go: "Look at it" });
    }
  }
  if (routing && routing.running && routing.health !== "healthy") {
    found.push({ kind: "warn", what: "Routing", text: `The router is ${routing.health}.`, to: ["routing"], go: "Look at it" });
  }
  for (const source of sources) {
    const trouble = troubleOf(source);
    if (trouble) found.push({ ...trouble, what: "Source", to: ["sources", source.name], go: "Open the source" });
  }
  for (const group of stats ? stats.groups : []) {
    const name = `${group.group} on ${group.topic}`;
    const to = ["groups", group.topic, group.group];
    if (group.lag > 0 && group.members === 0) {
      found.push({ kind: "warn", what: "No consumer", text: `${plural(group.lag, "record waits", "records wait")} for ${name}, and no consumer is there.`, to, go: "Open the group" });
    } else if ((group.oldest_ms || 0) > LATE) {
      found.push({ kind: "warn", what: "Late", text: `The oldest record of ${name} has waited for ${age(group.oldest_ms)}.`, to, go: "Open the group" });
    }
  }
  for (const group of [...(stats ? stats.groups : [])].sort((a, b) => b.dead - a.dead)) {
    if (group.dead > 0) {
      found.push({ kind: "bad", what: "Dead letters", text: `${group.group} on ${group.topic} gave up ${plural(group.dead, "record")}.`, to: ["dead", group.topic], go: "See why" });
    }
  }
  const worst = { bad: 0, warn: 1 };
  return found.sort((a, b) => worst[a.kind] - worst[b.kind]);
}

const STATES = { online: "ok", syncing: "warn", away: "bad" };
const slotsOf = (node) => node.slots.map(([from, to]) => from === to ? `${from}` : `${from}–${to}`).join(", ");

/** Where topics are kept: the servers of Redis, or the directory. */
function engineCard(engine) {
  const inCluster = engine.nodes.some((node) => node.slots.length);
  const columns = [["Server", "name"], ["Role", "text"], ["State", "tight"], ["Version", "tight"], ["Memory", "num"], inCluster && ["Slots", "text"]].filter(Boolean);
  const rows = engine.nodes.map((node) => [node.address, node.replica_of ? `replica of ${node.replica_of}` : node.role, pill(STATES[node.state], node.state), node.version || "–",
    node.max_memory ? `${bytes(node.memory)} of ${bytes(node.max_memory)}` : bytes(node.memory), inCluster && slotsOf(node)].slice(0, columns.length));
  const where = engine.kind === "memory" ? "Records are in the memory of this process, and go with it." : engine.kind === "file" ? `Records are in the directory ${engine.directory}.` : null;
  return card("Engine", [rows.length ? table(columns, rows, null, "Servers of the engine") : where ? null : h("p", { class: "empty" }, "The servers are not known yet."),
    where ? h("p", { class: "empty" }, where, engine.disk === null ? null : ` It takes ${bytes(engine.disk)}; ${bytes(engine.disk_free)} are free on its disk.`) : null],
  h("span", { class: "note mono" }, engine.place));
}

const start = () => card("Start here", h("div", { class: "body stack" },
  h("p", {}, "There are no topics yet. ", link(["try"], "Try it"), " makes one and shows retries and dead letters, or send a first message:"),
  h("pre", { class: "code" }, [
    "firth topic create orders --partitions 4",
    "firth produce orders 'one coffee' --key ada",
    "firth consume orders --group bar",
  ].join("\n"))));

export async function overview(context) {
  const samples = follow({ max: 1000, sort: "lag" });
  const seesStats = may("observe");
  const flow = chart("Messages per second", [{ name: "sent", kind: "one" }, { name: "settled", kind: "two" }], { format: rate });
  const lag = chart("Lag", [{ name: "waiting", kind: "one" }]);
  const deadChart = chart("Dead letters", [{ name: "kept", kind: "one" }]);
  const handling = chart("Handling time of a delivery", [{ name: "mean", kind: "two" }], { format: age });
  const memory = chart("Memory", [{ name: "in RAM", kind: "one" }], { format: bytes, floor: 1 << 24 });
  const [state, top, list, lags, busy, origins, engineNode] = [h("span", {}), ...Array.from({ length: 6 }, () => h("div", {}))];
  const about = known();

  const drawState = live(state, (found) => found.length ? pill(found.some((one) => one.kind === "bad") ? "bad" : "warn", plural(found.length, "thing to look at", "things to look at")) : pill("ok", "All is well"));
  const drawTop = live(top, (shown) => figures(shown));
  const drawList = live(list, (found) => found.length ? card("To look at", [h("ul", { class: "problems" }, found.slice(0, 12).map((one) => h("li", {},
    pill(one.kind, one.what), h("span", {}, one.text, " ", one.to ? link(one.to, one.go) : null)))),
  found.length > 12 ? h("p", { class: "empty" }, `and ${num(found.length - 12)} more`) : null]) : []);
  const drawLags = live(lags, (groups) => card("Largest lags", table(
    [["Group", "name"], ["Topic", "text"], ["Lag", "num"], ["Oldest", "num"], ["Settled/s", "num"]],
    groups.map((one) => [link(["groups", one.topic, one.group], one.group), link(["topics", one.topic], one.topic), num(one.lag), age(one.oldest_ms), rate(one.settled_per_second)]),
    "No group waits for anything.", "Largest lags")));
  const drawBusy = live(busy, (topics) => card("Busiest topics", table(
    [["Topic", "name"], ["Records", "num"], ["Sent/s", "num"]],
    topics.map((one) => [link(["topics", one.topic], one.topic), num(one.records), rate(one.produced_per_second)]), "No topics.", "Busiest topics")));

  const drawOrigins = live(origins, (all) => all.length ? card("Sources", table(
    [["Source", "name"], ["State", "tight"], ["Topic", "text"], ["Lag", "num"], ["Log kept", "num"]],
    all.map((one) => [link(["sources", one.name], one.name), stateOf(one), one.topic || "–", age(one.lag_ms), bytes(one.slot_bytes)]), null, "Sources")) : []);

  const drawEngine = live(engineNode, (engine) => engine ? engineCard(engine) : []);
  const signOfLife = () => get("/health/ready", context.signal).then(() => ({}), (error) => ({ problem: error.message }));

  await context.every(async () => {
    const wants = [seesStats ? get("/v1/engine", context.signal).catch(signOfLife) : signOfLife()];
    wants.push(seesStats ? samples.read(context.signal) : null);
    const canRoute = seesStats && about.routing;
    wants.push(canRoute ? get("/v1/routing", context.signal).catch(() => null) : null);
    wants.push(canRoute ? get("/v1/routing/gateways", context.signal).catch(() => null) : null);
    wants.push(seesStats ? get("/v1/sources", context.signal).catch(() => null) : null);
    const [engine, stats, routing, gateways, told] = await Promise.all(wants);
    const ready = engine.problem || (engine.ready === false ? "The server is shutting down." : null), nodes = engine.nodes || [];
    const sources = told ? told.sources : [];
    const columns = samples.state.columns;
    const free = newest(columns.disk_free), found = problems({ ready, stats, routing, gateways: gateways ? gateways.gateways : [], sources, free, nodes });
    drawState(found);
    drawTop([
      ["Server", ready ? "not ready" : "ready", `${about.engine}`],
      stats && ["Topics", num(stats.topics_total)],
      stats && ["Sent per second", rate(newest(columns.produced) || 0)],
      stats && ["Settled per second", rate(newest(columns.settled) || 0)],
      stats && ["Waiting", num(stats.lag)],
      stats && ["Dead letters", num(stats.dead), stats.died_24h !== null && stats.died_24h > 0 ? `${num(stats.died_24h)} new in 24 h` : null],
      routing && ["Router nodes", num(routing.nodes.length)],
      stats && free !== undefined && ["Data on disk", bytes(newest(columns.disk)), `${bytes(free)} free`],
    ].filter(Boolean));
    drawList(found);
    if (!stats) return;
    if (stats.total) {
      flow.draw(samples.pick("produced", "settled"));
      lag.draw(samples.pick("lag"));
      deadChart.draw(samples.pick("dead"));
      handling.draw(samples.pick("handling_ms"));
      memory.draw(samples.pick("memory"));
    }
    drawOrigins(sources.map(({ name, state, topic, lag_ms, slot_bytes }) => ({ name, state, topic, lag_ms, slot_bytes })));
    // Memory in whole MiB: figures that flicker say nothing.
    drawEngine(engine.nodes ? { ...engine, process_memory: null, nodes: nodes.map((node) => ({ ...node, memory: node.memory === null ? null : Math.round(node.memory / 2 ** 20) * 2 ** 20 })) } : null);
    drawLags(stats.groups.filter((one) => one.lag > 0).slice(0, 8));
    drawBusy(stats.topics.slice(0, 8));
  });
  const last = samples.state.last;
  return [
    head("Overview", null, state), top,
    h("div", { class: "stack" },
      last && last.topics_total === 0 ? start() : null, list, last ? engineNode : null,
      last && last.total ? h("div", { class: "cols" }, flow.node, lag.node, handling.node, deadChart.node, memory.node) : null,
      last ? [h("div", { class: "cols" }, lags, busy), origins] : h("p", { class: "note" }, "This token lacks the scope observe, so there are no figures here.")),
  ];
}
