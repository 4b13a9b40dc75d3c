//! Counts for dashboards: what happened to whom, and how long it took. That they agree with the state after every step
//! is checked by the chaos tests.

use crate::rig::*;
use onward_core::counts::{KindCounts, QueueCounts};
use onward_core::grant::Denial;
use onward_core::input::Input;
use onward_core::job::{Draft, EndingKind, JobState, WorkflowDraft};

fn queue(rig: &Rig, queue: &str) -> QueueCounts {
    let found = rig.manager.counts().queues().find(|(_, name, _)| name.as_str() == queue);
    found.map(|(_, _, counts)| counts.clone()).unwrap_or_default()
}

fn kind(rig: &Rig, kind: &str) -> KindCounts {
    let found = rig.manager.counts().kinds().find(|(name, _)| name.as_str() == kind);
    found.map(|(_, counts)| counts.clone()).unwrap_or_default()
}

#[test]
fn a_job_is_counted_by_queue_and_state_until_it_has_left_the_memory() {
    let mut rig = Rig::new();
    let id = rig.submit(Draft { queue: Some("q".into()), ..job("k") });
    assert_eq!((queue(&rig, "q").jobs[JobState::Ready as usize], queue(&rig, "q").submitted), (1, 1));
    rig.advance(secs(7));
    let waits: Vec<_> = rig.manager.longest_waits().map(|(queue, waited)| (queue.to_string(), waited)).collect();
    assert_eq!(waits, [("q".to_owned(), secs(7))]);
    rig.cancel(id);
    assert_eq!(rig.manager.longest_waits().count(), 0);
    let counts = queue(&rig, "q");
    assert_eq!(counts.jobs[JobState::Ready as usize], 0);
    assert_eq!(counts.jobs[JobState::Cancelled as usize], 1);
    assert_eq!(counts.ended[JobState::Cancelled as usize], 1);
    rig.step(Input::Archived { jobs: vec![id] });
    assert_eq!(queue(&rig, "q").jobs.iter().sum::<u64>(), 0);
    assert_eq!(queue(&rig, "q").ended[JobState::Cancelled as usize], 1, "what happened stays counted");
}

#[test]
fn a_graph_is_one_job_whatever_its_workflows_do() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    let workflow = |name: &str, after: &[&str]| WorkflowDraft {
        name: Some(name.into()),
        kind: "k".into(),
        after: after.iter().map(|name| (*name).into()).collect(),
        ..WorkflowDraft::default()
    };
    rig.submit(Draft {
        workflows: vec![workflow("a", &[]), workflow("b", &[]), workflow("c", &["a", "b"])],
        ..job("k")
    });
    let counted = |rig: &Rig, state: JobState| {
        let jobs = queue(rig, "default").jobs;
        assert_eq!(jobs.iter().sum::<u64>(), 1);
        assert_eq!(jobs[state as usize], 1, "{jobs:?}");
    };
    counted(&rig, JobState::Running);
    let claims: Vec<_> = rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect();
    for claim in claims {
        rig.succeed(session, claim).unwrap();
        counted(&rig, JobState::Running);
    }
    let last = rig.claim(session);
    rig.succeed(session, last).unwrap();
    counted(&rig, JobState::Succeeded);
    assert_eq!(queue(&rig, "default").ended[JobState::Succeeded as usize], 1);
}

#[test]
fn attempts_are_counted_by_kind_and_outcome_with_their_waits_and_run_times() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    rig.advance(secs(20));
    let session = rig.worker("w", 1, 1, &["k"]);
    let claim = rig.claim(session);
    rig.advance(secs(2));
    rig.fail(session, claim).unwrap();
    rig.advance(secs(90));
    let claim = rig.claim(session);
    rig.advance(secs(3));
    rig.succeed(session, claim).unwrap();
    let counts = kind(&rig, "k");
    assert_eq!(counts.attempts[EndingKind::Failed as usize], 1);
    assert_eq!(counts.attempts[EndingKind::Succeeded as usize], 1);
    assert_eq!((counts.run.count(), counts.run.sum().as_secs() >= 5), (2, true));
    let wait = queue(&rig, "default").wait;
    assert_eq!((wait.count(), wait.sum()), (1, secs(20)), "only the first hand-out ends a wait");
}

#[test]
fn a_stuck_attempt_and_a_timeout_are_counted_as_such() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 2, &["k"]);
    rig.submit(Draft { timeout: Some(secs(60)), ..job("k") });
    let hung = rig.submit(job("k"));
    rig.assigned(session);
    rig.advance(secs(130));
    let counts = kind(&rig, "k");
    assert_eq!(counts.attempts[EndingKind::TimedOut as usize], 1);
    assert_eq!((counts.attempts[EndingKind::Stuck as usize], rig.endings(hung)), (1, vec!["stuck"]));
    assert_eq!(queue(&rig, "default").ended[JobState::TimedOut as usize], 1);
}

#[test]
fn grants_and_denials_are_counted() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    rig.submit(patient("k"));
    let claim = rig.claim(session);
    rig.ask_extension(session, vec![claim], 0.5).result.unwrap();
    for _ in 0..2 {
        assert_eq!(rig.ask_extension(session, vec![claim], 0.5).result, Err(Denial::NoProgress));
    }
    let counts = rig.manager.counts();
    assert_eq!(counts.grants(), 1);
    let denied: Vec<_> = counts.denials().filter(|(_, count)| *count > 0).collect();
    assert_eq!(denied, [(Denial::NoProgress, 2)]);
}

#[test]
fn a_restart_counts_the_jobs_that_are_there_and_begins_anew_with_what_happens() {
    let mut rig = Rig::new();
    rig.submit(job("k"));
    let ended = rig.submit(job("k"));
    rig.cancel(ended);
    rig.restart(secs(1));
    let counts = queue(&rig, "default");
    assert_eq!((counts.jobs[JobState::Ready as usize], counts.jobs[JobState::Cancelled as usize]), (1, 1));
    assert_eq!((counts.submitted, counts.ended), (0, [0; JobState::ALL.len()]));
}
