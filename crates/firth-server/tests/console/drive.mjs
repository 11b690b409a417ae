// Every page of the console with real data, and every action, in a real browser.
// Called as: node drive.mjs ORIGIN FOLDER [all|looks|NAMES] [clicks|keys] with a server at ORIGIN that
// holds nothing yet; NAMES of acts, with commas, for work on one of them. `keys`: by keyboard alone.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { execFileSync } from "node:child_process";
import { Browser } from "./browser.mjs";
import { foreignPage } from "./foreign.mjs";
import { delayed, eventually, routing, sources, unpressed } from "./operate.mjs";

const [origin, folder, what = "all", how = "clicks"] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });

async function call(method, path, body, expected) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  const answer = await fetch(origin + path, { method, ...sent });
  const text = await answer.text();
  assert.ok(expected ? answer.status === expected : answer.ok, `${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}
const post = (path, body) => call("POST", path, body);
const count = async (topic) => (await call("GET", `/v1/topics/${topic}/dead/count`)).count;

const HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">";
const deep = (levels) => "[".repeat(levels) + "]".repeat(levels);

/** Topics, groups, dead letters, claims: what a server in use has. */
async function seed() {
  await call("PUT", "/v1/topics/orders", { partitions: 4, retention_ms: 7 * 86_400_000 });
  await call("PUT", "/v1/topics/mail", { partitions: 1 });
  await call("PUT", "/v1/topics/hostile", { partitions: 1, max_payload: 8 << 20 });
  const drinks = ["coffee", "tea", "cocoa", "soup"];
  await post("/v1/topics/orders/records", Array.from({ length: 400 }, (_, at) => ({ key: `guest-${at % 23}`, json: { order: at, item: drinks[at % 4], total: at * 1.5, paid: at % 3 === 0 }, headers: { source: "till-2" } })));
  await post("/v1/topics/mail/records", [{ payload: "hello" }, { payload: "later", after_ms: 3_600_000 }]);
  await post("/v1/topics/hostile/records", [{ payload: HOSTILE, key: HOSTILE, headers: { "x-note": HOSTILE } }, { payload_base64: Buffer.from(Array.from({ length: 600 }, (_, at) => at * 7 % 256)).toString("base64") }, { payload: deep(20_000), headers: { "content-type": "application/json" } }]);
  await post("/v1/topics/hostile/records", { payload: "x".repeat(5 << 20) });
  await post("/v1/topics/hostile/records", { json: { many: Array.from({ length: 250 }, (_, at) => at) } });
  await call("PUT", "/v1/topics/orders/groups/billing", {});
  for (const reason of ["card was declined", "card was declined", HOSTILE, "timeout after 30 s"]) {
    const { deliveries } = await post("/v1/topics/orders/groups/billing/fetch", { max: 3, wait_ms: 10_000 });
    await post("/v1/topics/orders/groups/billing/settle", { reject: deliveries.map(({ delivery }) => ({ delivery, reason })) });
  }
  await post("/v1/topics/orders/groups/billing/fetch", { max: 4, wait_ms: 10_000, lease_ms: 600_000 });
  await call("PUT", "/v1/topics/orders/groups/audit", {});
  await post("/v1/claims/calls/offers", [{ name: "call-1", payload: "alice" }, { name: "call-2" }, { name: "call-3" }]);
  const { session } = await call("PUT", "/v1/claims/calls/workers/pod-1", { ttl_ms: 600_000, max_claims: 2 });
  await post("/v1/claims/calls/workers/pod-1/poll", { session, wait_ms: 5000 });
}

const PAGES = [
  ["overview", "#/", "To look at"], ["topics", "#/topics", "orders"], ["topic", "#/topics/orders", "guest-"], ["delayed", "#/topics/mail?tab=delayed", "later"], ["groups", "#/groups", "billing"],
  ["group", "#/groups/orders/billing", "In flight"], ["dead", "#/dead", "card was declined"], ["letters", "#/dead/orders", "Attempts"],
  ["claims", "#/claims", "calls"], ["service", "#/claims/calls", "call-1"], ["routing", "#/routing", "Who gets an event?"],
  ["sources", "#/sources", "streaming"], ["source", "#/sources/shop", "public.orders"], ["try", "#/try", "A kitchen"],
];

async function looks(page) {
  const axe = process.env.FIRTH_AXE && readFileSync(process.env.FIRTH_AXE, "utf8");
  for (const [name, hash, text] of PAGES) {
    await page.size(1280, 860);
    await page.theme("light");
    await page.open(hash, text);
    for (const theme of ["light", "dark"]) {
      await page.theme(theme);
      if (axe) {
        await page.eval(`window.axe ? 0 : (${JSON.stringify("")}, 0)`);
        await page.ask("Runtime.evaluate", { expression: axe });
        const found = await page.eval("axe.run(document, { resultTypes: ['violations'] }).then((told) => told.violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(' | ')}`))");
        assert.deepEqual(found, [], `${name} ${theme}`);
      }
      await page.shot(join(folder, `${name}-${theme}.png`));
    }
    await page.size(360, 740);
    await page.theme("light");
    const over = await page.eval("document.documentElement.scrollWidth - innerWidth");
    assert.ok(over <= 0, `${name} is ${over} px too wide at 360 px`);
    await page.shot(join(folder, `${name}-360.png`));
    await page.theme("dark");
    await page.shot(join(folder, `${name}-360-dark.png`));
  }
  await page.size(1280, 860);
  await page.theme("light");
}

