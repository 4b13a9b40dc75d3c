//! The oracle can fail: each fact that it knows otherwise than the node is found.

use onward_core::ids::{JobId, Name};
use onward_core::message::EndReport;

use super::facts::{Job, KnownAnswer, Report};
use super::{Bytes, World};
use crate::every::live;

type Lie = fn(&mut Job) -> bool;

/// Each changes what is known of a job, if it is one of which such a thing is known.
const LIES: [(&str, Lie); 14] = [
    ("it is nowhere", |job| job.is_sure && !std::mem::replace(&mut job.is_nowhere, true)),
    ("its payload", |job| change(&mut job.payload)),
    ("its result", |job| change_report(job, |end| matches!(end, EndReport::Succeed { .. }))),
    ("its error", |job| change_report(job, |end| matches!(end, EndReport::Fail { .. }))),
    ("its success was forgotten", |job| forget_report(job, |end| matches!(end, EndReport::Succeed { .. }))),
    ("its failure was forgotten", |job| forget_report(job, |end| matches!(end, EndReport::Fail { .. }))),
    ("its checkpoint", |job| job.checkpoint.stored.as_mut().is_some_and(change)),
    ("it has a checkpoint", |job| job.checkpoint.stored.replace(Bytes::from([7])).is_none() && job.is_sure),
    ("it was extended so", |job| {
        let given = job.extensions.values_mut().find(|given| given.total.is_sure());
        given.is_some_and(|given| {
            given.by *= 2;
            true
        })
    }),
    ("the reason of its extension", |job| {
        let given = job.extensions.values_mut().find(|given| given.total.is_sure());
        given.map(|given| given.reason = "none".into()).is_some()
    }),
    ("the total of its extensions", |job| {
        let total = job.extensions.values_mut().find_map(|given| match &mut given.total {
            KnownAnswer::Sure(Some(total)) => Some(total),
            _ => None,
        });
        total.map(|total| *total *= 2).is_some()
    }),
    ("it was replayed", |job| {
        let made = job.replays.values_mut().find_map(|replay| replay.answer.as_mut());
        made.map(|made| *made = JobId::from_u128(7)).is_some()
    }),
    ("it is no dead letter any more", |job| job.has_died && !std::mem::replace(&mut job.is_released, true)),
    ("it is a dead letter still", |job| {
        job.is_released = false;
        std::mem::take(&mut job.is_drop_asked)
    }),
];

fn change(bytes: &mut Bytes) -> bool {
    let mut changed = bytes.to_vec();
    changed[0] ^= 1;
    *bytes = changed.into();
    true
}

fn change_report(job: &mut Job, is_such: impl Fn(&EndReport) -> bool) -> bool {
    let known = job.attempts.values_mut().find_map(|attempt| match &mut attempt.report {
        KnownAnswer::Sure(Report { end, .. }) if is_such(end) => Some(end),
        _ => None,
    });
    match known {
        Some(EndReport::Succeed { result }) => {
            let mut bytes = result.as_inline().expect("it is as the worker gave it").clone();
            change(&mut bytes);
            *result = bytes.into();
            true
        }
        Some(EndReport::Fail { error, .. }) => {
            *error = "another".into();
            true
        }
        _ => false,
    }
}

fn forget_report(job: &mut Job, is_such: impl Fn(&EndReport) -> bool) -> bool {
    let before = job.attempts.len();
    job.attempts.retain(|_, attempt| !attempt.report.maybe().is_some_and(|report| is_such(&report.end)));
    job.attempts.len() < before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_node_says_otherwise_than_it_was_answered_is_found() {
    let world = World::new();
    live(&world, 0).await.unwrap_or_else(|why| panic!("without any fault: {why:?}"));
    let engine = world.start().await.unwrap();
    world.until_it_serves(&engine).await.unwrap();
    let is_right = || async { world.compare(&engine).await };
    is_right().await.unwrap();
    let truth = world.known().jobs.clone();
    for (lie, change) in LIES {
        let ids: Vec<JobId> = truth.keys().copied().collect();
        let is_told = ids.iter().any(|id| {
            let is_told = change(world.known().jobs.get_mut(id).unwrap());
            if !is_told {
                world.known().jobs.clone_from(&truth);
            }
            is_told
        });
        assert!(is_told, "nobody knows that {lie}");
        assert!(is_right().await.is_err(), "it is not found that it is not so: {lie}");
        world.known().jobs.clone_from(&truth);
    }
    world.known().jobs.insert(JobId::from_u128(7), Job::new(Bytes::from([7]), true));
    assert!(is_right().await.is_err(), "a job is not there");
    world.known().jobs.clone_from(&truth);
    let side = Name::new("side").unwrap();
    world.known().queues.get_mut(&side).unwrap().is_paused = false;
    assert!(is_right().await.is_err(), "a queue is paused");
    world.known().queues.remove(&side);
    assert!(is_right().await.is_err(), "nobody has paused it");
    world.stop(engine).await.unwrap();
}
