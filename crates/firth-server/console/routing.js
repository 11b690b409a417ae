// Routing: where events are, gateways, subscriptions, and why a subscription gets an event.

import { get, may, post, query } from "./api.js";
import { age, button, card, field, figures, h, head, live, num, pill, plural, rate, swap, table } from "./dom.js";

const PAGE = 50;
const CLIENTS = 200;
const good = { ok: "ok", healthy: "ok", soft: "warn", lagging: "warn", probing: "warn" };
const state = (name) => pill(good[name] || "bad", name);
const COLUMNS = [["Taken", "num"], ["Delivered", "num"], ["Parked", "num"], ["Dead", "num"], ["Gaps", "num"], ["In flight", "num"], ["Balance", "tight"]];
const sums = (one) => one ? [num(one.taken), num(one.delivered), num(one.parked), num(one.dead), num(one.gapped), num(one.in_flight), one.balanced ? pill("ok", "balanced") : pill("bad", "off")] : COLUMNS.map(() => "–");
const accounts = (one) => one.accounting || one.books;

function explain() {
  const event = h("textarea", { spellcheck: "false", rows: 8, value: JSON.stringify({ op: "insert", tenant: "shop", collection: "orders", key: "o-1", after: { total: 7 } }, null, 2) });
  const subscription = h("input", { autocomplete: "off" }), out = h("div", { role: "status", "aria-live": "polite" });
  const row = (one) => [one.id, one.tenant, one.wants ? pill("ok", "gets it") : pill("", "does not"), one.gateways.join(", ") || "–", h("div", {}, one.because.map((line) => h("div", {}, line)))];
  const ask = async () => {
    let parsed;
    try { parsed = JSON.parse(event.value); } catch { throw new Error("The event is not JSON."); }
    const told = await post("/v1/routing/explain", { event: parsed, subscription: subscription.value.trim() || undefined });
    swap(out, h("p", { class: "note" }, `${plural(told.matches, "subscription matches", "subscriptions match")}.`), table([["Subscription", "name"], ["Tenant", "tight"], ["", "tight"], ["Gateways", "text"], ["Because", "text"]], [...(told.asked ? [told.asked] : []), ...told.subscriptions].map(row), "No subscription gets this event.", "Explained"));
  };
  return card("Who gets an event?", h("div", { class: "body stack" }, field("Event, JSON", event), field("Also ask about this subscription", subscription), h("div", {}, button("Explain", ask, "primary")), out));
}

function subscriptions(context) {
  const out = h("div", {});
  let trail = [undefined];
  async function load() {
    const page = await get(query("/v1/routing/subscriptions", { after: trail.at(-1), max: PAGE }), context.signal);
    swap(out, card("Subscriptions", [table([["Subscription", "name"], ["Tenant", "tight"], ["Collection", "text"], ["Filter", "text mono"], ["Mode", "tight"], ["Gateway", "text"]],
      page.subscriptions.map((one) => [one.id, one.tenant, one.document ? `${one.collection} / ${one.document}` : one.collection, one.filter || (one.conditions && one.conditions.length ? plural(one.conditions.length, "condition") : "–"), one.mode, one.gateway || "–"]), "No subscriptions.", "Subscriptions"),
    trail.length > 1 || page.next ? h("div", { class: "pager" }, trail.length > 1 ? button("Previous", () => { trail.pop(); return load(); }, "small") : null, page.next ? button("Next", () => { trail.push(page.next); return load(); }, "small") : null, `Page ${trail.length}`) : null]));
  }
  return { node: out, load };
}

/** How far a gateway is with a partition that it is fed from the topic. */
const progress = (one) => h("div", { class: "meter" }, h("progress", { max: Math.max(1, one.left_out), value: one.taken, "aria-label": `Events of partition ${one.partition} that were read again` }),
  h("span", {}, `partition ${one.partition}: ${num(one.taken)} of ${num(one.left_out)}, parked for ${age(one.parked_ms)}`));

/** Who is connected to the gateways. */
const connected = (gateways) => card("Connected clients", [
  gateways.length ? figures(gateways.slice(0, 12).map((one) => [one.gateway, num(one.connections), plural(one.subscriptions, "subscription")])) : null,
  table([["Gateway", "name"], ["Tenant", "tight"], ["User", "text"], ["Subscriptions", "num"], ["Waiting events", "num"], ["Connected for", "num"]],
    gateways.flatMap((one) => one.clients.map((client) => [one.gateway, client.tenant, client.user || "–", num(client.subscriptions), num(client.queued), age(client.connected_ms)])).slice(0, CLIENTS),
    "No gateway has told of a client lately.", "Connected clients")]);