/** Finds by key, jumps to a time, opens what is there, and sends it again by the copied command. */
async function browsing(page) {
  await page.open("#/topics/orders", "guest-");
  await page.fill("Start", "time");
  await page.fill("Time", "2001-01-01T00:00");
  await page.until("the oldest", "document.querySelector('tbody td:nth-child(6)')?.textContent.includes('order')");
  await page.fill("Time", "2100-01-01T00:00");
  await page.sees("No records here.");
  await page.fill("Start", "newest");
  await page.until("records", "document.querySelectorAll('tbody tr').length > 10");
  await page.activate("the first record", "document.querySelector('tbody button.linklike')");
  await page.until("a tree", "document.querySelector('.tree .leaf')");
  await page.eval("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }");
  await page.press("Copy payload");
  await page.until("the payload to copy by hand", "document.querySelector('dialog textarea')?.value.startsWith('{\"order\":')");
  await page.press("Close");
  await page.eval("navigator.clipboard.writeText = async (text) => { window.copied = text; }");
  await page.press("Copy as curl");
  await page.until("the command", "window.copied");
  const before = (await call("GET", "/v1/topics/orders")).records;
  execFileSync("sh", ["-c", `${await page.eval("window.copied")} -sf`], { stdio: ["ignore", "ignore", "inherit"] });
  assert.equal((await call("GET", "/v1/topics/orders")).records, before + 1);
  await page.press("Look again");
  await page.fill("Start", "oldest");
  await page.press("Show more");
  await page.until("a second page", "document.querySelectorAll('tbody tr').length > 50");
  await page.fill("Key", "guest-7");
  await page.until("one key", "document.querySelectorAll('tbody tr').length > 5 && [...document.querySelectorAll('tbody tr')].every((row) => row.cells[3].textContent === 'guest-7')");
  await page.fill("Key", "");
  await page.fill("Start", "id");
  await page.fill("Partition", "0");
  const [first] = (await call("GET", "/v1/topics/orders/records?max=1")).records;
  await page.fill("Id", first.id);
  await page.until("records behind it", `((ids) => ids.length > 0 && !ids.includes(${JSON.stringify(first.id)}))([...document.querySelectorAll('tbody button.linklike')].map((one) => one.textContent))`);
}

/** Each tab of a topic, by the mouse. */
async function tabs(page) {
  await page.open("#/topics/orders", "guest-");
  for (const [tab, text] of [["Delayed", "No message waits for its time."], ["Groups", "billing"], ["Partitions", "Trimmed up to"], ["Settings", "Keys find partitions by"], ["Messages", "guest-"]]) {
    await page.press(tab);
    await page.sees(text);
    assert.ok((await page.eval("location.hash")).endsWith(`tab=${tab.toLowerCase()}`));
  }
}

