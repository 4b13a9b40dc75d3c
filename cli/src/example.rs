//! Jobs for tests.

use onward::{JobInfo, JobState};
use onward_api::instant::At;
use onward_api::job::{Attempt, Progress, RetryShown, Workflow};

pub fn job(state: &str, workflows: Vec<Workflow>) -> JobInfo {
    JobInfo {
        id: "x".into(),
        kind: Some("k".into()),
        command: None,
        queue: "default".into(),
        state: JobState::of_word(state),
        reason: None,
        created_at: At::from_ms(0),
        started_at: None,
        ended_at: None,
        priority: 0,
        tags: vec![],
        progress: Progress { done: 0, total: Some(10) },
        workflows,
        result: None,
        result_base64: None,
        deadline_at: None,
        timeout_s: 1.0,
        stuck_after_s: 1.0,
        max_extension_s: 1.0,
        extensions_s: 0.0,
        on_stuck: "retry".into(),
        require_progress: false,
        run_at: None,
        retry: RetryShown { max_attempts: 5, base_s: 1.0, max_s: 60.0 },
        limits: vec![],
        unique_key: None,
        idempotency_key: None,
        headers: Default::default(),
        datacenters: vec![],
        timeout_policy: "any".into(),
        retain_s: None,
        retry_of: None,
        dead_letter: false,
        left_out: vec![],
    }
}

pub fn workflow(name: &str, attempts: Vec<Attempt>) -> Workflow {
    Workflow {
        name: name.into(),
        kind: "k".into(),
        state: "running".into(),
        taken_from: None,
        blocked: None,
        waits_for_key: None,
        due_at: None,
        after: vec![],
        counted: 0,
        payload: None,
        payload_base64: None,
        content_type: None,
        attempts,
    }
}

pub fn attempt(n: u32, started_at: At) -> Attempt {
    let (fence, worker) = (7, "w".into());
    Attempt { n, fence, worker, started_at, ended_at: None, outcome: None, error: None, running: None }
}
