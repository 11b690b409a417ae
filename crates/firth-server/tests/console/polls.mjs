// What the requests of an open overview cost a server: notes them in a real browser, then repeats them
// many times as often, so that what they cost stands out from the noise of a loaded machine.
// Called as: node polls.mjs ORIGIN PID SECONDS [MESSAGES_PER_SECOND], with a server at ORIGIN that is process PID.

import { readFileSync, readdirSync } from "node:fs";
import { Agent, request } from "node:http";
import { Browser } from "./browser.mjs";

const [origin, pid, seconds, rate = "0"] = process.argv.slice(2);
/** How often a page looks, and how many looks per second stand in for it here. */
const EVERY_MS = 2000;
const LOOKS = 100;
const NOTED_MS = 20_000;
const BATCH = 1000;
const ROUNDS = 4;
/** Looks at a time: a loaded machine answers late. */
const WORKERS = 64;
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const agent = new Agent({ keepAlive: true, maxSockets: 256 });

/** Processor seconds of all threads of the process that live, to the nanosecond. */
function used() {
  const threads = readdirSync(`/proc/${pid}/task`);
  return threads.reduce((sum, thread) => { try { return sum + Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, "utf8").split(" ")[0]); } catch { return sum; } }, 0) / 1e9;
}

/** A server may close a connection just when it is used again: then once more. */
const ask = (method, path, body) => once(method, path, body).catch((error) => error.code === "ECONNRESET" ? once(method, path, body) : Promise.reject(error));

function once(method, path, body) {
  const { hostname, port } = new URL(origin);
  const headers = body ? { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) } : {};
  return new Promise((done, fail) => {
    const sent = request({ agent, hostname, port, method, path, headers }, (answer) => {
      let bytes = 0;
      answer.on("data", (chunk) => { bytes += chunk.length; });
      answer.on("end", () => answer.statusCode < 400 ? done(bytes) : fail(new Error(`${path}: ${answer.statusCode}`)));
    });
    sent.on("error", fail);
    sent.end(body);
  });
}

/** The requests that the overview makes again and again, and how often per second. */
async function noted() {
  const browser = await Browser.open(origin);
  await browser.ask("Page.navigate", { url: `${origin}/` });
  await browser.sees("Overview");
  await sleep(EVERY_MS);
  const before = browser.urls.length;
  await sleep(NOTED_MS);
  const counts = new Map();
  for (const url of browser.urls.slice(before)) {
    const path = url.slice(origin.length).replace(/after_ms=\d+/, "after_ms=NOW");
    counts.set(path, (counts.get(path) || 0) + 1);
  }
  await browser.close();
  return [...counts.keys()];
}

function load() {
  let sent = 0, goes = Number(rate) > 0;
  const body = JSON.stringify(Array.from({ length: BATCH }, (_, at) => ({ key: `k${at}`, payload: "x".repeat(100) })));
  const began = performance.now();
  const work = async () => {
    while (goes) {
      if (sent >= (performance.now() - began) / 1000 * Number(rate)) { await sleep(1); continue; }
      sent += BATCH;
      await ask("POST", "/v1/topics/cost/records", body);
    }
  };
  const all = Promise.all(Array.from({ length: 8 }, work));
  return { count: () => sent, stop: async () => { goes = false; await all; } };
}

/** Makes looks at a rate until it is stopped; tells how many. */
function looks(paths) {
  let made = 0, goes = true;
  const began = performance.now();
  const one = () => Promise.all(paths.map((path) => ask("GET", path.replace("NOW", String(Date.now() - EVERY_MS)))));
  const work = async () => {
    while (goes) {
      if (made >= (performance.now() - began) / 1000 * LOOKS) { await sleep(1); continue; }
      made += 1;
      await one();
    }
  };
  const all = Promise.all(Array.from({ length: WORKERS }, work));
  return { count: () => made, stop: async () => { goes = false; await all; } };
}

async function window(running, looking) {
  await sleep(500);
  const [cpu, sent, made, at] = [used(), running.count(), looking?.count() || 0, performance.now()];
  await sleep(Number(seconds) * 1000);
  const passed = (performance.now() - at) / 1000;
  return { cpu: (used() - cpu) / passed, sent: (running.count() - sent) / passed, looks: ((looking?.count() || 0) - made) / passed };
}

await ask("PUT", "/v1/topics/cost", JSON.stringify({ partitions: 4, retention_records: 100_000, lossy: true }));
const paths = await noted();
console.log(`requests of one look: ${paths.join(" ")}`);
const running = load();
const costs = [];
for (let round = 1; round <= ROUNDS; round += 1) {
  const plain = await window(running);
  const looking = looks(paths);
  const busy = await window(running, looking);
  await looking.stop();
  // Of messages alone the same rate would have cost this much.
  const expected = plain.sent > 0 ? plain.cpu / plain.sent * busy.sent : plain.cpu;
  const cost = (busy.cpu - expected) / busy.looks * 1000;
  costs.push(cost);
  console.log(`round ${round}: ${(plain.cpu * 100).toFixed(1)} % at ${Math.round(plain.sent)}/s without; ${(busy.cpu * 100).toFixed(1)} % at ${Math.round(busy.sent)}/s with ${busy.looks.toFixed(0)} looks/s; a look costs ${cost.toFixed(3)} ms`);
}
await running.stop();
agent.destroy();
costs.sort((a, b) => a - b);
const median = (costs[1] + costs[2]) / 2;
console.log(`a look costs ${median.toFixed(3)} ms of a processor; a page that looks every ${EVERY_MS / 1000} s costs ${(median / EVERY_MS * 100).toFixed(3)} %`);
