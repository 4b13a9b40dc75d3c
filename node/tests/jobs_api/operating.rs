use serde_json::{Value, json};

use crate::rig::Rig;

#[tokio::test]
async fn queues_show_what_is_in_them_and_can_be_paused() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/v1/queues").await.body, json!({"queues": [], "next_cursor": null}));
    let id = rig.submit(json!({"kind": "a"})).await;
    rig.submit(json!({"kind": "b", "delay_s": 50})).await;
    rig.submit(json!({"kind": "a", "queue": "other"})).await;
    for _ in 0..2 {
        let answer = rig.post("/v1/queues/default/pause", json!({})).await;
        assert_eq!((answer.status, &answer.body), (200, &json!({"name": "default", "paused": true})));
    }
    rig.post("/v1/queues/empty%2Fone/pause", json!({})).await;
    assert_eq!(rig.job(&id).await["reason"], "queue_paused: resume it to go on");
    let queue = |name: &str, paused: bool, ready: u64, counts: Value| {
        let demand = ready + counts["running"].as_u64().unwrap_or(0);
        json!({"name": name, "paused": paused, "ready_workflows": ready, "demand": demand, "counts": counts, "approximate": false})
    };
    let without_waits = |mut answer: Value| {
        for queue in answer["queues"].as_array_mut().unwrap() {
            let waited = queue.as_object_mut().unwrap().remove("oldest_waiting_s").unwrap().as_f64().unwrap();
            assert!((0.0..600.0).contains(&waited), "{waited}");
        }
        answer
    };
    let queues = without_waits(rig.get("/v1/queues").await.body);
    assert_eq!(
        queues["queues"],
        json!([
            queue("default", true, 1, json!({"delayed": 1, "ready": 1})),
            queue("empty/one", true, 0, json!({})),
            queue("other", false, 1, json!({"ready": 1})),
        ])
    );
    assert_eq!(rig.post("/v1/queues/default/resume", json!({})).await.body["paused"], false);
    let taken = rig.take("a").await;
    let queues = without_waits(rig.get("/v1/queues").await.body);
    assert_eq!(queues["queues"][0], queue("default", false, 0, json!({"delayed": 1, "running": 1})));
    rig.succeed(&taken, b"").await;
    assert_eq!(rig.get("/v1/queues").await.body["queues"][0]["counts"], json!({"delayed": 1, "succeeded": 1}));
    for (name, shown) in
        [("other", queue("other", false, 1, json!({"ready": 1}))), ("new", queue("new", false, 0, json!({})))]
    {
        let alone = without_waits(rig.get(&format!("/v1/queues?name={name}")).await.body);
        assert_eq!(alone["queues"], json!([shown]));
    }
    assert_eq!(rig.get("/v1/queues?name=").await.problem(), (400, "invalid"));
    for bad in ["%00", &"x".repeat(129), "%FF"] {
        let answer = rig.post(&format!("/v1/queues/{bad}/pause"), json!({})).await;
        assert_eq!(answer.problem(), (400, "invalid"), "{bad}");
    }
}

#[tokio::test]
async fn nodes_show_their_verdict_and_can_be_drained() {
    let rig = Rig::new().await;
    assert_eq!(rig.get("/v1/nodes").await.body, json!({"nodes": [], "next_cursor": null}));
    let empty = rig.get("/v1/datacenters").await.body;
    assert_eq!(
        (&empty["datacenters"][0]["name"], &empty["datacenters"][0]["health"]),
        (&json!("dc-a"), &json!("unhealthy"))
    );
    assert_eq!(empty["datacenters"][0]["reason"], "no_worker");
    for path in ["/v1/nodes/w1", "/v1/nodes/%00", "/v1/nodes/%FF"] {
        assert_eq!(rig.get(path).await.problem(), (404, "unknown_worker"), "{path}");
    }
    assert_eq!(rig.post("/v1/nodes/w1/drain", json!({})).await.problem(), (404, "unknown_worker"));

    rig.submit(json!({"kind": "a"})).await;
    rig.take("a").await;
    let node = rig.get("/v1/nodes/w1").await.body;
    assert_eq!((&node["id"], &node["role"], &node["incarnation"]), (&json!("w1"), &json!("worker"), &json!("i1")));
    assert_eq!((&node["held"], &node["slots"], &node["free"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(
        (&node["verdict"], &node["action"], &node["reason"]),
        (&json!("busy"), &json!("drain"), &json!("no_free_slot"))
    );
    assert_eq!(node["signals"], json!({"live": true, "ready": false, "progress": "idle"}));
    for flag in ["drained", "evicted", "probation", "connected", "held_by_hold"] {
        assert_eq!(node[flag], false, "{flag}");
    }
    assert_eq!(rig.get("/v1/nodes?limit=1").await.body, json!({"nodes": [node], "next_cursor": null}));
    let full = rig.get("/v1/datacenters").await.body;
    assert_eq!((&full["datacenters"][0]["health"], &full["datacenters"][0]["workers"]), (&json!("busy"), &json!(1)));
    for _ in 0..2 {
        assert_eq!(rig.post("/v1/nodes/w1/drain", json!({})).await.body, json!({"id": "w1", "drained": true}));
        assert_eq!(rig.get("/v1/nodes/w1").await.body["drained"], true);
    }
    assert_eq!(rig.post("/v1/nodes/w1/undrain", json!({})).await.body["drained"], false);
    assert_eq!(rig.get("/v1/nodes/w1").await.body["drained"], false);
}

#[tokio::test]
async fn stats_count_what_happened_and_what_was_refused() {
    let rig = Rig::new().await;
    let id = rig.submit(json!({"kind": "a"})).await;
    rig.post(&format!("/v1/jobs/{id}/retry"), json!({"request_id": "r"})).await;
    let stats = rig.get("/v1/stats").await.body;
    assert_eq!((&stats["seat"], &stats["term"]), (&json!("serving"), &json!(1)));
    assert_eq!((&stats["jobs"], &stats["open_jobs"], &stats["workers"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!((&stats["refusals"]["not_terminal"], &stats["refusals"]["conflict"]), (&json!(1), &json!(0)));
    assert!(stats["engine"]["commits"].as_u64().unwrap() > 0);
    assert!(stats["verdict"].is_string() && stats["signals"]["live"] == true);
}
