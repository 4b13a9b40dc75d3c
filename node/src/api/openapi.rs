//! The description of the HTTP API: what the handlers say of themselves, made fit for tools that generate clients.
//!
//! Handlers describe their bodies. What holds for all of them is added here: an id and a tag for each operation by one
//! rule, tokens, problems, and the words that states, outcomes and verdicts can be.

use onward_core::health::{LoopState, Verdict};
use onward_core::job::{EndingKind, JobState};
use onward_core::manager::WorkerState;
use serde_json::{Map, Value, json};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;

use super::{backup, jobs, leader, leases};

const PROBLEM: &str = "application/problem+json";

/// Paths that are open to every caller.
const OPEN: [&str; 3] = ["/livez", "/readyz", "/startupz"];

const TAGS: [(&str, &str); 7] = [
    ("jobs", "Submit jobs, look at them, cancel, retry and extend them."),
    ("leases", "Work without a session: take leases, beat, settle."),
    ("dead letters", "Jobs that failed and will not be tried again."),
    ("queues", "What is in them; pause and resume."),
    ("schedules", "Jobs that start by the clock: plans, runs, and what became of each due instant."),
    ("nodes", "Workers, their verdicts, and the datacenter."),
    ("operations", "Probes, status, metrics, backup, and who leads."),
];

/// Operations whose id the rule of [`operation_id`] would not make a good name of.
const NAMED: [(&str, &str, &str); 9] = [
    ("post", "/v1/jobs", "submit_job"),
    ("post", "/v1/jobs/batch", "submit_jobs"),
    ("post", "/v1/leases", "poll_leases"),
    ("post", "/v1/leases/{receipt}/request-extension", "request_extension"),
    ("post", "/v1/leases/{receipt}/output", "append_output"),
    ("post", "/v1/backup", "back_up"),
    ("post", "/v1/leader/transfer", "transfer_leader"),
    ("get", "/v1/stats", "get_stats"),
    ("get", "/v1/datacenters", "list_datacenters"),
];

/// The description of everything under `/v1`, and of `more`.
pub fn openapi(more: OpenApi) -> Value {
    let mut all = leases::LeasesApi::openapi();
    all.merge(jobs::JobsApi::openapi());
    all.merge(jobs::schedules::SchedulesApi::openapi());
    all.merge(backup::BackupApi::openapi());
    all.merge(leader::LeaderApi::openapi());
    all.merge(more);
    all.info.title = "Onward".into();
    all.info.description = None;
    let mut all = serde_json::to_value(all).expect("a description is plain data");
    all["tags"] = TAGS.map(|(name, description)| json!({ "name": name, "description": description })).to_vec().into();
    all["security"] = json!([{ "bearerAuth": [] }, {}]);
    all["components"]["securitySchemes"] = json!({ "bearerAuth": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the node: `onward token new`. Needed where the node requires tokens, and for commands.",
    } });
    for (path, methods) in all["paths"].as_object_mut().expect("there are paths") {
        for (method, operation) in methods.as_object_mut().expect("methods by name") {
            describe(method, path, operation.as_object_mut().expect("an operation"));
        }
    }
    let schemas = all["components"]["schemas"].as_object_mut().expect("there are schemas");
    flatten_optional(schemas);
    schemas.iter_mut().for_each(|(of, schema)| name_words(of, schema));
    schemas.extend(words());
    all
}

