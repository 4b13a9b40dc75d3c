//! Jobs that have left memory, dead letters among them: whatever was asked about them is safe to ask again.

use crate::rig::{PATIENCE, Request, lease, poll_body, post, start, submit, submit_kind, until, verb};
use onward_core::ids::JobId;
use onward_core::input::Call;
use onward_core::job::{Draft, WorkflowDraft};
use onward_core::refusal::Refusal;
use onward_log::{EmbeddedLog, Log};
use onward_node::engine::EngineRefusal;
use onward_node::server::Node;
use serde_json::{Value, json};
use tempfile::tempdir;

async fn dead_letter(node: &Node) -> JobId {
    let job = submit_kind(node.engine(), "k").await;
    let held = lease(node, poll_body("1")).await.pop().unwrap();
    assert_eq!(post(node, &verb(&held, "fail"), json!({ "error": "no", "retryable": false })).await.status, 200);
    job
}

async fn until_archived(node: &Node, job: JobId) {
    until(async || node.engine().read(move |view| view.manager.job(job)).await.unwrap().is_none()).await;
    assert!(node.engine().archived(job).await.unwrap().is_some());
}

/// Each takes 3 MiB of the archive: it is read in pieces that do not end where the limit of their size is.
#[tokio::test]
async fn a_list_goes_on_behind_a_piece_of_the_archive_that_was_cut_by_size() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let workflow = |n: usize| WorkflowDraft {
        name: Some(format!("w{n}").into()),
        kind: "k".into(),
        payload: vec![b'1'; 4_096].into(),
        content_type: None,
        after: vec![],
    };
    let mut submitted = Vec::new();
    for _ in 0..5 {
        let draft = Draft { workflows: (0..750).map(workflow).collect(), ..Draft::default() };
        let job = submit(node.engine(), draft).await;
        assert_eq!(post(&node, &format!("/v1/jobs/{job}/cancel"), json!({})).await.status, 200);
        until_archived(&node, job).await;
        submitted.insert(0, job.to_string());
    }
    let (mut seen, mut path) = (Vec::new(), "/v1/jobs?limit=1000".to_owned());
    loop {
        let page = Request::get(&path).send(node.address()).await.json();
        seen.extend(page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/jobs?limit=1000&cursor={cursor}");
    }
    assert_eq!(seen, submitted);
}

fn replay(jobs: &[JobId], request: &str) -> Value {
    let jobs: Vec<_> = jobs.iter().map(JobId::to_string).collect();
    json!({ "jobs": jobs, "request_id": request })
}

#[tokio::test]
async fn a_replay_that_was_interrupted_is_finished_by_repeating_it_also_after_a_restart() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let (first, second) = (dead_letter(&node).await, dead_letter(&node).await);
    let part = post(&node, "/v1/dead-letters/replay", replay(&[first], "r")).await.json();
    until_archived(&node, first).await;

    let all = post(&node, "/v1/dead-letters/replay", replay(&[first, second], "r")).await;
    assert_eq!(all.status, 200, "{}", all.json());
    let all = all.json();
    assert_eq!(all["jobs"][0], part["jobs"][0], "the same job as the first time");
    assert!(all["jobs"][1]["id"].is_string(), "{all}");
    until_archived(&node, second).await;
    assert_eq!(post(&node, "/v1/dead-letters/replay", replay(&[first, second], "r")).await.json(), all);
    node.shutdown(PATIENCE).await;

    let node = start(data.path()).await;
    assert_eq!(post(&node, "/v1/dead-letters/replay", replay(&[first, second], "r")).await.json(), all);
    // Another request is another wish, and there is no dead letter any more.
    let other = post(&node, "/v1/dead-letters/replay", replay(&[first], "other")).await;
    assert_eq!((other.code(), &other.json()["field"]), ((409, "not_a_dead_letter".into()), &json!("jobs[0]")));
    let nobody = post(&node, "/v1/dead-letters/replay", replay(&[first, JobId::from_u128(1)], "r")).await;
    assert_eq!((nobody.code(), &nobody.json()["field"]), ((404, "unknown_job".into()), &json!("jobs[1]")));
}

