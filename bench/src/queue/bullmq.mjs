// BullMQ as a subject: jobs added in bulk, one worker with many jobs at once, finished jobs removed.
// Arguments: folder with node_modules, port, act, messages. Prints one JSON line.
import { createRequire } from 'node:module';
import { performance } from 'node:perf_hooks';

const [folder, port, act, messages] = process.argv.slice(2);
const { Queue, Worker } = createRequire(folder + '/')('bullmq');
const connection = { host: '127.0.0.1', port: Number(port) };
const goal = Number(messages), bulk = 500, warm = Math.floor(goal / 10);
const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true } });
const payload = 'x'.repeat(256);
const latencies = [];
let seen = 0, begun;

function count(n) {
  const before = seen;
  seen += n;
  if (before < warm && seen >= warm) begun = { at: performance.now(), cpu: process.cpuUsage(), seen };
}

async function produce(counts) {
  for (let sent = 0; sent < goal; sent += bulk) {
    const jobs = Array.from({ length: Math.min(bulk, goal - sent) }, () => ({ name: 'm', data: payload }));
    await queue.addBulk(jobs);
    if (counts) count(jobs.length);
  }
}

async function pace() {
  const start = performance.now();
  for (let n = 0; n < goal; n++) {
    const wait = start + n - performance.now();
    if (wait > 0) await new Promise((go) => setTimeout(go, wait));
    void queue.add('m', { at: performance.now(), payload });
  }
}

function consume() {
  return new Promise((done) => {
    const worker = new Worker('bench', async (job) => {
      if (typeof job.data.at === 'number') latencies.push((performance.now() - job.data.at) * 1000);
    }, { connection, concurrency: 100 });
    worker.on('completed', async () => {
      count(1);
      if (seen === goal) {
        const figures = end();
        await worker.close();
        done(figures);
      }
    });
  });
}

function end() {
  const cpu = process.cpuUsage(begun.cpu);
  latencies.sort((a, b) => a - b);
  const at = (q) => latencies[Math.floor(latencies.length * q)] ?? 0;
  return {
    messages: seen - begun.seen, wall_us: (performance.now() - begun.at) * 1000, cpu_us: cpu.user + cpu.system,
    p50_us: at(0.5), p99_us: at(0.99),
  };
}

await queue.waitUntilReady();
let figures;
if (act === 'produce') { await produce(true); figures = end(); }
if (act === 'consume') { await produce(false); figures = await consume(); }
if (act === 'e2e') [figures] = await Promise.all([consume(), produce(false)]);
if (act === 'latency') [figures] = await Promise.all([consume(), pace()]);
await queue.close();
console.log(JSON.stringify(figures));