fn describe(method: &str, path: &str, operation: &mut Map<String, Value>) {
    operation.insert("operationId".into(), operation_id(method, path).into());
    operation.insert("tags".into(), json!([tag(path)]));
    if OPEN.contains(&path) {
        operation.insert("security".into(), json!([]));
    }
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        if parameter["name"] == "state" {
            parameter["schema"] = json!({ "$ref": "#/components/schemas/JobState" });
        }
    }
    let Some(responses) = operation.get_mut("responses").and_then(Value::as_object_mut) else { return };
    for (status, response) in &mut *responses {
        if let Some(response) = response.as_object_mut() {
            let what = if status.starts_with('2') { "done" } else { "refused: what, why and what to do" };
            response.entry("description").or_insert_with(|| what.into());
        }
        // By name: an index would put an empty one where there is none.
        let Some(content) = response.get_mut("content").and_then(Value::as_object_mut) else { continue };
        let problem = json!("#/components/schemas/Problem");
        let is_problem = content.get("application/json").is_some_and(|body| body["schema"]["$ref"] == problem);
        if is_problem && let Some(problem) = content.remove("application/json") {
            content.insert(PROBLEM.into(), problem);
        }
    }
    if !OPEN.contains(&path) {
        let body = json!({ "schema": { "$ref": "#/components/schemas/Problem" } });
        let refused = json!({ "description": "refused: what, why and what to do", "content": { PROBLEM: body } });
        responses.insert("default".into(), refused);
    }
}

/// `get_job`, `list_jobs`, `get_job_ledger`, `cancel_job` of one and `cancel_jobs` of many: the name of a function.
fn operation_id(method: &str, path: &str) -> String {
    if let Some((.., name)) = NAMED.iter().find(|named| (named.0, named.1) == (method, path)) {
        return (*name).to_owned();
    }
    let segments: Vec<&str> = path.trim_start_matches("/v1").split('/').filter(|part| !part.is_empty()).collect();
    let is_name = |segment: &&str| !segment.starts_with('{');
    let word = |segment: &str| segment.replace(['-', '.'], "_");
    let one_of = |segment: &str| word(segment.strip_suffix('s').unwrap_or(segment));
    let followed = |at: usize| segments.get(at + 1).is_some_and(|next| next.starts_with('{'));
    let mut words: Vec<String> = Vec::new();
    for (at, segment) in segments.iter().enumerate().filter(|(_, segment)| is_name(segment)) {
        words.push(if followed(at) { one_of(segment) } else { word(segment) });
    }
    let ends_in_name = segments.last().is_none_or(is_name);
    let verb = match method {
        // `/jobs/{id}/cancel`, `/leases/settle`: the last word is what is done.
        "post" if words.len() > 1 && ends_in_name => words.pop().expect("there are two"),
        "post" => "create".to_owned(),
        "get" if words.len() == 1 && ends_in_name && path.starts_with("/v1/") => "list".to_owned(),
        other => other.to_owned(),
    };
    format!("{verb}_{}", words.join("_"))
}

fn tag(path: &str) -> &'static str {
    match path.strip_prefix("/v1/").map(|rest| rest.split('/').next().unwrap_or(rest)) {
        Some("jobs") => "jobs",
        Some("leases" | "workers") => "leases",
        Some("dead-letters") => "dead letters",
        Some("queues") => "queues",
        Some("schedules") => "schedules",
        Some("nodes" | "datacenters" | "stats") => "nodes",
        _ => "operations",
    }
}

/// A field that is flattened and may be missing has its own fields there, or none of them: it cannot be null.
fn flatten_optional(schemas: &mut Map<String, Value>) {
    let known = schemas.clone();
    for part in
        schemas.values_mut().filter_map(|schema| schema.get_mut("allOf")).filter_map(Value::as_array_mut).flatten()
    {
        let Some([one, null]) = part.get("oneOf").and_then(Value::as_array).map(Vec::as_slice) else { continue };
        let name = one["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/"));
        if let (Some(name), true) = (name, null["type"] == "null") {
            let mut fields = known[name].clone();
            fields.as_object_mut().expect("a schema").remove("required");
            *part = fields;
        }
    }
}

