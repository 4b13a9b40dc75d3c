//! The description of the HTTP API as a node serves it, which is what generators of clients read.

use std::collections::BTreeSet;

use crate::rig::{Request, start};
use serde_json::{Value, json};
use tempfile::tempdir;

async fn served() -> Value {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    Request::get("/openapi.json").send(node.address()).await.json()
}

/// Each path, method and operation.
fn operations(all: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = all["paths"].as_object().expect("paths by name").iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().expect("methods by name").iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

/// Each schema's name, and a field of it with its own schema, in parts that it is put together from as well.
fn fields<'a>(name: &'a str, schema: &'a Value, found: &mut Vec<(String, &'a str, &'a Value)>) {
    for (field, property) in schema["properties"].as_object().into_iter().flatten() {
        found.push((format!("{name}.{field}"), field, property));
    }
    for part in ["allOf", "oneOf", "anyOf"].iter().filter_map(|all| schema[*all].as_array()).flatten() {
        fields(name, part, found);
    }
}

#[tokio::test]
async fn every_operation_has_an_id_of_its_own_and_a_tag_that_is_described() {
    let all = served().await;
    let described: BTreeSet<&str> =
        all["tags"].as_array().expect("tags are described").iter().filter_map(|tag| tag["name"].as_str()).collect();
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&all) {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no id"));
        assert!(ids.insert(id), "{method} {path}: {id} is taken");
        let tags: Vec<&str> =
            operation["tags"].as_array().into_iter().flatten().filter_map(|tag| tag.as_str()).collect();
        assert!(matches!(tags[..], [tag] if described.contains(tag)), "{method} {path}: {tags:?}");
    }
    assert!(ids.len() > 30, "{ids:?}");
}

#[tokio::test]
async fn probes_status_and_metrics_are_described_and_only_probes_are_open_to_all() {
    let all = served().await;
    assert_eq!(all["components"]["securitySchemes"]["bearerAuth"]["type"], "http");
    assert_eq!(all["components"]["securitySchemes"]["bearerAuth"]["scheme"], "bearer");
    // On loopback a token is not needed for everything, so that none is a way, too.
    assert_eq!(all["security"], json!([{ "bearerAuth": [] }, {}]));
    const PROBES: [&str; 3] = ["/livez", "/readyz", "/startupz"];
    for path in PROBES.iter().chain(&["/status", "/metrics"]) {
        assert!(all["paths"][path]["get"]["responses"]["200"].is_object(), "{path} is not described");
    }
    for (path, method, operation) in operations(&all) {
        let own = PROBES.contains(&path).then(|| json!([]));
        assert_eq!(operation.get("security"), own.as_ref(), "{method} {path}");
    }
}

#[tokio::test]
async fn states_outcomes_and_verdicts_are_words_of_a_list_wherever_they_stand() {
    let all = served().await;
    let lists = [("state", "JobState"), ("outcome", "AttemptOutcome"), ("verdict", "Verdict")];
    let list_of = |place: &str, field: &str| match place {
        "LoopStatus.state" => Some("LoopState"),
        "RecordShown.outcome" => Some("JobState"),
        _ => lists.iter().find(|(name, _)| *name == field).map(|(_, list)| *list),
    };
    let schemas = &all["components"]["schemas"];
    for (_, list) in lists {
        assert_eq!(schemas[list]["type"], "string", "{list}");
        assert!(schemas[list]["enum"].as_array().is_some_and(|words| words.len() >= 8), "{list}: {}", schemas[list]);
    }
    let mut found = Vec::new();
    for (name, schema) in schemas.as_object().expect("schemas by name") {
        fields(name, schema, &mut found);
    }
    let mut places: Vec<(String, &str, &Value)> = found;
    for (path, method, operation) in operations(&all) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a parameter has a name");
            places.push((format!("{method} {path}?{name}"), name, &parameter["schema"]));
        }
    }
    let mut seen = BTreeSet::new();
    for (place, field, schema) in places {
        let Some(list) = list_of(&place, field) else { continue };
        let wanted = json!(format!("#/components/schemas/{list}"));
        let nullable = schema["oneOf"].as_array().and_then(|parts| parts.first());
        assert_eq!(nullable.unwrap_or(schema)["$ref"], wanted, "{place}: {schema}");
        seen.insert(place);
    }
    for place in ["Job.state", "Workflow.state", "Attempt.outcome", "Health.verdict", "get /v1/jobs?state"] {
        assert!(seen.contains(place), "{place} in {seen:?}");
    }
}

#[tokio::test]
async fn the_states_of_loops_that_a_node_shows_are_described() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let all = Request::get("/openapi.json").send(node.address()).await.json();
    let words = all["components"]["schemas"]["LoopState"]["enum"].as_array().expect("words").clone();
    let status = Request::get("/status").send(node.address()).await.json();
    let loops = status["loops"].as_array().expect("loops are shown").clone();
    assert!(!loops.is_empty());
    for one in loops {
        assert!(words.contains(&one["state"]), "{one} in {words:?}");
    }
}
