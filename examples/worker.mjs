// A worker in plain JavaScript (Node 18 or newer), with nothing to install. Copy it and replace `handle`.
//
//     onward submit --kind count --payload '{"steps": 20}'
//     node examples/worker.mjs
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const server = (process.env.ONWARD_SERVER ?? "http://127.0.0.1:7400") + "/v1";
const token = process.env.ONWARD_TOKEN;
const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
const worker = process.env.WORKER_ID ?? `node-${hostname()}`; // the same after a restart
const incarnation = randomUUID(); // new in each life, so that what the last one held goes to others at once
let draining = false; // after SIGTERM: the job is given back at its next step, with its checkpoint

/** The work. Report what is done, as it is done; the checkpoint is where the next attempt would go on. */
async function handle(lease, progress) {
  const { steps, pause_s = 0.1 } = lease.payload;
  for (let done = (lease.checkpoint ?? 0) + 1; done <= steps; done++) {
    await sleep(1000 * pause_s);
    await progress(done, steps, done);
  }
  return { counted_to: steps };
}

/** Ends the attempt by this call; without a verb, the attempt is not ours any more. */
class Stop extends Error {
  constructor(verb, body) {
    Object.assign(super(), { verb, body });
  }
}

/** Repeats what was not answered: every call here is safe to repeat. Null: the attempt is not ours any more. */
async function call(path, body) {
  for (;;) {
    try {
      const signal = AbortSignal.timeout(30_000);
      const answer = await fetch(server + path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (answer.ok) return await answer.json();
      if (answer.status === 409) return null;
      if (![429, 503].includes(answer.status)) {
        console.error(path, answer.status, await answer.text());
        process.exit(1);
      }
    } catch (error) { // for example while the node restarts
      if (draining) throw error;
      console.log(String(error.cause ?? error), "(trying again)");
    }
    await sleep(1000);
  }
}

async function work(lease) {
  const path = `/leases/${lease.receipt}`;
  let deadline = Date.now() + lease.deadline_remaining_ms;
  const progress = async (done, total, checkpoint) => {
    const beat = await call(`${path}/beat`, { watermark: done, total, checkpoint });
    if (!beat) throw new Stop();
    if (beat.cancel) throw new Stop("fail", { error: `cancelled at ${done} of ${total}`, retryable: false });
    if (draining && done < total) throw new Stop("release", { checkpoint });
    if (done === total || deadline - Date.now() > 10_000) return;
    const ask = { reason: "long_workflow", progress: done / total }; // more time is granted for progress
    deadline += (await call(`${path}/request-extension`, ask))?.extension_ms ?? 0;
  };
  const { verb, body } = await handle(lease, progress).then(
    (result) => ({ verb: "succeed", body: { result } }), // or else the job's retry policy decides what follows
    (error) => (error instanceof Stop ? error : { verb: "fail", body: { error: String(error), retryable: true } }),
  );
  const settled = verb && (await call(`${path}/${verb}`, body));
  console.log(lease.job_id, settled ? verb : "lost");
}

for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => (draining = true));
while (!draining) {
  const poll = { worker_id: worker, incarnation, kinds: ["count"], max: 1, wait_s: 5, lease_s: 30, poll_id: randomUUID() };
  const answer = await call("/leases", poll);
  if (!answer) throw new Error("a newer process took this worker's place");
  for (const lease of answer.leases) await work(lease);
}
await call(`/workers/${worker}/goodbye`, { incarnation });