/// Fields that hold one of a few words, or an instant, say so.
fn name_words(of: &str, schema: &mut Value) {
    for part in schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten() {
        name_words(of, part);
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, property) in properties {
        let nullable = property["type"] == json!(["string", "null"]);
        if !nullable && property["type"] != "string" {
            continue;
        }
        let words = match (of, name.as_str()) {
            ("LoopStatus", "state") => "LoopState",
            // The run of a schedule is a job.
            (_, "state") | ("RecordShown", "outcome") => "JobState",
            (_, "outcome") => "AttemptOutcome",
            (_, "verdict") => "Verdict",
            (_, at) if at == "at" || at.ends_with("_at") => {
                property["format"] = "date-time".into();
                continue;
            }
            _ => continue,
        };
        let mut named = json!({ "$ref": format!("#/components/schemas/{words}") });
        if nullable {
            named = json!({ "oneOf": [named, { "type": "null" }] });
        }
        if let Some(description) = property.get("description") {
            named["description"] = description.clone();
        }
        *property = named;
    }
}

fn words() -> [(String, Value); 4] {
    let listed = |words: Vec<&str>| json!({ "type": "string", "enum": words });
    [
        ("JobState".into(), listed(JobState::ALL.iter().map(|state| state.word()).collect())),
        ("LoopState".into(), listed(LoopState::ALL.iter().map(|state| state.code()).collect())),
        ("AttemptOutcome".into(), listed(EndingKind::ALL.iter().map(|ending| ending.code()).collect())),
        (
            "Verdict".into(),
            listed(Verdict::ALL.iter().map(|verdict| verdict.code()).chain(WorkerState::CODES).collect()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> Value {
        openapi(OpenApi::default())
    }

    /// Each path, method and operation.
    fn operations(all: &Value) -> Vec<(&str, &str, &Value)> {
        let paths = all["paths"].as_object().expect("there are paths").iter();
        paths
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods by name").iter();
                methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
            })
            .collect()
    }

    #[test]
    fn every_answer_is_described_and_none_has_an_empty_body() {
        let all = all();
        let mut answers = 0;
        for (path, _, operation) in operations(&all) {
            for (status, answer) in operation["responses"].as_object().expect("every call has answers") {
                answers += 1;
                assert!(answer["description"].is_string(), "{path} {status}: {answer}");
                assert!(answer.get("content").is_none_or(Value::is_object), "{path} {status}: {answer}");
            }
        }
        assert!(answers > 50, "{answers}");
    }

    #[test]
    fn every_operation_has_an_id_of_its_own_and_a_tag_that_is_described() {
        let all = all();
        let mut ids = BTreeSet::new();
        for (path, method, operation) in operations(&all) {
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id), "{method} {path}: {id} is taken");
            let [tag] = &operation["tags"].as_array().expect("tags")[..] else { panic!("{path}: one tag") };
            assert!(TAGS.iter().any(|(known, _)| tag == known), "{path}: {tag}");
        }
        for id in ["submit_job", "get_job", "list_jobs", "cancel_job", "cancel_jobs", "get_job_ledger", "pause_queue"] {
            assert!(ids.contains(id), "{id} in {ids:?}");
        }
        assert!(ids.iter().all(|id| id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')), "{ids:?}");
    }

    #[test]
    fn states_outcomes_and_verdicts_are_words_of_a_list_and_tokens_are_described() {
        let all = all();
        let schemas = &all["components"]["schemas"];
        assert_eq!(schemas["Job"]["properties"]["state"]["$ref"], "#/components/schemas/JobState");
        assert_eq!(schemas["JobState"]["enum"].as_array().expect("words").len(), JobState::ALL.len());
        assert_eq!(
            schemas["RecordShown"]["properties"]["outcome"]["oneOf"][0]["$ref"],
            "#/components/schemas/JobState"
        );
        assert_eq!(schemas["Health"]["properties"]["verdict"]["$ref"], "#/components/schemas/Verdict");
        assert_eq!(schemas["Job"]["properties"]["created_at"]["format"], "date-time");
        assert_eq!(all["components"]["securitySchemes"]["bearerAuth"]["scheme"], "bearer");
        let attempt = schemas["Attempt"].to_string();
        assert!(attempt.contains("AttemptOutcome") && attempt.contains("lease_remaining_ms"), "{attempt}");
    }
}