/** Payloads are text, however they look. */
async function hostile(page) {
  await page.open("#/topics/hostile", "<script>");
  const rows = await page.eval("document.querySelectorAll('tbody tr').length");
  assert.equal(rows, 5);
  for (let at = 0; at < rows; at += 1) {
    await page.eval(`[...document.querySelectorAll('tbody button.linklike')][${at}].click()`);
    for (const way of ["JSON", "Text", "Hex"]) {
      await page.eval(`[...document.querySelectorAll('.seg button')].filter((one) => one.textContent === ${JSON.stringify(way)}).forEach((one) => one.click())`);
    }
  }
  assert.equal(await page.eval("document.querySelectorAll('.viewer').length"), 5);
  const large = "[...document.querySelectorAll('.viewer')].find((one) => one.textContent.includes('5.0 MiB'))";
  await page.activate("the large one as text", `[...${large}.querySelectorAll('.seg button')].find((one) => one.textContent === "Text")`);
  await page.press("Show all 5.0 MiB");
  await page.until("all of it", `${large}.querySelector('pre').textContent.length === ${5 << 20}`);
  const tree = "[...document.querySelectorAll('.viewer')].find((one) => one.textContent.includes('250 items'))";
  await page.eval(`[...document.querySelectorAll('.viewer .seg button')].filter((one) => one.textContent === "JSON").forEach((one) => one.click())`);
  await page.until("the tree", `${tree}?.querySelector('.tree details details')`);
  await page.activate("the list", `${tree}.querySelector('.tree details details > summary')`);
  await page.press("Show more of 250");
  await page.until("200 items", `${tree}.querySelectorAll('.leaf').length === 200`);
  assert.equal(await page.eval("document.querySelectorAll('main script, main img').length"), 0);
  assert.ok(!(await page.eval("document.title")).includes("owned"));
  await page.open("#/dead/orders?reason=%3Cscript", "Letters that pass the filter");
  assert.equal(await page.eval("document.querySelectorAll('main script, main img').length"), 0);
}

async function topics(page) {
  await page.open("#/topics", "New topic");
  await page.press("New topic");
  await page.fill("Name", "made-here");
  await page.fill("Partitions", "3");
  await page.press("Create");
  await page.until("the new topic's page", "location.hash === '#/topics/made-here'");
  await page.sees("Send a message");
  await page.press("Send a message");
  await page.fill("Payload is", "json");
  await page.fill("Payload", "{\"a\": 1}");
  await page.press("Send");
  await page.sees("Stored in partition");
  assert.equal((await call("GET", "/v1/topics/made-here")).records, 1);
  await page.press("Change");
  await page.sees("This removes no records.");
  await page.fill("Keep for hours", "1");
  await page.sees("This removes records older than 1 h 0 min");
  await page.fill("Keep for hours", "");
  await page.fill("Keep records per partition", "0");
  await page.sees("This removes up to 1 record beyond the number to keep");
  await page.fill("Keep records per partition", "");
  await page.fill("Partitions", "5");
  await page.press("Save");
  await page.until("the change", "!document.querySelector('dialog')");
  assert.equal((await call("GET", "/v1/topics/made-here")).partitions, 5);
  await page.press("Trim");
  await page.sees("This removes up to 1 of 1 record");
  await page.fill("Keep this many of the newest records of each partition", "9");
  await page.sees("This removes nothing.");
  await page.fill("Keep this many of the newest records of each partition", "0");
  await page.press("Remove records");
  await page.sees("1 record removed");
  await page.press("Delete");
  await page.sees("Type “made-here” to confirm");
  await page.sees("0 records in 5 partitions");
  await page.fill("Type “made-here” to confirm", "made-here");
  await page.press("Delete topic");
  await page.until("the list", "location.hash === '#/topics'");
  await call("GET", "/v1/topics/made-here", undefined, 404);
  await page.open("#/topics/orders", "guest-");
  await page.fill("Contains", "\"order\":377");
  await page.until("one match", "document.querySelectorAll('tbody tr').length === 1");
  await page.fill("Contains", "");
  await page.fill("Filter, CEL over doc, key, op, collection", "doc.item == 'soup' && doc.order >= 390 && key.startsWith('guest-')");
  await page.until("three matches", "document.querySelectorAll('tbody tr').length === 3");
  await page.fill("Filter, CEL over doc, key, op, collection", "item == 'soup'");
  await page.sees("filter: ");
  await page.fill("Filter, CEL over doc, key, op, collection", "");
  await page.until("all again", "document.querySelectorAll('tbody tr').length > 3");
  await page.fill("Start", "oldest");
  await page.fill("Partition", "0");
  await page.until("only partition 0", "[...document.querySelectorAll('tbody tr')].length > 5 && [...document.querySelectorAll('tbody tr')].every((row) => row.cells[2].textContent === '0')");
}

