//! Cancelling one job, or those that a filter matches.

use super::*;

#[test]
fn cancel_ends_a_job_from_every_state() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    let delayed = rig.submit(Draft { delay: Some(secs(10)), ..job("k") });
    let ready = rig.submit(job("nobody"));
    let waiting = rig.submit(dag(&[("a", &[]), ("b", &["a"])]));
    let claim = rig.claim(session);
    for id in [delayed, ready] {
        rig.cancel(id);
        assert_eq!(rig.state_of(id), JobState::Cancelled);
        rig.cancel(id);
    }
    rig.cancel(waiting);
    assert_eq!(states(&rig, waiting), ["cancelling", "cancelled"]);
    assert_eq!(rig.state_of(waiting), JobState::Cancelling);
    assert_eq!(rig.messages(session).pop(), Some(ToWorker::Cancel { claim, why: CancelWhy::Asked }));
    let before = rig.manager.state().dump();
    rig.cancel(waiting);
    assert_eq!(rig.manager.state().dump(), before, "a repeat changes nothing");
    assert!(rig.cancelled(session).is_empty());
    let beat = rig.beat(session, Beat::progress(claim, 1)).unwrap();
    assert!(beat.cancel, "a beat is told, too");
    rig.tell(session, FromWorker::Ended(vec![claim]));
    assert_eq!(states(&rig, waiting), ["cancelled", "cancelled"]);
    rig.advance(secs(20));
    assert_eq!(rig.state_of(delayed), JobState::Cancelled, "its timer is gone");
    let unknown = rig.new_id();
    assert_eq!(rig.call(Call::Cancel { job: unknown, epoch: None }), Err(Refusal::UnknownJob));
}

#[test]
fn while_cancelling_only_a_success_is_more_than_cancelled() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 9, &["k"]);
    type End = fn(&mut Rig, SessionId, Claim);
    let rows: [(&str, End); 6] = [
        ("succeeded", |rig, session, claim| rig.succeed(session, claim).unwrap()),
        ("cancelled", |rig, session, claim| {
            rig.fail(session, claim).unwrap();
            rig.fail(session, claim).expect("repeated");
            let ended = rig.view(claim.job).workflows[0].ended[0].ending.clone();
            assert!(matches!(ended, onward_core::job::Ending::Failed { error, .. } if &*error == "no"), "it is kept");
        }),
        ("cancelled", |rig, session, claim| rig.fail_for_good(session, claim).unwrap()),
        ("cancelled", |rig, session, claim| {
            rig.settle(session, claim, EndReport::Release { delay: Some(secs(5)) }).unwrap();
        }),
        ("cancelled", |rig, session, claim| {
            rig.advance(secs(150));
            // Neither a beat nor being stuck changes when its lease is over.
            assert_eq!(rig.beat(session, Beat::plain(claim)).unwrap().lease_remaining, secs(150));
            rig.advance(secs(150) - ms(1));
            assert_eq!(rig.state_of(claim.job), JobState::Cancelling);
            rig.advance(ms(1));
        }),
        ("cancelled", |rig, _, _| {
            rig.hello("w", "2", 2, 9, &["k"], vec![]);
        }),
    ];
    for (outcome, end) in rows {
        let id = rig.submit(job("k"));
        let claim = rig.claim(session);
        rig.cancel(id);
        end(&mut rig, session, claim);
        let view = rig.view(id);
        assert_eq!((view.state.word(), view.dead_letter), (outcome, false));
        assert!(rig.to_archive.contains(&id));
    }
}

#[test]
fn a_cancel_by_an_older_gate_is_refused() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["k"]);
    let id = rig.submit(job("k"));
    rig.claim(session);
    let cancel = |rig: &mut Rig, n, gate| rig.call(Call::Cancel { job: id, epoch: Some(GateEpoch { n, gate }) });
    assert_eq!(cancel(&mut rig, 5, 2), Ok(Answer::Done));
    for (n, gate) in [(4, 9), (5, 1)] {
        assert_eq!(cancel(&mut rig, n, gate), Err(Refusal::StaleEpoch));
    }
    assert_eq!(cancel(&mut rig, 5, 2), Ok(Answer::Done));
    assert_eq!(cancel(&mut rig, 6, 1), Ok(Answer::Done));
    assert_eq!(cancel(&mut rig, 5, 2), Err(Refusal::StaleEpoch));
    assert_eq!(rig.call(Call::Cancel { job: id, epoch: None }), Ok(Answer::Done), "a client's carries none");
    assert_eq!(rig.refused(RefusalKind::StaleEpoch), 3);
    let asked = rig.view(id).ledger.into_iter().filter(|entry| matches!(entry.what, LedgerFact::CancelAsked { .. }));
    assert_eq!(asked.count(), 2);
}