#[tokio::test]
async fn a_replay_that_is_repeated_with_another_beginning_is_a_conflict() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let workflows = json!([{ "name": "a", "kind": "k" }, { "name": "b", "kind": "k", "after": ["a"] }]);
    let job = post(&node, "/v1/jobs", json!({ "workflows": workflows })).await.json()["id"].clone();
    let first = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!(post(&node, &verb(&first, "succeed"), json!({})).await.status, 200);
    let second = lease(&node, poll_body("1")).await.pop().unwrap();
    assert_eq!(post(&node, &verb(&second, "fail"), json!({ "error": "no", "retryable": false })).await.status, 200);
    let ask = async |from: &str| {
        let body = json!({ "jobs": [job], "request_id": "r", "from": from });
        post(&node, "/v1/dead-letters/replay", body).await
    };
    let made = ask("failed").await.json();
    for archived in [false, true] {
        if archived {
            until_archived(&node, JobId::parse(job.as_str().unwrap()).unwrap()).await;
        }
        let other = ask("start").await;
        assert_eq!((other.code(), &other.json()["field"]), ((409, "conflict".into()), &json!("jobs[0]")));
        assert_eq!(ask("failed").await.json(), made);
    }
}

#[tokio::test]
async fn a_drop_is_safe_to_repeat_when_the_job_is_archived() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let (first, second) = (dead_letter(&node).await, dead_letter(&node).await);
    let drop = async |jobs: &[JobId]| {
        let jobs: Vec<_> = jobs.iter().map(JobId::to_string).collect();
        post(&node, "/v1/dead-letters/drop", json!({ "jobs": jobs })).await
    };
    assert_eq!(drop(&[first]).await.json()["jobs"][0]["dropped"], true);
    until_archived(&node, first).await;
    let again = node.engine().call(Call::DropDeadLetter { job: first }).await;
    assert_eq!(again, Err(EngineRefusal::ByMachine(Refusal::NotADeadLetter)), "as while it was in memory");
    let both = drop(&[first, second]).await;
    assert_eq!(both.status, 200, "{}", both.json());
    let dropped: Vec<_> = both.json()["jobs"].as_array().unwrap().iter().map(|one| one["dropped"].clone()).collect();
    assert_eq!(dropped, [json!(false), json!(true)]);
    until_archived(&node, second).await;
    assert_eq!(drop(&[second]).await.json()["jobs"][0]["dropped"], false);
    assert_eq!(drop(&[second, JobId::from_u128(1)]).await.code(), (404, "unknown_job".into()));
}

#[tokio::test]
async fn an_extension_is_answered_the_same_when_the_job_is_archived() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let job = submit_kind(node.engine(), "k").await;
    let path = format!("/v1/jobs/{job}/extend");
    let extend = |request: &str| json!({ "by_s": 7.5, "reason": "slow disk", "request_id": request });
    post(&node, &path, extend("r1")).await;
    let given = post(&node, &path, extend("r2")).await;
    assert_eq!((given.status, &given.json()["extensions_s"]), (200, &json!(15.0)));
    post(&node, &format!("/v1/jobs/{job}/cancel"), json!({})).await;
    until_archived(&node, job).await;
    assert_eq!(post(&node, &path, extend("r2")).await.json(), given.json());
    assert_eq!(post(&node, &path, extend("r1")).await.json()["extensions_s"], 7.5, "what it was answered then");
    assert_eq!(post(&node, &path, extend("r3")).await.code(), (409, "already_ended".into()));
}

/// Two workflows: `fetch` has succeeded with a large result, `cut` has failed for good.
async fn failed_graph(node: &Node, result: &str) -> JobId {
    let graph =
        json!({ "workflows": [{ "name": "fetch", "kind": "k" }, { "name": "cut", "kind": "k", "after": ["fetch"] }] });
    let submitted = post(node, "/v1/jobs", graph).await;
    let job = JobId::parse(submitted.json()["id"].as_str().unwrap()).unwrap();
    let fetch = lease(node, poll_body("1")).await.pop().unwrap();
    assert_eq!(post(node, &verb(&fetch, "succeed"), json!({ "result": result })).await.status, 200);
    let cut = lease(node, poll_body("1")).await.pop().unwrap();
    assert_eq!(cut["inputs"], json!({ "fetch": result }));
    assert_eq!(post(node, &verb(&cut, "fail"), json!({ "error": "no", "retryable": false })).await.status, 200);
    job
}