async function groups(page) {
  await page.open("#/topics/orders?tab=groups", "billing");
  await page.press("New group");
  await page.fill("Name", "fresh");
  await page.fill("Starts with", "newest");
  await page.press("Create");
  await page.sees("fresh");
  assert.equal((await call("GET", "/v1/topics/orders/groups/fresh")).lag, 0);
  await page.open("#/groups", "billing");
  await page.write("the search", "document.querySelector('main input[type=search]')", "fre");
  await page.until("the group alone", "document.querySelectorAll('tbody tr').length === 1");
  await page.open("#/groups/orders/billing", "In flight: 4");
  await page.sees("unsettled");
  await page.pressKey("release-0");
  await page.sees("Take partition 0 away?");
  await page.press("Release");
  await page.until("the partition is released", "!document.querySelector('dialog')");
  await page.press("Reset");
  await page.sees("This repeats");
  const told = Number((await page.eval("document.querySelector('dialog .preview-text').textContent")).match(/repeats (\d+)/)[1]);
  const preview = await post("/v1/topics/orders/groups/billing/reset/preview", { to: "oldest" });
  assert.equal(told, preview.repeats);
  const ready = "!document.querySelector('dialog [data-k=go]').disabled";
  await page.fill("Go on with", "time");
  await page.sees("Choose a date and a time.");
  assert.ok(!(await page.eval(ready)), "a reset without a time can be sent");
  await page.fill("Go on with", "age");
  await page.fill("Minutes", "");
  await page.sees("Minutes: write a number.");
  assert.ok(!(await page.eval(ready)), "a reset without minutes can be sent");
  await page.fill("Go on with", "newest");
  await page.sees("This skips");
  await page.until("the button", ready);
  await page.press("Reset");
  await page.sees("The group was reset");
  await page.until("nothing waits", "document.querySelector('.figures dd').textContent === '0'");
  assert.equal((await call("GET", "/v1/topics/orders/groups/billing")).lag, 0);
  await page.press("Retry policy");
  await page.fill("Attempts", "many");
  await page.press("Save");
  await page.sees("Attempts: write a whole number from 0 on.");
  await page.fill("Attempts", "7");
  await page.press("Save");
  await page.until("the policy", "!document.querySelector('dialog')");
  assert.equal((await call("GET", "/v1/topics/orders/groups/billing/policy")).max_attempts, 7);
  await page.open("#/groups/orders/audit", "No consumer is there now.");
  await page.press("Delete");
  await page.fill("Type “audit” to confirm", "audit");
  await page.press("Delete group");
  await page.until("the topic's page", "location.hash.startsWith('#/topics/orders')");
  await call("GET", "/v1/topics/orders/groups/audit", undefined, 404);
}

/** Numbers that no double holds are shown, edited and replayed as they were written. */
async function exact(page) {
  await call("PUT", "/v1/topics/exact", { partitions: 1 });
  const records = `${origin}/v1/topics/exact/records`;
  const sent = await fetch(records, { method: "POST", headers: { "Content-Type": "application/json" }, body: '{"json":{"id":9007199254740993,"price":1.0}}' });
  assert.ok(sent.ok);
  const { deliveries } = await post("/v1/topics/exact/groups/billing/fetch", { max: 1, wait_ms: 10_000 });
  await post("/v1/topics/exact/groups/billing/settle", { reject: [{ delivery: deliveries[0].delivery, reason: "wrong till" }] });
  await page.open("#/dead/exact", "wrong till");
  await page.press("wrong till");
  await page.sees("9007199254740993");
  await page.press("Edit and replay");
  await page.until("the number", "document.querySelector('dialog textarea').value.includes('9007199254740993')");
  await page.activate("for every group", "document.querySelector('dialog input[type=checkbox]')", " ");
  await page.press("Replay this");
  await page.sees("Replayed as edited");
  const stored = await (await fetch(records)).text();
  assert.equal(stored.split("9007199254740993").length, 3, stored);
  assert.equal(stored.split(/"price":\s*1\.0/).length, 3, stored);
}

