// Submits a job with types that were generated from the node's description, and reads it back.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: process.argv[2] });

const submitted = await client.POST("/v1/jobs", { body: { kind: "from-typescript", payload: { n: 1 } } });
if (!submitted.data) throw new Error(JSON.stringify(submitted.error));

const answer = await client.GET("/v1/jobs/{id}", { params: { path: { id: submitted.data.id } } });
if (!answer.data) throw new Error(JSON.stringify(answer.error));

const job: components["schemas"]["Job"] = answer.data;
const ready: components["schemas"]["JobState"] = "ready";
if (job.id !== submitted.data.id || job.state !== ready) throw new Error(JSON.stringify(job));
console.log(`typescript: job ${job.id} is ${job.state}`);
