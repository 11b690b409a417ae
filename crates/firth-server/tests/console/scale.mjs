// Many topics and many dead letters: every page shows, and loads a page of them, never the whole.
// Called as: node scale.mjs ORIGIN FOLDER with TOPICS and LETTERS, and a server at ORIGIN that holds nothing yet.
// It prints how long each page took. LIMIT_MS makes more an error; tests set none, as other programs run beside them.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { Browser } from "./browser.mjs";

const [origin, folder] = process.argv.slice(2);
const [TOPICS, LETTERS] = [Number(process.env.TOPICS), Number(process.env.LETTERS)];
const LIMIT_MS = Number(process.env.LIMIT_MS ?? Infinity);
/** How much a page may load. */
const LOADED = 4 << 20;
const PARTITIONS = 8;
const AT_ONCE = 500;
mkdirSync(folder, { recursive: true });

async function call(method, path, body) {
  const answer = await fetch(origin + path, { method, body: body && JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const text = await answer.text();
  assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

async function atOnce(count, some, act) {
  let next = 0;
  const work = async () => { while (next < count) { next += 1; await act(next - 1); } };
  await Promise.all(Array.from({ length: some }, work));
}

async function seed() {
  await atOnce(TOPICS, 16, (at) => call("PUT", `/v1/topics/t${String(at).padStart(5, "0")}`, { partitions: 1 }));
  await call("PUT", "/v1/topics/letters", { partitions: PARTITIONS });
  for (let sent = 0; sent < LETTERS; sent += 10_000) {
    const messages = Array.from({ length: Math.min(10_000, LETTERS - sent) }, (_, at) => ({ partition: at % PARTITIONS, key: `k${at % 97}`, json: { order: sent + at } }));
    await call("POST", "/v1/topics/letters/records", messages);
  }
  let done = 0;
  await Promise.all(Array.from({ length: 4 }, async () => {
    while (done < LETTERS) {
      const { deliveries } = await call("POST", "/v1/topics/letters/groups/billing/fetch", { max: AT_ONCE, wait_ms: 1000 });
      if (!deliveries.length) continue;
      const reject = deliveries.map(({ delivery }, at) => ({ delivery, reason: `reason ${at % 20}` }));
      const { failed } = await call("POST", "/v1/topics/letters/groups/billing/settle", { reject });
      assert.deepEqual(failed, []);
      done += deliveries.length;
    }
  }));
}

/** Does something in the page, and tells how long that took and what it loaded. */
async function timed(page, name, act) {
  const [before, at] = [page.loaded, performance.now()];
  await act();
  const [took, loaded] = [Math.round(performance.now() - at), page.loaded - before];
  console.log(`${name}: ${took} ms, ${Math.round(loaded / 1024)} KiB`);
  assert.ok(took < LIMIT_MS, `${name} took ${took} ms`);
  assert.ok(loaded < LOADED, `${name} loaded ${loaded} bytes`);
}

async function main() {
  const began = performance.now();
  await seed();
  console.log(`seeded ${TOPICS} topics and ${LETTERS} dead letters in ${Math.round((performance.now() - began) / 1000)} s`);
  const page = await Browser.open(origin);
  const last = `t${String(TOPICS - 1).padStart(5, "0")}`;
  const numbers = (value) => value.toLocaleString("en-US").replaceAll(",", "\u202f");
  const type = (text) => page.eval(`{ const one = document.querySelector('input[type=search]'); one.value = ${JSON.stringify(text)}; one.dispatchEvent(new Event('input')); }`);
  try {
    await page.ask("Page.navigate", { url: `${origin}/` });
    await page.sees("Overview");
    await timed(page, "overview", () => page.open("#/", numbers(TOPICS + 1)));
    await page.shot(join(folder, "overview.png"));
    await timed(page, "topics", () => page.open("#/topics", "t00000"));
    await timed(page, "next page of topics", async () => { await page.press("Next"); await page.sees("Page 2"); });
    await timed(page, "a topic by name", async () => { await type(last); await page.until("the topic alone", `document.querySelectorAll('tbody tr').length === 1 && document.querySelector('tbody').textContent.includes('${last}')`); });
    await page.shot(join(folder, "topics.png"));
    await timed(page, "groups", () => page.open("#/groups", "Groups"));
    await timed(page, "dead letters over all topics", async () => {
      await page.open("#/dead", "Dead letters");
      for (let more = 0; more < 30 && !(await page.eval("document.querySelector('main').textContent.includes('reason 0')")); more += 1) await page.press((await page.eval("[...document.querySelectorAll('main button')].map((one) => one.textContent)")).find((one) => one.startsWith("Look at topics after")));
    });
    await page.shot(join(folder, "dead.png"));
    await timed(page, "letters of a topic", () => page.open("#/dead/letters", `Delete all ${numbers(LETTERS)}`));
    await timed(page, "next page of letters", async () => { await page.press("Next"); await page.sees("Page 2"); });
    await timed(page, "letters by group", async () => { await page.fill("Group", "billing"); await page.sees(`Delete these ${numbers(LETTERS)}`); });
    await page.shot(join(folder, "letters.png"));
    await timed(page, "a group with dead letters", () => page.open("#/groups/letters/billing", "Partitions"));
    assert.deepEqual(page.errors, []);
    console.log("console ok");
  } catch (error) {
    await page.shot(join(folder, "failed.png")).catch(() => {});
    throw error;
  } finally {
    await page.close();
  }
}
await main();