async function letters(page) {
  await page.open("#/dead", "timeout after 30 s");
  await page.open("#/dead/orders?reason=timeout", "Replay these 3");
  await page.press("timeout after 30 s");
  await page.until("its attempts", "[...document.querySelectorAll('.viewer table[aria-label], .viewer [aria-label=Attempts] tbody tr')].some((one) => /^1/.test(one.textContent) && one.textContent.includes('timeout after 30 s'))");
  await page.press("Edit and replay");
  await page.fill("Payload, JSON", "{\"mended\": true}");
  await page.press("Replay this");
  await page.sees("Replayed as edited");
  await page.press("timeout after 30 s");
  await page.press("Replay");
  await page.sees("Replay these 1");
  assert.equal(await count("orders"), 10);
  await page.open("#/dead/orders?reason=%3Cscript", "Replay these 3");
  const records = (await call("GET", "/v1/topics/orders")).records;
  await page.openRow("billing");
  await page.press("Replay for every group");
  await page.sees("Replayed for every group");
  assert.equal((await call("GET", "/v1/topics/orders")).records, records + 1);
  await page.sees("Replay these 2");
  await page.openRow("billing");
  await page.press("Delete");
  await page.sees("Delete this dead letter?");
  await page.press("Delete");
  await page.sees("Delete these 1");
  await page.press("Look again");
  assert.equal(await count("orders"), 8);
  await page.open("#/dead/orders?reason=declined", "Delete these 6");
  await page.press("Delete these 6");
  await page.sees("This cannot be undone.");
  await page.press("Delete 6");
  await page.sees("Deleted: 6");
  assert.equal(await count("orders"), 2);
  await page.open("#/dead/orders?reason=%3Cscript", "Replay these 1");
  await page.press("Replay these 1");
  await page.press("Cancel");
  await page.open("#/dead/orders", "Delete all 2");
  await page.press("Delete all 2");
  await page.press("Cancel");
  await page.press("Replay all 2");
  await page.press("Replay 2");
  await page.sees("Replayed: 2");
  assert.equal(await count("orders"), 0);
}

async function claims(page) {
  await page.open("#/claims/calls", "pod-1");
  await page.press("Release");
  await page.sees("Another worker takes the unit over.");
  await page.press("Release");
  await page.until("the dialog is gone", "!document.querySelector('dialog')");
  await page.press("Offer a unit");
  await page.fill("Name", "call-9");
  await page.press("Offer");
  await page.sees("call-9");
  assert.equal((await call("GET", "/v1/claims/calls")).offers, 4);
  const ownerOf = async (unit) => (await call("GET", "/v1/claims/calls/offers")).offers.find((one) => one.name === unit)?.owner || "";
  await page.pressKey("seize-call-3");
  await page.sees("No worker works on call-3 until you give it back");
  await page.press("Seize it");
  await page.until("the way back", "document.querySelector('[data-k=give-call-3]')");
  assert.match(await ownerOf("call-3"), /^console-/);
  await page.press("Give back");
  await eventually("it is given back", async () => !(await ownerOf("call-3")).startsWith("console-"));
  await page.pressKey("withdraw-call-9");
  await page.sees("the unit call-9 with its payload and checkpoint");
  await page.press("Withdraw");
  await eventually("it is withdrawn", async () => (await call("GET", "/v1/claims/calls")).offers === 3);
  await page.until("the timeline", "[...document.querySelectorAll('ol.log li')].some((one) => one.textContent.includes('granted'))");
  const { changes } = await call("GET", "/v1/claims/calls/takeovers");
  assert.ok(changes.some((one) => one.kind === "granted" && one.to === "pod-1"), JSON.stringify(changes));
}

async function tryIt(page) {
  await page.open("#/try", "A kitchen");
  await page.press("Send 10 orders");
  await page.sees("10 orders were sent.");
  await page.press("Start the consumer");
  await page.sees("is served");
  await page.sees("It is a dead letter now.");
  await page.press("Stop it");
  await page.sees("The consumer stopped.");
  await page.press("Send 10 orders");
  await page.until("they are sent, too", "document.querySelector('.log').textContent.split('10 orders were sent.').length === 3");
  await page.press("Take 3 and vanish");
  await page.sees("A worker took");
  await page.press("Clean up");
  await page.sees("The topic is deleted");
  const changes = async () => (await call("GET", "/v1/claims/console-try/takeovers")).changes;
  const taken = async () => (await changes()).some((one) => one.kind === "taken_over" && one.from === "ben");
  await page.press("Start two cooks");
  await page.until("both cooks work", "['ada', 'ben'].every((name) => new RegExp(name + ' has oven').test(document.querySelector('.log').textContent))");
  assert.ok(!(await taken()));
  // The server tells of what it saw: of several changes between two looks the last one.
  await eventually("the server has seen ben work", async () => (await changes()).some((one) => one.to === "ben"));
  await page.press("Kill ben");
  await page.sees("ben was killed");
  await page.until("the takeover", "/ada takes over oven-. from ben/.test(document.querySelector('.log').textContent)");
  await page.shot(join(folder, "try-takeover.png"));
  await eventually("the takeover is told", taken);
  await page.press("Bring ben back");
  await page.sees("hands oven-");
  await page.press("Send them home");
  await page.sees("The cooks went home");
}

