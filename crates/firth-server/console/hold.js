// Units that this tab has seized: a worker of its own per service, kept alive as long as the tab is open.

import { call, del, post, put, query, servicePath } from "./api.js";

const TTL = 15_000;
const WAIT = 5_000;
const name = `console-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`;
/** By service: the session, and the handles of its claims by unit. */
const holders = new Map();
const workerPath = (service, rest) => servicePath(service, `/workers/${name}${rest || ""}`);

/** The units of a service that this tab holds. */
export const heldOf = (service) => [...(holders.get(service)?.claims.keys() || [])];

async function keep(service, holder) {
  let after = 0, is_over = false;
  while (holder.claims.size && !is_over) {
    const { news } = await call("POST", workerPath(service, "/poll"), { session: holder.session, after, wait_ms: WAIT });
    for (const one of news) {
      after = one.place;
      if (one.event === "lost" || one.event === "recalled") holder.claims.delete(one.name);
      if (one.event === "end") is_over = true;
    }
  }
}

/** Takes a unit, also from a living owner; no worker has it until `giveBack`. */
export async function seize(service, unit) {
  let holder = holders.get(service);
  if (!holder) {
    const { session } = await put(workerPath(service), { ttl_ms: TTL, by_name_only: true });
    holder = { session, claims: new Map() };
    holders.set(service, holder);
  }
  const { claim } = await post(workerPath(service, "/seize"), { session: holder.session, name: unit });
  holder.claims.set(unit, claim.claim);
  if (holder.is_kept) return;
  holder.is_kept = true;
  // If the server is away for longer than the TTL, other workers take the units over.
  keep(service, holder).catch(() => {}).finally(() => {
    if (holders.get(service) === holder) holders.delete(service);
    del(query(workerPath(service), { session: holder.session })).catch(() => {});
  });
}

/** Lets another worker take the unit at once. */
export async function giveBack(service, unit) {
  const holder = holders.get(service);
  const handle = holder?.claims.get(unit);
  if (!handle) return;
  await post(workerPath(service, "/settle"), { session: holder.session, release: [{ claim: handle }] });
  holder.claims.delete(unit);
}
