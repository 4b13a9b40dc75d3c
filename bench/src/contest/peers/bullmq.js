// Drives BullMQ: reads a question a line, answers it by a line. Times are those of this process.
'use strict';

const { performance } = require('node:perf_hooks');
const { Queue, Worker } = require('bullmq');

const NAME = 'jobs';
// Longer than any measurement.
const LOCK_MS = 3_600_000;
const PATIENCE_MS = 60_000;

const connection = { host: '127.0.0.1', port: Number(process.argv[2]), maxRetriesPerRequest: null };
let queue;
let body;
let batch;

const options = { removeOnComplete: true };
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function add(jobs) {
  if (jobs === 1) {
    await queue.add('job', { body }, options);
  } else {
    await queue.addBulk(Array.from({ length: jobs }, () => ({ name: 'job', data: { body }, opts: options })));
  }
}

function worker(handle, more) {
  const made = new Worker(NAME, handle, { connection, autorun: false, lockDuration: LOCK_MS, ...more });
  made.on('error', (error) => console.error(`bullmq: ${error}`));
  return made;
}

// Ends when `advance` is told so, or fails when it was not called for long.
function until(use) {
  return new Promise((resolve, reject) => {
    let last = performance.now();
    const watch = setInterval(() => {
      if (performance.now() - last < PATIENCE_MS) return;
      clearInterval(watch);
      reject(new Error('no job for a minute'));
    }, 1_000);
    use((isDone) => {
      last = performance.now();
      if (!isDone) return;
      clearInterval(watch);
      resolve();
    });
  });
}

const answers = {
  async connect(question) {
    body = 'x'.repeat(question.payload);
    batch = question.batch;
    queue = new Queue(NAME, { connection });
    await queue.waitUntilReady();
  },

  async enqueue({ batch: size, time }) {
    const end = performance.now() + time;
    let added = 0;
    while (performance.now() < end) {
      await add(size);
      added += size;
    }
    return added;
  },

  async fill({ jobs }) {
    for (let left = jobs; left > 0; left -= batch) {
      await add(Math.min(left, batch));
    }
  },

  async drain({ jobs, in_flight: concurrency }) {
    const one = worker(async () => {}, { concurrency });
    await one.waitUntilReady();
    let done = 0;
    const all = until((advance) => one.on('completed', () => advance(++done === jobs)));
    const started = performance.now();
    const running = one.run();
    await all;
    const took = performance.now() - started;
    await one.close();
    await running;
    // A worker cannot be told to stop at a number: what it finished beyond is added again.
    if (done > jobs) await add(done - jobs);
    return took;
  },

  async latency({ jobs, every }) {
    const times = [];
    let advance;
    const all = until((given) => (advance = given));
    const one = worker(async (job) => {
      times.push(performance.now() - job.data.at);
      advance(times.length === jobs);
    });
    await one.waitUntilReady();
    const running = one.run();
    const started = performance.now();
    for (let job = 0; job < jobs; job++) {
      await pause(started + job * every - performance.now());
      await queue.add('job', { at: performance.now(), body }, options);
    }
    await all;
    await one.close();
    await running;
    return times;
  },

  // As a worker does for the jobs that it runs, by the same call: the locks of many jobs in one script.
  async touch({ leases, time }) {
    const one = worker(null);
    await one.waitUntilReady();
    const token = 'held';
    const held = [];
    while (held.length < leases) {
      const asked = Math.min(batch, leases - held.length);
      const taken = await Promise.all(Array.from({ length: asked }, () => one.getNextJob(token, { block: false })));
      if (taken.includes(undefined)) throw new Error('there are too few jobs to hold');
      held.push(...taken.map((job) => job.id));
    }
    const tokens = new Array(batch).fill(token);
    const end = performance.now() + time;
    let touched = 0;
    for (let at = 0; performance.now() < end; at = (at + batch) % held.length) {
      const ids = held.slice(at, at + batch);
      const lost = await one.extendJobLocks(ids, tokens.slice(0, ids.length), LOCK_MS);
      if (lost.length > 0) throw new Error(`${lost.length} locks were lost`);
      touched += ids.length;
    }
    await one.close();
    return touched;
  },

  async clear() {
    await queue.obliterate({ force: true });
    await queue.resume();
  },
};

async function main() {
  for await (const line of require('node:readline').createInterface({ input: process.stdin })) {
    const question = JSON.parse(line);
    let answer;
    try {
      answer = { value: (await answers[question.do](question)) ?? null };
    } catch (error) {
      answer = { error: String(error?.stack ?? error) };
    }
    process.stdout.write(`${JSON.stringify(answer)}\n`);
  }
  // Its pipe is closed: nobody asks any more.
  process.exit(0);
}

main();