export async function routing(context) {
  if (!may("observe")) return [head("Routing"), h("p", { class: "note" }, "This token lacks the scope observe.")];
  const [top, all, gates, edge] = Array.from({ length: 4 }, () => h("div", {}));
  const drawEdge = live(edge, connected);
  const status = h("span", {});
  const drawTop = live(top, (shown) => figures(shown)), drawState = live(status, (one) => one.running ? state(one.health) : pill("", "no node runs here"));
  const drawAll = live(all, (now) => h("div", { class: "stack" },
    card("Accounting per partition", table([["Partition", "num"], ["Health", "tight"], ["Lag", "num"], ["Owner", "text"], ...COLUMNS],
      now.partitions.map((one) => [num(one.partition), state(one.health), num(one.lag), one.owner || "–", ...sums(accounts(one))]), "The routed topic does not exist yet.", "Accounting per partition")),
    card("Nodes", table([["Node", "name"], ...COLUMNS], now.nodes.map((one) => [one.node, ...sums(accounts(one))]), "No node has told anything yet.", "Nodes"))));
  const drawGates = live(gates, (list) => card("Gateways", table(
    [["Gateway", "name"], ["State", "tight"], ["Endpoint", "text"], ["Subscriptions", "num"], ["Held", "num"], ["Delivered", "num"], ["Per second", "num"], ["Catches up", "text"]],
    list.map(({ one, speed }) => [one.id, [state(one.state), one.lane && one.lane.probe_ms !== null ? h("div", { class: "note" }, `probe in ${age(Math.ceil(one.lane.probe_ms / 1000) * 1000)}`) : null], one.endpoint || "connects by itself", num(one.subscriptions), one.lane ? num(one.lane.held) : "–", one.lane ? num(accounts(one.lane).delivered) : "–", rate(speed),
      one.lane && one.lane.catch_up.length ? one.lane.catch_up.map(progress) : "–"]), "No gateways are registered.", "Gateways")));
  // What each gateway had at the look before.
  let before = new Map();
  function speeds(list) {
    const at = performance.now(), now = new Map(list.filter((one) => one.lane).map((one) => [one.id, { at, count: accounts(one.lane).delivered }]));
    const told = list.map((one) => {
      const [old, fresh] = [before.get(one.id), now.get(one.id)];
      return { one, speed: old && fresh && fresh.count >= old.count ? (fresh.count - old.count) * 1000 / (fresh.at - old.at) : undefined };
    });
    before = now;
    return told;
  }
  await context.every(async () => {
    const [now, list, clients] = await Promise.all([get("/v1/routing", context.signal), get("/v1/routing/gateways", context.signal), get("/v1/routing/clients", context.signal)]);
    drawEdge(clients.gateways.map(({ told_ms, ...rest }) => rest));
    drawState({ running: now.running, health: now.health });
    drawTop([["Topic", now.topic], ["Partitions", num(now.partitions.length)], ["Gateways", num(now.gateways)], ["Subscriptions", num(now.subscriptions)], ["Waiting", num(now.partitions.reduce((sum, one) => sum + one.lag, 0))], ["Dead", num(now.partitions.reduce((sum, one) => sum + one.dead, 0))]]);
    drawAll({ partitions: now.partitions.map(({ oldest_ms, ...rest }) => rest), nodes: now.nodes.map(({ told_ms, ...rest }) => rest) });
    drawGates(speeds(list.gateways.map(({ remaining_ms, ...rest }) => rest)));
  });
  // Registrations of a tenant that the token does not cover are refused: the rest of the page stays.
  const routes = may("route"), subs = routes ? subscriptions(context) : null;
  if (subs) await subs.load().catch((error) => { if (error.name === "AbortError") throw error; swap(subs.node, card("Subscriptions", h("p", { class: "empty" }, error.message))); });
  return [head("Routing", null, status), top, h("div", { class: "stack" }, all, gates, edge, subs ? subs.node : null, routes ? explain() : null)];
}

