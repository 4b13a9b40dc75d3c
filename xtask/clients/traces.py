"""A node that exports traces, and a collector that takes them: jobs are submitted, and their spans looked at.

usage: traces.py ONWARD DATA-FOLDER
"""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_S = 60
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

spans = []


class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf", self.headers
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                spans.extend((service, span) for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def until(what, look):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: {[(s.name, s.attributes) for _, s in spans]}"
        time.sleep(0.05)
    return found


def attribute(span, key):
    value = next((a.value for a in span.attributes if a.key == key), None)
    return value and (value.string_value or value.int_value)


def of(job, name):
    return [span for _, span in spans if attribute(span, "onward.job.id") == job and span.name.startswith(name)]


def main(onward, data):
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ONWARD_", "OTEL_"))}
    env["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{collector.server_port}"
    env["OTEL_SERVICE_NAME"] = "onward-under-test"
    command = [onward, "up", "--json", "--slots", "1", "--listen", "127.0.0.1:0", "--data", str(data)]
    node = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = json.loads(node.stdout.readline())["ready"]
        token = (data / "token").read_text().strip()

        def submit(script, **more):
            job = {"kind": "exec", "payload": {"argv": ["sh", "-c", script]}, **more}
            headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"{url}/v1/jobs", json.dumps(job).encode(), headers)
            return json.load(urllib.request.urlopen(request))["id"]

        seen = data / "traceparent"
        traced = {"headers": {"traceparent": f"00-{TRACE}-{CALLER}-01"}}
        retry = {"retry": {"max_attempts": 2, "base_s": 0.01, "max_s": 0.01}}
        good = submit(f"echo $TRACEPARENT > {seen}", **traced)
        bad = submit("exit 3", **traced, **retry)
        own = submit("true")
        unsampled = submit("true", headers={"traceparent": f"00-{TRACE}-{CALLER}-00"})

        until("two attempts of the one that fails", lambda: len(of(bad, "attempt")) == 2)
        until("the attempt of the last", lambda: of(own, "attempt"))
        for name in ["submit exec", "wait exec", "attempt exec"]:
            (span,) = until(f"{name} of the one that succeeds", lambda: of(good, name))
            assert span.trace_id.hex() == TRACE and span.parent_span_id.hex() == CALLER, span
            assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano, span
        (attempt,) = of(good, "attempt")
        assert attribute(attempt, "onward.outcome") == "succeeded" and attempt.status.code == 0, attempt
        assert seen.read_text().strip() == f"00-{TRACE}-{attempt.span_id.hex()}-01", "the worker continues the attempt"

        first, second = sorted(of(bad, "attempt"), key=lambda span: attribute(span, "onward.fence"))
        assert not first.links and [link.span_id for link in second.links] == [first.span_id], second
        assert first.status.code == 2 and attribute(second, "onward.outcome") == "failed", first
        (submitted,) = of(own, "submit")
        assert submitted.trace_id.hex() == own.replace("-", "") and not submitted.parent_span_id, submitted
        assert not of(unsampled, ""), "nobody looks at it"
        assert {service for service, _ in spans} == {"onward-under-test"}
        print(f"traces: {len(spans)} spans of 3 jobs arrived, and the worker continued its attempt")
    finally:
        node.kill()
        node.wait()


main(sys.argv[1], pathlib.Path(sys.argv[2]).absolute())
