#!/usr/bin/env python3
"""A worker in plain Python, with nothing to install. Copy it and replace `handle`.

    onward submit --kind count --payload '{"steps": 20}'
    python3 examples/worker.py
"""
import json, os, signal, socket, time, urllib.error, urllib.request, uuid

SERVER = os.environ.get("ONWARD_SERVER", "http://127.0.0.1:7400") + "/v1"
TOKEN = os.environ.get("ONWARD_TOKEN")
HEADERS = {"Content-Type": "application/json", **({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})}
WORKER = os.environ.get("WORKER_ID", f"python-{socket.gethostname()}")  # the same after a restart
INCARNATION = str(uuid.uuid4())  # new in each life, so that what the last one held goes to others at once
draining = False  # after SIGTERM: the job is given back at its next step, with its checkpoint

def handle(lease, progress):
    """The work. Report what is done, as it is done; the checkpoint is where the next attempt would go on."""
    steps = lease["payload"]["steps"]
    for done in range((lease["checkpoint"] or 0) + 1, steps + 1):
        time.sleep(lease["payload"].get("pause_s", 0.1))
        progress(done, steps, checkpoint=done)
    return {"counted_to": steps}

class Stop(Exception):
    """Ends the attempt by a call, given as verb and body; without one, the attempt is not ours any more."""

def call(path, body):
    """Repeats what was not answered: every call here is safe to repeat. None: the attempt is not ours any more."""
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), HEADERS)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 409:
                return None
            if error.code not in (429, 503):
                raise SystemExit(f"{path}: {error.code} {error.read().decode()}")
        except OSError as error:  # for example while the node restarts
            if draining:
                raise
            print(error, "(trying again)", flush=True)
        time.sleep(1)

def work(lease):
    path, deadline = f"/leases/{lease['receipt']}", time.monotonic() + lease["deadline_remaining_ms"] / 1000

    def progress(done, total, checkpoint):
        nonlocal deadline
        beat = call(path + "/beat", {"watermark": done, "total": total, "checkpoint": checkpoint})
        if not beat:
            raise Stop(None, None)
        if beat["cancel"]:
            raise Stop("fail", {"error": f"cancelled at {done} of {total}", "retryable": False})
        if draining and done < total:
            raise Stop("release", {"checkpoint": checkpoint})
        if done < total and deadline - time.monotonic() < 10:  # more time is granted for progress
            ask = {"reason": "long_workflow", "progress": done / total}
            deadline += (call(path + "/request-extension", ask) or {"extension_ms": 0})["extension_ms"] / 1000

    try:
        verb, body = "succeed", {"result": handle(lease, progress)}
    except Stop as stop:
        verb, body = stop.args
    except Exception as error:  # the job's retry policy decides what follows
        verb, body = "fail", {"error": repr(error), "retryable": True}
    settled = verb and call(f"{path}/{verb}", body) is not None
    print(lease["job_id"], verb if settled else "lost", flush=True)

def drain(*_):
    global draining
    draining = True

for name in (signal.SIGTERM, signal.SIGINT):
    signal.signal(name, drain)
while not draining:
    poll = {"worker_id": WORKER, "incarnation": INCARNATION, "kinds": ["count"], "max": 1, "wait_s": 5, "lease_s": 30}
    answer = call("/leases", {**poll, "poll_id": str(uuid.uuid4())}) or exit("a newer process took this worker's place")
    for lease in answer["leases"]:
        work(lease)
call(f"/workers/{WORKER}/goodbye", {"incarnation": INCARNATION})
