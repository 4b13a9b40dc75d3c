#!/bin/sh
# A worker in curl and sh: leases a job of kind `greet`, beats, reports progress, asks for more time, succeeds, and
# says goodbye, so that nobody waits for it.
# Usage: examples/curl-worker.sh [URL]. It takes one job and ends; run it in a loop to take many.
set -eu
url=${1:-${ONWARD_SERVER:-http://127.0.0.1:7400}}/v1
auth=${ONWARD_TOKEN:+Authorization: Bearer $ONWARD_TOKEN}

call() { # call PATH JSON: prints the answer, or says what was refused and fails
    curl --silent --show-error --fail-with-body -H "${auth:-Accept: application/json}" \
        -H 'Content-Type: application/json' -d "$2" "$url$1" || { echo >&2; return 1; }
}
field() { # field NAME: the value of a string field in the JSON that comes in
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"
}

goodbye() {
    call "/workers/curl-$$/goodbye" "{\"incarnation\":\"$$\"}" > /dev/null
}

# The same poll id again gives the same lease, so a lost answer costs nothing.
poll="{\"worker_id\":\"curl-$$\",\"incarnation\":\"$$\",\"kinds\":[\"greet\"],\"max\":1,\"wait_s\":20,\"lease_s\":30,\"poll_id\":\"$$\"}"
lease=$(call /leases "$poll")
receipt=$(echo "$lease" | field receipt)
if [ -z "$receipt" ]; then
    echo "nothing to do"
    goodbye
    exit 0
fi
echo "leased job $(echo "$lease" | field job_id)"

for step in 1 2 3; do # the work; every beat renews the lease, and a rising watermark shows that it moves
    echo "step $step: $(call "/leases/$receipt/beat" "{\"watermark\":$step,\"total\":3,\"note\":\"step $step\"}")"
done
echo "more time: $(call "/leases/$receipt/request-extension" \
    '{"reason":"long_workflow","progress":0.9,"estimated_remaining_s":5}')"

answer=$(call "/leases/$receipt/succeed" '{"result":{"greeting":"hello from curl"}}') || { echo "$answer" >&2; exit 1; }
echo "done"
goodbye