#[test]
fn a_filter_cancels_what_it_matches() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 1, &["runs"]);
    let tagged = rig.submit(Draft { tags: vec!["red".into()], ..job("a") });
    let queued = rig.submit(Draft { queue: Some("slow".into()), ..job("a") });
    let delayed = rig.submit(Draft { delay: Some(secs(5)), ..job("b") });
    let running = rig.submit(job("runs"));
    let plain = rig.submit(job("b"));
    rig.claim(session);
    let cancel = |rig: &mut Rig, filter: Filter| rig.cancel_where(filter);
    let none = Filter::default;
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("blue")), ..none() }), 0);
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("red")), kind: Some(name("b")), ..none() }), 0);
    assert_eq!(cancel(&mut rig, Filter { tag: Some(name("red")), ..none() }), 1);
    assert_eq!(cancel(&mut rig, Filter { queue: Some(name("slow")), ..none() }), 1);
    assert_eq!(cancel(&mut rig, Filter { state: Some(WorkflowState::Delayed), ..none() }), 1);
    for (id, state) in [
        (tagged, JobState::Cancelled),
        (queued, JobState::Cancelled),
        (delayed, JobState::Cancelled),
        (running, JobState::Running),
        (plain, JobState::Ready),
    ] {
        assert_eq!(rig.state_of(id), state);
    }
    assert_eq!(cancel(&mut rig, none()), 2, "no condition matches all that is open");
    assert_eq!(cancel(&mut rig, none()), 0, "and what was asked is not counted again");
    assert_eq!(rig.state_of(running), JobState::Cancelling);
}

#[test]
fn a_filter_knows_since_when_a_job_is_there_and_whether_it_stands_still() {
    let mut rig = Rig::new();
    let session = rig.worker("w", 1, 3, &["k"]);
    let [still, moving, silent] = [(); 3].map(|()| rig.submit(patient("k")));
    let given = rig.assigned(session);
    let of = |job: JobId| given.iter().find(|one| one.claim.job == job).expect("each was handed out").claim;
    rig.advance(secs(60));
    rig.progress(session, of(moving), 1);
    rig.beat(session, Beat { quiet: Some(secs(60)), ..Beat::plain(of(silent)) }).unwrap();
    let [waiting, other] = [(); 2].map(|()| rig.submit(job("nobody")));
    let since = rig.view(other).created_at;
    rig.advance(secs(10));
    let not_moving = |span| Filter { not_moving: Some(span), ..Filter::default() };
    assert_eq!(rig.cancel_where(not_moving(secs(71))), 0);
    assert_eq!(rig.cancel_where(not_moving(secs(70))), 1, "neither what waits nor what is silent as announced");
    assert_eq!(rig.state_of(still), JobState::Cancelling);
    assert_eq!(rig.cancel_where(not_moving(secs(10))), 1);
    assert_eq!(rig.state_of(moving), JobState::Cancelling);
    let after = |ms: u64| Filter { since: Some(Wall::from_ms(since.as_ms() + ms)), ..Filter::default() };
    assert_eq!(rig.cancel_where(after(1)), 0, "nothing was submitted later");
    assert_eq!(rig.cancel_where(after(0)), 2);
    assert_eq!((rig.state_of(waiting), rig.state_of(silent)), (JobState::Cancelled, JobState::Running));
}

#[test]
fn a_filter_cancels_those_of_the_named_jobs_that_it_matches_and_no_call_names_too_many() {
    let mut rig = Rig::with(|settings| settings.limits.frame_items = 3);
    let jobs: Vec<JobId> = ["a", "b", "a", "a"].map(|kind| rig.submit(job(kind))).to_vec();
    let filter = Filter { kind: Some(name("a")), ..Filter::default() };
    let call = |jobs: &[JobId]| Call::CancelWhere { filter: filter.clone(), jobs: jobs.to_vec() };
    let refused = rig.call(call(&jobs)).unwrap_err();
    assert!(
        matches!(refused, Refusal::Limited(met) if met.limit == onward_core::limits::Limit::FrameItems),
        "{refused:?}"
    );
    assert_eq!(rig.call(call(&jobs[..3])), Ok(Answer::Cancelled { jobs: 2 }));
    assert_eq!(rig.call(call(&jobs[..3])), Ok(Answer::Cancelled { jobs: 0 }), "safe to repeat");
    assert_eq!(rig.call(call(&[JobId::from_u128(1), jobs[3]])), Ok(Answer::Cancelled { jobs: 1 }), "one may have gone");
    assert_eq!(rig.state_of(jobs[1]), JobState::Ready);
}
