// Acts on delayed messages, sources and the router, and what every button of the console must be: pressed.

import assert from "node:assert/strict";

export async function eventually(what, holds) {
  const end = Date.now() + 60_000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`never: ${what}`);
    await new Promise((done) => setTimeout(done, 100));
  }
}

export async function delayed(page, call) {
  await call("POST", "/v1/topics/mail/records", [{ payload: "never send this", after_ms: 3_600_000 }, { payload: "send this sooner", after_ms: 3_600_000, key: "ada" }]);
  const waiting = async () => (await call("GET", "/v1/topics/mail/delayed/messages")).messages.map((one) => one.payload);
  const before = (await call("GET", "/v1/topics/mail")).records;
  await page.open("#/topics/mail?tab=delayed", "never send this");
  await page.openRow("never send this");
  await page.press("Cancel it");
  await page.sees("no group gets it");
  await page.press("Cancel");
  await page.until("nothing was done", "!document.querySelector('dialog')");
  assert.ok((await waiting()).includes("never send this"));
  await page.press("Cancel it");
  await page.press("Cancel the message");
  await page.sees("Cancelled: no group gets it");
  assert.ok(!(await waiting()).includes("never send this"));
  assert.equal((await call("GET", "/v1/topics/mail")).records, before);
  await page.until("the list without it", "!document.querySelector('main table').textContent.includes('never send this')");
  await page.openRow("send this sooner");
  await page.press("Deliver now");
  await page.sees("Delivered: groups get it now");
  assert.ok(!(await waiting()).includes("send this sooner"));
  assert.equal((await call("GET", "/v1/topics/mail")).records, before + 1);
}

/** Of a PostgreSQL with the table orders, and of a webhook. */
export async function sources(page, call) {
  const shop = () => call("GET", "/v1/sources/shop");
  await page.open("#/sources", "webhook");
  await page.open("#/sources/hub", "webhook");
  assert.ok(!(await page.eval("document.body.innerText")).includes("Copy a table"), "a webhook has nothing to copy");
  await page.open("#/sources/shop", "public.orders");
  const { appended } = await shop();
  await page.press("Copy a table");
  await page.fill("Only rows with, in SQL", "total > 400");
  await page.press("Copy");
  await page.sees("Name the table that the condition is of.");
  await page.fill("Table", "public.orders");
  await page.press("Copy");
  await page.sees("Asked for: the reader begins soon");
  await eventually("100 rows are copied again", async () => (await shop()).appended === appended + 100);
  await page.press("Restart");
  await page.sees("Its reader begins anew soon");
  await eventually("it streams again", async () => (await shop()).state === "streaming");
  await page.press("Pause");
  await page.sees("Its reader rests soon");
  await page.sees("an operator paused it");
  await page.press("Resume");
  await page.sees("The source is read again");
  await eventually("it streams", async () => (await shop()).state === "streaming");
  await page.press("Pause");
  await eventually("no node reads it", async () => { const now = await shop(); return now.state === "paused" && now.reader === null; });
  await page.press("Remove");
  await page.sees("Its slot and its publication in the database");
  await page.fill("Type “shop” to confirm", "shop");
  await page.press("Remove source");
  await page.until("the list", "location.hash === '#/sources'");
  assert.equal((await shop()).state, "removed");
}

/** With the gateways `edge`, which has a client, and `away`, which cannot be reached. */
export async function routing(page, call) {
  await page.open("#/routing", "Who gets an event?");
  await page.sees("unreachable");
  await page.sees("balanced");
  // Once all that it missed was read again, `away` holds it in its lane and is behind on nothing.
  await eventually("the page tells how far away is behind", async () => {
    const { lane } = (await call("GET", "/v1/routing/gateways")).gateways.find((one) => one.id === "away");
    const told = await page.eval("[...document.querySelectorAll('tbody tr')].find((one) => one.cells[0].textContent === 'away')?.cells[7].textContent || ''");
    return lane.catch_up.length ? told.includes("parked for") : lane.held > 0 && told === "–";
  });
  await page.until("the client", "[...document.querySelectorAll('section.card')].some((one) => one.textContent.startsWith('Connected clients') && one.querySelectorAll('tbody tr').length === 1)");
  await page.press("Explain");
  await page.sees("No subscription gets this event.");
  await page.fill("Event, JSON", JSON.stringify({ op: "insert", tenant: "acme", collection: "orders", key: "o-1", after: { total: 700 } }));
  await page.fill("Also ask about this subscription", "big");
  await page.press("Explain");
  await page.sees("gets it");
  await page.fill("Event, JSON", "{");
  await page.press("Explain");
  await page.sees("The event is not JSON.");
  const status = await call("GET", "/v1/routing");
  assert.ok(status.partitions.every((one) => one.books.balanced), JSON.stringify(status.partitions));
}

/** Buttons that were shown and that no act pressed. */
export async function unpressed(page) {
  const [seen, pressed] = await page.eval("[[...buttonsSeen], [...buttonsPressed]]");
  assert.ok(seen.length > 30, `${seen}`);
  return seen.filter((name) => !pressed.includes(name));
}