/** Only by keys: to each page by the navigation, past it, to a link in a table, through a dialog. */
async function keyboard(page) {
  const byClicks = page.byKeys;
  page.byKeys = true;
  await page.open("#/", "Overview");
  for (const [at, title] of [["#/topics", "Topics"], ["#/groups", "Groups"], ["#/dead", "Dead letters"], ["#/claims", "Claims"], ["#/routing", "Routing"], ["#/sources", "Sources"], ["#/try", "Try it"], ["#/topics", "Topics"]]) {
    await page.activate(`the page ${title}`, `document.querySelector('nav a[href="${at}"], #nav a[href="${at}"]')`);
    await page.until(title, `document.querySelector("main h1")?.textContent === ${JSON.stringify(title)}`);
  }
  await page.eval("document.activeElement.blur()");
  await page.activate("the way past the navigation", "document.querySelector('a[href=\"#main\"], .skip')");
  assert.ok(await page.eval("document.activeElement.closest('#main') || document.activeElement.id === 'main'"), "the focus is in the page");
  await page.activate("a topic", "document.querySelector('main tbody a[href=\"#/topics/orders\"]')");
  await page.sees("guest-");
  page.byKeys = byClicks;
  await page.open("#/topics", "New topic");
  await page.eval("document.activeElement.blur()");
  const reach = async (text) => {
    for (let at = 0; at < 60; at += 1) {
      await page.key("Tab");
      if (await page.eval("document.activeElement.textContent.trim()") === text) return;
    }
    throw new Error(`no way to ${text} by Tab`);
  };
  await reach("New topic");
  assert.ok(await page.eval("getComputedStyle(document.activeElement).outlineStyle !== 'none'"), "the focus is not seen");
  await page.key("Enter");
  await page.until("the dialog", "document.querySelector('dialog[open]')");
  assert.equal(await page.eval("document.activeElement.name"), "name");
  await page.key("Escape");
  await page.until("no dialog", "!document.querySelector('dialog')");
  assert.equal(await page.eval("document.activeElement.textContent"), "New topic");
  await page.open("#/topics/orders", "guest-");
  await page.eval("document.activeElement.blur()");
  await reach("Messages");
  await page.key("ArrowRight");
  await page.sees("No message waits for its time.");
  await page.key("ArrowLeft");
  await page.until("the records", "document.querySelector('tbody button.linklike')");
  await reach(await page.eval("document.querySelector('tbody button.linklike').textContent.trim()"));
  await page.key("Enter");
  await page.until("the record", "document.querySelector('.viewer .tree')");
  await page.key("Enter");
  await page.until("no record", "!document.querySelector('.viewer')");
}

const foreign = () => foreignPage(origin, call);

async function main() {
  await seed();
  const page = await Browser.open(origin);
  try {
    // A page asks for what was deleted a moment ago, and for the kitchen before it is made. One act
    // writes a wrong filter.
    page.expected = (entry) => entry.source === "network" && (/ 404 /.test(entry.text) || (/ 400 /.test(entry.text) && /[?&]filter=/.test(entry.url)));
    await page.ask("Page.navigate", { url: `${origin}/` });
    await page.sees("Overview");
    // Two samples, so that there is something to draw.
    await page.until("a chart", "document.querySelector('.chart .line')?.getAttribute('d')");
    await post("/v1/topics/orders/records", Array.from({ length: 50 }, (_, at) => ({ key: `late-${at}`, json: { order: 1000 + at } })));
    await page.sees("Largest lags");
    page.byKeys = how === "keys";
    const acts = [looks, hostile, tabs, browsing, topics, delayed, groups, letters, exact, claims, routing, tryIt, keyboard, sources, foreign];
    for (const act of acts) if (what === "all" || what.split(",").includes(act.name)) await act(page, call);
    if (what === "all") assert.deepEqual(await unpressed(page), [], "each button is pressed by some act");
    assert.deepEqual(page.errors, []);
    assert.deepEqual(page.foreign, []);
    assert.ok(what !== "all" || page.requests > 50);
    console.log("console ok");
  } catch (error) {
    await page.shot(join(folder, "failed.png")).catch(() => {});
    throw error;
  } finally {
    await page.close();
  }
}
await main();
