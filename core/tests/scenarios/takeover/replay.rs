//! A replay gives the same state.

use super::*;

#[test]
fn a_replay_gives_the_same_state_after_every_kind_of_event() {
    let mut rig = Rig::new();
    rig.worker("bystander-1", 101, 1, &["other"]);
    rig.worker("bystander-2", 102, 1, &["other"]);
    let session = rig.worker("w", 1, 4, &["k"]);
    // Beats, marks, checkpoints, quiet sections, grants, an extension by hand, a refusal.
    let long = rig.submit(Draft { idempotency_key: Some("once".into()), ..job("k") });
    let claim = rig.claim(session);
    rig.beat(session, Beat { checkpoint: Some(bytes("half")), ..Beat::progress(claim, 1) }).unwrap();
    rig.beat(session, Beat { quiet: Some(secs(20)), ..Beat::plain(claim) }).unwrap();
    rig.restart(secs(2));
    let session = rig.hello("w", "1", 2, 4, &["k"], vec![claim]);
    rig.beat(session, Beat::progress(claim, 2)).unwrap();
    rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    let extend = Call::Extend { job: long, by: secs(60), reason: "slow disk".into(), request: name("r1") };
    assert!(rig.call(extend).is_ok());
    rig.restart(secs(2));
    let session = rig.hello("w", "1", 3, 4, &["k"], vec![claim]);
    // A recovery from Suspect resets its grants.
    rig.close(session);
    let session = rig.hello("w", "1", 4, 4, &["k"], vec![claim]);
    rig.succeed(session, claim).unwrap();
    rig.fail(session, claim).unwrap_err();
    // A delay, a cancel, an overall timeout, a dead letter.
    rig.submit(Draft { delay: Some(secs(1)), ..job("k") });
    let cancelled = rig.submit(job("k"));
    rig.cancel(cancelled);
    let timed_out = rig.submit(Draft { timeout: Some(secs(5)), ..job("k") });
    let dead = rig.submit(Draft { retry: Some(Retry { max_attempts: 1, base: ms(1), max: ms(1) }), ..job("k") });
    for claim in held_out(&mut rig, session) {
        if claim.job == dead {
            rig.fail(session, claim).unwrap();
        }
    }
    rig.restart(secs(2));
    rig.advance(secs(20));
    assert_eq!(rig.state_of(timed_out), JobState::TimedOut);
    done(&mut rig, Call::DropDeadLetter { job: dead });
    // Eviction, probation and its end; drain and undrain; pause and resume; forgetting.
    rig.worker("bystander-1", 111, 1, &["other"]);
    rig.worker("bystander-2", 112, 1, &["other"]);
    let session = rig.hello("w", "2", 5, 4, &["k"], vec![]);
    rig.close(session);
    rig.submit(job("k"));
    let session = rig.hello("w", "3", 6, 4, &["k"], vec![]);
    let held = held_out(&mut rig, session);
    assert!(!held.is_empty());
    rig.close(session);
    rig.advance(secs(10));
    assert_eq!(rig.eviction_count(), 1);
    rig.restart(secs(2));
    let session = rig.hello("w", "4", 7, 4, &["k"], vec![]);
    assert!(rig.worker_view("w").probation);
    let claim = rig.claim(session);
    rig.succeed(session, claim).unwrap();
    done(&mut rig, Call::DrainWorker(worker_id("w")));
    rig.restart(secs(2));
    rig.hello("w", "4", 8, 4, &["k"], vec![]);
    assert!(rig.worker_view("w").drained);
    done(&mut rig, Call::UndrainWorker(worker_id("w")));
    done(&mut rig, Call::PauseQueue(name("default")));
    rig.restart(secs(2));
    done(&mut rig, Call::ResumeQueue(name("default")));
    let archived = std::mem::take(&mut rig.to_archive);
    rig.step(Input::Archived { jobs: archived });
    let session = rig.hello("gone", "1", 9, 1, &["k"], vec![]);
    for claim in held_out(&mut rig, session) {
        rig.ask_extension(session, vec![claim], 0.1).result.unwrap();
    }
    rig.close(session);
    rig.advance(secs(3_600));
    rig.restart(secs(2));
    rig.advance(secs(24 * 3_600));

    // A schedule that starts, waits, is skipped, rests and goes.
    let schedule = name("tidy");
    let draft = ScheduleDraft {
        schedule: schedule.clone(),
        timing: Timing::Every(secs(60)),
        job: job("k"),
        overlap: Overlap::Queue,
        missed: MissedPolicy::Once,
        jitter: secs(1),
        critical: true,
        paused: None,
    };
    assert!(rig.call(Call::SetSchedule(Box::new(draft))).is_ok());
    rig.advance(secs(200));
    done(&mut rig, Call::PauseSchedule(schedule.clone()));
    rig.advance(secs(200));
    rig.restart(secs(2));
    done(&mut rig, Call::ResumeSchedule(schedule.clone()));
    rig.restart(secs(2));
    done(&mut rig, Call::RemoveSchedule(schedule));

    let seen: BTreeSet<u32> = rig.log.iter().map(|stamped| kind_of(&stamped.event)).collect();
    let missing: Vec<u32> = (0..KINDS).filter(|kind| !seen.contains(kind)).collect();
    assert_eq!(missing, [0; 0], "kinds of events that this test did not cause");
    rig.restart(secs(1));
    let ordered = rig.log.windows(2).all(|pair| pair[0].at <= pair[1].at);
    assert!(ordered, "log time never runs back, within a term or across terms");
}

/// A number for every kind of event; a new kind must be given one, and be part of the replay test.
fn kind_of(event: &Event) -> u32 {
    match event {
        Event::TermBegan { .. } => 0,
        Event::JobSubmitted(_) => 1,
        Event::WorkflowDue(_) => 2,
        Event::HandedOut(_) => 3,
        Event::AttemptEnded { .. } => 4,
        Event::CancelAsked { .. } => 5,
        Event::JobTimedOut { .. } => 6,
        Event::QuietBegan { .. } => 7,
        Event::QuietEnded { .. } => 8,
        Event::Checkpointed { .. } => 9,
        Event::ProgressMarked { .. } => 10,
        Event::ExtensionDecided(_) => 11,
        Event::JobExtended { .. } => 12,
        Event::ClaimRefused { .. } => 13,
        Event::WorkerEvicted { .. } => 14,
        Event::ProbationBegan { .. } => 15,
        Event::ProbationEnded { .. } => 16,
        Event::GrantsReset { .. } => 17,
        Event::WorkerDrained { .. } => 18,
        Event::WorkerUndrained { .. } => 19,
        Event::WorkerForgotten { .. } => 20,
        Event::QueuePaused { .. } => 21,
        Event::QueueResumed { .. } => 22,
        Event::DeadLetterDropped { .. } => 23,
        Event::JobsArchived { .. } => 24,
        Event::KeysExpired { .. } => 25,
        Event::IncarnationReplaced { .. } => 26,
        Event::IncarnationSeen { .. } => 27,
        Event::ScheduleSet(_) => 28,
        Event::ScheduleRemoved { .. } => 29,
        Event::SchedulePaused { .. } => 30,
        Event::ScheduleResumed { .. } => 31,
        Event::InstantsPassed { .. } => 32,
        Event::InstantWaits { .. } => 33,
        // Of jobs of a gate, which have tests of their own.
        Event::LocallyTimedOut { .. }
        | Event::LocalTimeoutOver { .. }
        | Event::GateAnswered { .. }
        | Event::TimeGiven { .. }
        | Event::JobWithdrawn { .. } => KINDS,
    }
}

const KINDS: u32 = 34;