async fn show(node: &Node, job: &str) -> Value {
    Request::get(&format!("/v1/jobs/{job}")).send(node.address()).await.json()
}

#[tokio::test]
async fn a_replay_goes_on_from_the_failed_workflow_with_results_of_its_own() {
    let result = "x".repeat(20_000);
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let dead = failed_graph(&node, &result).await;
    let replayed = post(&node, "/v1/dead-letters/replay", replay(&[dead], "r")).await;
    let again = replayed.json()["jobs"][0]["id"].as_str().unwrap().to_owned();
    until_archived(&node, dead).await;
    node.shutdown(PATIENCE).await;

    let node = start(data.path()).await;
    let shown = show(&node, &again).await;
    let fetch = &shown["workflows"][0];
    assert_eq!((&fetch["state"], &fetch["attempts"]), (&json!("succeeded"), &json!([])));
    assert_eq!((&fetch["taken_from"], &shown["retry_of"]), (&json!(dead.to_string()), &json!(dead.to_string())));
    assert_eq!(shown["progress"], json!({ "done": 1, "total": 2 }));
    let cut = lease(&node, poll_body("2")).await.pop().unwrap();
    assert_eq!((&cut["workflow"], &cut["inputs"]["fetch"]), (&json!("cut"), &json!(result)), "byte for byte");
    assert_eq!(post(&node, &verb(&cut, "succeed"), json!({ "result": 2 })).await.status, 200);
    until_archived(&node, JobId::parse(&again).unwrap()).await;
    node.shutdown(PATIENCE).await;

    let node = start(data.path()).await;
    let shown = show(&node, &again).await;
    assert_eq!((&shown["state"], &shown["result"]), (&json!("succeeded"), &json!({ "fetch": result, "cut": 2 })));
}

#[tokio::test]
async fn a_replay_from_the_start_runs_every_workflow_again() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let dead = failed_graph(&node, "small").await;
    let mut body = replay(&[dead], "r");
    body["from"] = json!("beginning");
    assert_eq!(post(&node, "/v1/dead-letters/replay", body.clone()).await.code(), (400, "invalid".into()));
    body["from"] = json!("start");
    assert_eq!(post(&node, "/v1/dead-letters/replay", body).await.status, 200);
    assert_eq!(lease(&node, poll_body("1")).await.pop().unwrap()["workflow"], "fetch");
}

#[tokio::test]
async fn a_result_that_cannot_be_read_is_not_taken_for_an_empty_one() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let (dead, whole) = (failed_graph(&node, &"x".repeat(20_000)).await, failed_graph(&node, "small").await);
    node.shutdown(PATIENCE).await;
    let mut log = EmbeddedLog::open(data.path()).unwrap();
    let (term, lost) = (log.tail().unwrap().term, log.blobs(None, 10).unwrap());
    assert_eq!(lost.len(), 1);
    log.drop_blobs(term, &lost).unwrap();
    drop(log);

    let node = start(data.path()).await;
    let refused = post(&node, "/v1/dead-letters/replay", replay(&[whole, dead], "r")).await;
    assert!(refused.status >= 500, "{}", refused.json());
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert!(
        detail.contains("`fetch`") && detail.contains("nothing was replayed") && detail.contains("`start`"),
        "{detail}"
    );
    assert_eq!(refused.json()["field"], "jobs[1]");
    let letters = Request::get("/v1/dead-letters").send(node.address()).await.json();
    assert_eq!(letters["dead_letters"].as_array().unwrap().len(), 2, "nothing has changed");
    let mut body = replay(&[whole, dead], "r");
    body["from"] = json!("start");
    assert_eq!(post(&node, "/v1/dead-letters/replay", body).await.status, 200);
    assert_eq!(lease(&node, poll_body("2")).await.len(), 2);
}
