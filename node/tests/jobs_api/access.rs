use axum::body::Body;
use axum::http::{Method, Request};
use onward_node::api::access::{Access, Scope};
use onward_node::api::jobs::JobsApi;
use onward_node::api::jobs::schedules::SchedulesApi;
use serde_json::json;
use utoipa::OpenApi;

use crate::rig::{Rig, read, request};

const ID: &str = "01890000-0000-7000-8000-000000000000";

/// Every route, with the scope that it needs.
fn routes() -> Vec<(Method, String, Scope)> {
    let job = |tail: &str| format!("/v1/jobs/{ID}{tail}");
    vec![
        (Method::POST, "/v1/jobs".into(), Scope::Submit),
        (Method::POST, "/v1/jobs/batch".into(), Scope::Submit),
        (Method::GET, "/v1/jobs".into(), Scope::Read),
        (Method::GET, job(""), Scope::Read),
        (Method::GET, job("/ledger"), Scope::Read),
        (Method::GET, job("/explain"), Scope::Read),
        (Method::GET, job("/events"), Scope::Read),
        (Method::GET, job("/attempts/1/output"), Scope::Read),
        (Method::POST, job("/cancel"), Scope::Submit),
        (Method::POST, job("/retry"), Scope::Submit),
        (Method::POST, job("/extend"), Scope::Operate),
        (Method::POST, "/v1/jobs/cancel".into(), Scope::Operate),
        (Method::GET, "/v1/queues".into(), Scope::Read),
        (Method::POST, "/v1/queues/q/pause".into(), Scope::Operate),
        (Method::POST, "/v1/queues/q/resume".into(), Scope::Operate),
        (Method::GET, "/v1/nodes".into(), Scope::Read),
        (Method::GET, "/v1/nodes/w".into(), Scope::Read),
        (Method::POST, "/v1/nodes/w/drain".into(), Scope::Operate),
        (Method::POST, "/v1/nodes/w/undrain".into(), Scope::Operate),
        (Method::GET, "/v1/datacenters".into(), Scope::Read),
        (Method::GET, "/v1/stats".into(), Scope::Read),
        (Method::GET, "/v1/dead-letters".into(), Scope::Read),
        (Method::POST, "/v1/dead-letters/replay".into(), Scope::Operate),
        (Method::POST, "/v1/dead-letters/drop".into(), Scope::Operate),
        (Method::GET, "/v1/schedules".into(), Scope::Read),
        (Method::GET, "/v1/schedules/s".into(), Scope::Read),
        (Method::PUT, "/v1/schedules/s".into(), Scope::Operate),
        (Method::DELETE, "/v1/schedules/s".into(), Scope::Operate),
        (Method::GET, "/v1/schedules/s/records".into(), Scope::Read),
        (Method::POST, "/v1/schedules/s/pause".into(), Scope::Operate),
        (Method::POST, "/v1/schedules/s/resume".into(), Scope::Operate),
        (Method::POST, "/v1/schedules/s/run-now".into(), Scope::Submit),
    ]
}

#[tokio::test]
async fn every_route_needs_its_scope_and_no_other_will_do() {
    let mut rig = Rig::new().await;
    for (method, path, needed) in routes() {
        // Nobody looked at who asks: denied.
        let unseen = rig.send_unseen(request(method.clone(), &path, "{}")).await;
        assert_eq!(unseen.problem(), (401, "unauthorized"), "{method} {path}");
        // A body that is no JSON must not be what is complained about first.
        rig.access = Access::of_token(Scope::ALL.into_iter().filter(|scope| *scope != needed).collect());
        let denied = read(rig.send(request(method.clone(), &path, "{")).await).await;
        assert_eq!(denied.problem(), (403, "forbidden"), "{method} {path}");
        assert!(denied.body["detail"].as_str().unwrap().contains(needed.word()));
        rig.access = Access::of_token([needed].into_iter().collect());
        let allowed = rig.send(request(method.clone(), &path, "{}")).await;
        assert_ne!(allowed.status(), 403, "{method} {path}");
        assert_ne!(allowed.status(), 405, "{method} {path}");
    }
}

#[test]
fn the_description_has_every_route_and_nothing_else() {
    let mut described = JobsApi::openapi();
    described.merge(SchedulesApi::openapi());
    let described = serde_json::to_value(described).unwrap();
    let paths = described["paths"].as_object().unwrap();
    let mut known = 0;
    for (method, path, _) in routes() {
        let path = path
            .replace(ID, "{id}")
            .replace("attempts/1", "attempts/{n}")
            .replace("queues/q/", "queues/{name}/")
            .replace("schedules/s", "schedules/{name}")
            .replace("nodes/w", "nodes/{id}");
        let operation = &paths[&path][method.as_str().to_lowercase()];
        assert!(operation["responses"].is_object(), "{method} {path}");
        known += 1;
    }
    assert_eq!(paths.values().map(|methods| methods.as_object().unwrap().len()).sum::<usize>(), known);
    let schemas = described["components"]["schemas"].as_object().unwrap();
    for shape in ["Job", "SubmitJob", "SubmitWorkflow", "Problem", "Node", "Queue", "Ledger"] {
        assert!(schemas.contains_key(shape), "{shape}");
    }
    let text = described.to_string();
    for reference in text.match_indices("#/components/schemas/").map(|(at, found)| &text[at + found.len()..]) {
        let name = &reference[..reference.find('"').unwrap()];
        assert!(schemas.contains_key(name), "{name} is spoken of and not described");
    }
}

#[tokio::test]
async fn running_commands_needs_a_token() {
    let mut rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "exec"})).await;
    let taken = rig.take("exec").await;
    rig.fail_for_good(&taken, "no").await;
    rig.access = Access::without_token();
    let before = rig.newest().await;
    let retry = format!("/v1/jobs/{id}/retry");
    for (path, body) in [
        ("/v1/jobs", json!({"kind": "exec"})),
        ("/v1/jobs", json!({"workflows": [{"name": "a", "kind": "a"}, {"name": "b", "kind": "exec"}]})),
        ("/v1/jobs/batch", json!({"jobs": [{"kind": "a"}, {"kind": "exec"}]})),
        (&retry, json!({"request_id": "r"})),
        ("/v1/dead-letters/replay", json!({"jobs": [id], "request_id": "r"})),
    ] {
        let answer = rig.post(path, body).await;
        assert_eq!(answer.problem(), (403, "exec_needs_token"), "{path}");
        assert!(answer.body["detail"].as_str().unwrap().contains("ONWARD_TOKEN"));
    }
    assert_eq!(rig.newest().await, before);
    rig.submit(json!({"kind": "executive"})).await;
}

#[tokio::test]
async fn a_wrong_method_is_no_way_in() {
    let rig = Rig::new().await;
    let request = Request::delete("/v1/jobs").body(Body::empty()).unwrap();
    assert_eq!(rig.send(request).await.status(), 405);
}
