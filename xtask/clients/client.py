"""Submits a job with the client that was generated from the node's description, and reads it back."""

import sys

from onward_client import Client
from onward_client.api.jobs import get_job, submit_job
from onward_client.models import Job, JobState, SubmitJob, Submitted

client = Client(base_url=sys.argv[1])
submitted = submit_job.sync(client=client, body=SubmitJob(kind="from-python", payload={"n": 1}))
assert isinstance(submitted, Submitted), submitted
job = get_job.sync(submitted.id, client=client)
assert isinstance(job, Job), job
assert (job.id, job.state, job.kind) == (submitted.id, JobState.READY, "from-python"), job
print(f"python: job {job.id} is {job.state}, created {job.created_at:%Y-%m-%d}")
