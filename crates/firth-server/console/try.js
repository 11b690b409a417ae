// Try it: a topic of its own, messages, a consumer in this page that fails some of them.

import { del, get, groupPath, may, post, put, topicPath } from "./api.js";
import { button, card, clock, figures, h, head, link, live, num, plural, toast } from "./dom.js";
import { shift } from "./shift.js";

const TOPIC = "console-try", GROUP = "kitchen";
const DRINKS = ["coffee", "tea", "cocoa", "lemonade", "soup"];
const LEASE = 3000;

export async function tryIt(context) {
  if (!may("admin", TOPIC)) return [head("Try it"), h("p", { class: "note" }, `This needs a token with the scope admin for the topic ${TOPIC}.`)];
  const log = h("ol", { class: "log", tabindex: "0", "aria-label": "What happened" }), top = h("div", {});
  const drawTop = live(top, (shown) => figures(shown));
  let sent = 0, works = false;
  const hint = h("p", { class: "empty" }, "Nothing yet. Send some orders.");
  const say = (text, kind) => {
    hint.remove();
    log.prepend(h("li", {}, h("time", {}, clock(Date.now())), h("span", { class: kind ? `${kind}-text` : null }, text)));
    while (log.children.length > 200) log.lastChild.remove();
  };

  async function setUp() {
    await put(topicPath(TOPIC), { partitions: 2 }).catch((error) => { if (error.status !== 409) throw error; });
    await put(groupPath(TOPIC, GROUP), {});
    await put(groupPath(TOPIC, GROUP, "/policy"), { max_attempts: 3, backoff_ms: 1000, max_backoff_ms: 2000 });
  }
  async function send() {
    await setUp();
    const messages = Array.from({ length: 10 }, () => {
      sent += 1;
      return { key: `guest-${sent % 4}`, json: { order: sent, item: DRINKS[sent % DRINKS.length], burnt: sent % 4 === 0 } };
    });
    await post(topicPath(TOPIC, "/records"), messages);
    say("10 orders were sent. Each fourth one is burnt, and the consumer fails it.");
  }
  async function work() {
    await setUp();
    works = true;
    say("The consumer works in this page: it fetches, acks good orders and fails burnt ones.");
    while (works && !context.signal.aborted) {
      let fetched;
      try {
        fetched = await post(groupPath(TOPIC, GROUP, "/fetch"), { max: 5, wait_ms: 1000, lease_ms: 10_000 });
      } catch (error) {
        say(error.message, "bad");
        break;
      }
      const verdicts = { ack: [], nack: [] };
      for (const { delivery, record } of fetched.deliveries) {
        const order = record.json || {};
        if (order.burnt) {
          verdicts.nack.push({ delivery, reason: `${order.item} is burnt` });
          say(`Order ${order.order} failed on attempt ${record.attempt} of 3: ${order.item} is burnt.${record.attempt >= 3 ? " It is a dead letter now." : " The server delivers it again later."}`, record.attempt >= 3 ? "bad" : "warn");
        } else {
          verdicts.ack.push(delivery);
          say(`Order ${order.order} (${order.item}) is served${record.attempt > 1 ? `, on attempt ${record.attempt}` : ""}.`, "ok");
        }
      }
      if (fetched.deliveries.length) await post(groupPath(TOPIC, GROUP, "/settle"), verdicts);
    }
    works = false;
    if (!context.signal.aborted) say("The consumer stopped.");
  }
  async function vanish() {
    await setUp();
    const fetched = await post(groupPath(TOPIC, GROUP, "/fetch"), { max: 3, wait_ms: 500, lease_ms: LEASE });
    if (!fetched.deliveries.length) { say("There was nothing to take: send orders first."); return; }
    say(`A worker took ${plural(fetched.deliveries.length, "order")} and vanished. Its lease runs out in ${LEASE / 1000} s; then the server delivers them again, as attempt 2.`, "warn");
  }
  async function cleanUp() {
    works = false;
    await del(topicPath(TOPIC)).catch((error) => { if (error.status !== 404) throw error; });
    say("The topic is deleted, with its records and dead letters.");
    toast("Cleaned up");
  }
  await context.every(async () => {
    const now = await get(groupPath(TOPIC, GROUP), context.signal).catch((error) => { if (error.status === 404) return null; throw error; });
    drawTop([["Waiting", num(now ? now.lag : 0)], ["Due for another attempt", num(now ? now.due : 0)], ["Dead letters", num(now ? now.dead : 0)], ["Consumer", works ? "works" : "stands still"]]);
  });
  return [
    head("Try it"), top,
    h("div", { class: "stack" },
      card("A kitchen", h("div", { class: "body stack" },
        h("p", { class: "note" }, `These buttons call the HTTP API on a topic of their own, ${TOPIC}. Send orders, start the consumer, and see what happens to the ones that fail.`),
        h("div", { class: "row" }, button("Send 10 orders", send, "primary"), button("Start the consumer", () => { if (!works) work(); }), button("Stop it", () => { works = false; }), button("Take 3 and vanish", vanish), button("Clean up", cleanUp, "danger")),
        h("p", {}, "Look behind it: ", link(["topics", TOPIC], "the topic"), ", ", link(["groups", TOPIC, GROUP], "the group"), ", ", link(["dead", TOPIC], "the dead letters"), "."))),
      shift(context, say),
      card("What happens", [log, hint])),
  ];
}
