// Claims: services, their units, who owns them, and the workers.

import { del, get, may, post, query, servicePath } from "./api.js";
import { giveBack, heldOf, seize } from "./hold.js";
import { confirmLoss, form } from "./dialog.js";
import { age, button, card, field, figures, h, head, link, live, num, pill, plural, table, toast, when } from "./dom.js";

const PAGE = 50;
const MOST = 50;

export async function claims(context) {
  const list = h("div", {});
  const draw = live(list, ({ shown, all }) => card(null, [table(
    [["Service", "name"], ["Units", "num"], ["Owned", "num"], ["Free", "num"], ["Orphaned", "num"], ["Workers", "num"], ["Longest without owner", "num"]],
    shown.map((one) => [link(["claims", one.service], one.service), num(one.offers), num(one.owned), num(one.free), one.orphaned ? pill("bad", num(one.orphaned)) : "0", num(one.workers), age(one.longest_unowned_ms)]),
    "No services yet. The first offer makes one: firth claims offer calls call-1", "Services"),
  all > shown.length ? h("p", { class: "empty" }, `The first ${num(shown.length)} of ${num(all)} services.`) : null]));
  await context.every(async () => {
    const { services } = await get("/v1/claims", context.signal);
    const shown = await Promise.all(services.slice(0, MOST).map((one) => get(servicePath(one), context.signal)));
    draw({ shown, all: services.length });
  });
  return [head("Claims"), list];
}

async function offer(service, again) {
  const name = h("input", { autocomplete: "off" }), payload = h("textarea", { rows: 4 });
  await form({
    title: `Offer a unit of ${service}`, action: "Offer", body: h("div", { class: "stack" }, field("Name", name), field("Payload for its owner", payload)),
    act: async () => { const done = await post(servicePath(service, "/offers"), { name: name.value.trim(), payload: payload.value }); toast(done.new ? "Offered" : "It was offered already"); await again(); },
  });
}

const HAPPENED = { offered: ["", "offered"], granted: ["ok", "granted"], orphaned: ["bad", "worker vanished"], taken_over: ["warn", "taken over"], released: ["", "released"], ended: ["", "ended"] };

/** Who had which unit when, the newest first. */
const timeline = ({ changes, since_ms }) => card("Timeline", [changes.length ? h("ol", { class: "log", tabindex: "0", "aria-label": "What happened to the units" }, changes.map((one) => h("li", {},
  h("time", { datetime: new Date(one.time_ms).toISOString() }, when(one.time_ms)), pill(...HAPPENED[one.kind]),
  h("span", {}, h("b", {}, one.unit), one.from && one.to ? ` from ${one.from} to ${one.to}` : one.to ? ` to ${one.to}` : one.from ? ` of ${one.from}` : "", one.missed ? h("span", { class: "muted" }, ` (${plural(one.missed, "change")} before were not seen)`) : null)))) : h("p", { class: "empty" }, "Nothing has happened yet."),
since_ms ? h("p", { class: "empty" }, `This server has looked since ${when(since_ms)}.`) : null]);

const states = { owned: ["ok", "owned"], free: ["", "free"], orphaned: ["bad", "orphaned"] };

export async function service(context) {
  const name = context.params.service, admin = may("admin", name), produces = may("produce", name);
  const [top, offers, workers, history] = Array.from({ length: 4 }, () => h("div", {}));
  const drawHistory = live(history, timeline);
  let trail = [undefined];
  const drawTop = live(top, (shown) => figures(shown));
  const release = (one) => confirmLoss({
    title: `Take ${one.name} away from ${one.owner}?`, action: "Release", lost: [`${one.owner} loses ${one.name} at once; what it has not checkpointed is done again`], note: "Another worker takes the unit over.",
    act: () => post(servicePath(name, `/offers/${encodeURIComponent(one.name)}/release`)),
  }).then(() => update());
  const withdraw = (one) => confirmLoss({
    title: `Withdraw ${one.name}?`, action: "Withdraw", lost: [`the unit ${one.name} with its payload and checkpoint`, one.owner && `${one.owner} loses its claim`],
    act: () => del(servicePath(name, `/offers/${encodeURIComponent(one.name)}`)),
  }).then(() => update());
  const takeOver = (one) => confirmLoss({
    title: `Seize ${one.name}?`, action: "Seize it", lost: [one.owner && `${one.owner} loses ${one.name} at once; what it has not checkpointed is done again`, `No worker works on ${one.name} until you give it back`],
    note: "This tab becomes a worker of the service and holds the unit. Close the tab, and another worker takes the unit over 15 seconds later.",
    act: () => seize(name, one.name),
  }).then(() => update());
  const buttons = (one, held) => h("div", { class: "row" },
    held.includes(one.name) ? button("Give back", async () => { await giveBack(name, one.name); await update(); }, "small primary", `give-${one.name}`) : admin ? button("Seize", () => takeOver(one), "small", `seize-${one.name}`) : null,
    admin && one.owner && !held.includes(one.name) ? button("Release", () => release(one), "small", `release-${one.name}`) : null, produces ? button("Withdraw", () => withdraw(one), "small danger", `withdraw-${one.name}`) : null);
  const drawOffers = live(offers, ({ held, ...page }) => card("Units", [table(
    [["Unit", "name"], ["State", "tight"], ["Owner", "text"], ["Epoch", "num"], ["Offered for", "num"], ["", "tight"]],
    page.offers.map((one) => [one.name, pill(...states[one.state]), one.owner || (one.last_owner ? h("span", { class: "muted" }, `last ${one.last_owner}`) : "–"), num(one.epoch), age(one.age_ms),
      buttons(one, held)]), "Nothing is offered.", "Units"),
  trail.length > 1 || page.next ? h("div", { class: "pager" }, trail.length > 1 ? button("Previous", () => { trail.pop(); return update(); }, "small") : null, page.next ? button("Next", () => { trail.push(page.next); return update(); }, "small") : null, `Page ${trail.length}`) : null],
  produces ? button("Offer a unit", () => offer(name, update), "small") : null));
  const drawWorkers = live(workers, (list) => card("Workers", table(
    [["Worker", "name"], ["State", "tight"], ["Claims", "num"], ["At most", "num"]],
    list.map((one) => [one.name, one.alive ? pill("ok", "alive") : pill("bad", "gone"), num(one.claims), num(one.max_claims)]), "No workers.", "Workers")));
  async function update() {
    const [now, page, who, past] = await Promise.all([get(servicePath(name), context.signal), get(query(servicePath(name, "/offers"), { after: trail.at(-1), max: PAGE }), context.signal), get(servicePath(name, "/workers"), context.signal), get(servicePath(name, "/takeovers?max=100"), context.signal)]);
    drawHistory(past);
    drawTop([["Units", num(now.offers)], ["Owned", num(now.owned)], ["Free", num(now.free)], ["Orphaned", num(now.orphaned)], ["Workers", num(now.workers)]]);
    drawOffers({ ...page, held: heldOf(name) });
    drawWorkers(who.workers.map(({ remaining_ms, beats, ...rest }) => rest));
  }
  await context.every(update);
  return [head(name, link(["claims"], "Claims")), top, h("div", { class: "stack" }, offers, workers, history)];
}

