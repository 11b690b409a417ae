// Try it, second part: two workers of a service in this page, of which one can be killed.

import { call, del, may, post, put, query, servicePath } from "./api.js";
import { button, card, h, link } from "./dom.js";

const SERVICE = "console-try";
const TTL = 3000;
const UNITS = ["oven-1", "oven-2", "oven-3", "oven-4"];
const workerPath = (name, rest) => servicePath(SERVICE, `/workers/${name}${rest || ""}`);

export function shift(context, say) {
  if (!may("admin", SERVICE)) return null;
  const workers = new Map(), owners = new Map();

  async function tell(worker, news) {
    for (const one of news) {
      worker.after = one.place;
      if (one.event === "granted") {
        const before = owners.get(one.name);
        owners.set(one.name, worker.name);
        if (before && before !== worker.name) say(`${worker.name} takes over ${one.name} from ${before}.`, "warn");
        else say(`${worker.name} has ${one.name}.`, "ok");
      } else if (one.event === "recalled") {
        // The other cook may have it before the answer is here.
        owners.delete(one.name);
        await post(workerPath(worker.name, "/settle"), { session: worker.session, release: [{ claim: one.claim }] });
        say(`${worker.name} hands ${one.name} over, so that both have the same share.`);
      } else if (one.event === "lost") say(`${worker.name} lost ${one.name}.`, "bad");
      else if (one.event === "end") worker.is_over = true;
    }
  }
  async function hire(name) {
    if (workers.has(name)) return;
    const { session } = await put(workerPath(name), { ttl_ms: TTL, max_claims: UNITS.length });
    const worker = { name, session, after: 0, is_killed: false };
    workers.set(name, worker);
    say(`${name} joined. It calls the server at least once a second.`);
    while (!worker.is_killed && !worker.is_over && !context.signal.aborted) {
      try {
        const { news } = await call("POST", workerPath(name, "/poll"), { session, after: worker.after, wait_ms: TTL / 3 }, context.signal);
        if (!worker.is_killed) await tell(worker, news);
      } catch (error) {
        if (error.name !== "AbortError" && !worker.is_killed) say(`${name}: ${error.message}`, "bad");
        break;
      }
    }
    workers.delete(name);
  }
  async function begin() {
    await post(servicePath(SERVICE, "/offers"), UNITS.map((name) => ({ name })));
    say(`${UNITS.length} ovens are offered. Each has exactly one cook at a time.`);
    // Each works until it is killed or the page is left.
    for (const name of ["ada", "ben"]) hire(name).catch((error) => say(error.message, "bad"));
  }
  async function kill() {
    const worker = workers.get("ben");
    if (!worker) { say("ben does not work now: start the cooks first."); return; }
    worker.is_killed = true;
    say(`ben was killed: no goodbye, no further call. In ${TTL / 1000} s its time is up, and ada takes its ovens over.`, "bad");
  }
  async function end() {
    for (const worker of workers.values()) {
      worker.is_killed = true;
      await del(query(workerPath(worker.name), { session: worker.session })).catch(() => {});
    }
    for (const name of UNITS) {
      await del(servicePath(SERVICE, `/offers/${name}`)).catch((error) => { if (error.status !== 404) throw error; });
    }
    owners.clear();
    say("The cooks went home, and the ovens are withdrawn.");
  }
  return card("Two cooks", h("div", { class: "body stack" },
    h("p", { class: "note" }, `Claims: four ovens, each owned by one cook. Both cooks are workers of the service ${SERVICE}. Kill one, and see the other take over.`),
    h("div", { class: "row" }, button("Start two cooks", begin, "primary"), button("Kill ben", kill), button("Bring ben back", () => { hire("ben").catch((error) => say(error.message, "bad")); }), button("Send them home", end, "danger")),
    h("p", {}, "Look behind it: ", link(["claims", SERVICE], "the units with their timeline"), ".")));
}
