// What an open console costs a server: its processor time with and without the overview in a real browser.
// Called as: node cost.mjs ORIGIN PID SECONDS [MESSAGES_PER_SECOND], with a server at ORIGIN that is process PID.

import { readFileSync } from "node:fs";
import { Browser } from "./browser.mjs";

const [origin, pid, seconds, rate = "0"] = process.argv.slice(2);
const BATCH = 1000;
const TICKS = 100;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Processor seconds of the process so far. */
function used() {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** Sends as many messages per second until it is stopped; tells how many it sent. */
function load() {
  let sent = 0, goes = Number(rate) > 0;
  const body = JSON.stringify(Array.from({ length: BATCH }, (_, at) => ({ key: `k${at}`, payload: "x".repeat(100) })));
  const began = performance.now();
  const work = async () => {
    while (goes) {
      const due = (performance.now() - began) / 1000 * Number(rate);
      if (sent >= due) { await sleep(1); continue; }
      sent += BATCH;
      const answer = await fetch(`${origin}/v1/topics/cost/records`, { method: "POST", body, headers: { "Content-Type": "application/json" } });
      if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
      await answer.arrayBuffer();
    }
  };
  const all = Promise.all(Array.from({ length: 8 }, work));
  return { count: () => sent, stop: async () => { goes = false; await all; } };
}

/** Share of one processor over a while, and messages per second in it. */
async function share(name, running) {
  await sleep(3000);
  const [before, sent, at] = [used(), running.count(), performance.now()];
  await sleep(Number(seconds) * 1000);
  const passed = (performance.now() - at) / 1000;
  const percent = (used() - before) / passed * 100;
  console.log(`${name}: ${percent.toFixed(2)} % of a processor, ${Math.round((running.count() - sent) / passed)} messages/s`);
  return percent;
}

await fetch(`${origin}/v1/topics/cost`, { method: "PUT", body: JSON.stringify({ partitions: 4, retention_records: 100_000, lossy: true }), headers: { "Content-Type": "application/json" } });
const running = load();
const rounds = [];
for (let round = 1; round <= 3; round += 1) {
  const without = await share(`round ${round} without`, running);
  const browser = await Browser.open(origin);
  await browser.ask("Page.navigate", { url: `${origin}/` });
  await browser.sees("Overview");
  const withConsole = await share(`round ${round} with the overview open`, running);
  await browser.close();
  rounds.push(withConsole - without);
}
await running.stop();
rounds.sort((a, b) => a - b);
console.log(`an open console costs ${rounds[1].toFixed(2)} % of a processor (rounds: ${rounds.map((one) => one.toFixed(2)).join(", ")})`);
