//! What goes over the wire comes back as it was, and what cannot be taken is refused by the name of its field.

mod samples;

use core::time::Duration;

use onward_core::ids::Claim;
use onward_core::job::Retry;
use onward_core::message::{FromWorker, ToWorker};
use onward_proto::common::MAX_SPAN;
use onward_proto::manager::{ManagerMessage, RemoteRefusal};
use onward_proto::{FieldProblem, MAX_FRAME_ENTRIES, MalformedMessage, draft, manager, v1, worker};
use proptest::prelude::*;
use prost::Message;

proptest! {
    #[test]
    fn a_workers_frame_comes_back_as_it_was(parts in samples::worker_parts()) {
        let mut frame = v1::WorkerFrame::default();
        for part in parts.clone() {
            worker::put(&mut frame, part);
        }
        let frame = v1::WorkerFrame::decode(&*frame.encode_to_vec()).expect("just encoded");
        prop_assert_eq!(worker::frame_in(&frame), Ok(parts));
    }

    #[test]
    fn a_managers_frame_comes_back_as_it_was(told in samples::told()) {
        let mut frame = v1::ManagerFrame::default();
        manager::put(&mut frame, told.clone());
        let frame = v1::ManagerFrame::decode(&*frame.encode_to_vec()).expect("just encoded");
        prop_assert_eq!(manager::frame_in(&frame), Ok(as_heard(told)));
    }

    #[test]
    fn a_draft_comes_back_as_it_was(asked in samples::draft()) {
        let wire = v1::Draft::decode(&*draft::draft_out(asked.clone()).encode_to_vec()).expect("just encoded");
        prop_assert_eq!(draft::draft_in(wire, &Retry::default()), Ok(asked));
    }

    /// Any bytes are decoded or refused; and so are those that are nearly right.
    #[test]
    fn nothing_from_outside_makes_us_panic(
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        parts in samples::worker_parts(),
        told in samples::told(),
        asked in samples::draft(),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
    ) {
        take_all(&noise);
        let mut frame = v1::WorkerFrame::default();
        for part in parts {
            worker::put(&mut frame, part);
        }
        let mut answer = v1::ManagerFrame::default();
        manager::put(&mut answer, told);
        for mut bytes in [frame.encode_to_vec(), answer.encode_to_vec(), draft::draft_out(asked).encode_to_vec()] {
            for (index, value) in &flips {
                if !bytes.is_empty() {
                    let index = index.index(bytes.len());
                    bytes[index] = *value;
                }
            }
            take_all(&bytes);
        }
    }
}

fn take_all(bytes: &[u8]) {
    let _ = v1::WorkerFrame::decode(bytes).map(|frame| worker::frame_in(&frame));
    let _ = v1::ManagerFrame::decode(bytes).map(|frame| manager::frame_in(&frame));
    let _ = v1::Draft::decode(bytes).map(|wire| draft::draft_in(wire, &Retry::default()));
    let _ = v1::Accepted::decode(bytes).map(|wire| draft::accepted_in(&wire));
}

/// The messages that a worker must make of what it was told.
fn as_heard(told: ToWorker) -> Vec<ManagerMessage> {
    let refused = |refusal: onward_core::refusal::Refusal| RemoteRefusal {
        code: refusal.kind().code().into(),
        text: refusal.to_string().into(),
    };
    let denied = |denial: onward_core::grant::Denial| RemoteRefusal {
        code: denial.code().into(),
        text: denial.to_string().into(),
    };
    match told {
        ToWorker::Welcome { term } => vec![ManagerMessage::Welcome { term }],
        ToWorker::Rejected(refusal) => vec![ManagerMessage::Rejected(refused(refusal))],
        ToWorker::Assign(assignment) => vec![ManagerMessage::Assign(assignment)],
        ToWorker::BeatAnswers(answers) => answers
            .into_iter()
            .map(|answer| ManagerMessage::BeatAnswer { claim: answer.claim, answer: answer.answer.map_err(refused) })
            .collect(),
        ToWorker::SettleAnswers(answers) => answers
            .into_iter()
            .map(|answer| ManagerMessage::SettleAnswer { claim: answer.claim, answer: answer.answer.map_err(refused) })
            .collect(),
        ToWorker::ExtensionAnswer(answer) => vec![ManagerMessage::ExtensionAnswer {
            claims: answer.claims,
            result: answer.result.map_err(denied),
            remaining: answer.remaining,
            remaining_extensions: answer.remaining_extensions,
        }],
        ToWorker::Probe { probe } => vec![ManagerMessage::Probe { probe }],
        ToWorker::Cancel { claim, why } => vec![ManagerMessage::Cancel { claim, why }],
        ToWorker::Refused(refusal) => vec![ManagerMessage::Refused(refused(refusal))],
        ToWorker::Goodbye => vec![ManagerMessage::Goodbye],
    }
}

fn good_claim() -> v1::Claim {
    v1::Claim { job_id: vec![7; 16].into(), workflow: 0, fence: 1 }
}

fn malformed<T: core::fmt::Debug>(field: &str, problem: FieldProblem, got: Result<T, MalformedMessage>) {
    assert_eq!(got.expect_err(field), MalformedMessage { field: field.into(), problem });
}

#[test]
fn a_frame_is_refused_by_the_name_of_its_field() {
    let beat = |claim| v1::Beat { claim: Some(claim), ..Default::default() };
    let short = v1::Claim { job_id: vec![7; 15].into(), ..good_claim() };
    let frame = v1::WorkerFrame { beats: vec![beat(good_claim()), beat(short)], ..Default::default() };
    let problem = FieldProblem::WrongLength { bytes: 15, expected: 16 };
    malformed("beats[1].claim.job_id", problem, worker::frame_in(&frame));

    let wide = v1::Claim { workflow: 65_536, ..good_claim() };
    let frame = v1::WorkerFrame { ended: vec![wide], ..Default::default() };
    malformed("ended[0].workflow", FieldProblem::TooLarge { value: 65_536, max: 65_535 }, worker::frame_in(&frame));

    let frame = v1::WorkerFrame { settlements: vec![v1::Settlement::default()], ..Default::default() };
    malformed("settlements[0].report", FieldProblem::Missing, worker::frame_in(&frame));

    let report = Some(v1::settlement::Report::Release(v1::Release { delay_ms: Some(u64::MAX), checkpoint: None }));
    let frame = v1::WorkerFrame {
        settlements: vec![v1::Settlement { claim: Some(good_claim()), report }],
        ..Default::default()
    };
    let problem = FieldProblem::TooLong { value: Duration::from_millis(u64::MAX), max: MAX_SPAN };
    malformed("settlements[0].release.delay_ms", problem, worker::frame_in(&frame));

    let hello = v1::Hello { worker: "w".into(), incarnation: "x".repeat(129), ..Default::default() };
    let frame = v1::WorkerFrame { hello: Some(hello), ..Default::default() };
    malformed("hello.incarnation", FieldProblem::NotAName, worker::frame_in(&frame));

    let hello = v1::Hello {
        worker: "w".into(),
        incarnation: "1".into(),
        kinds: vec!["a".into(), "".into()],
        ..Default::default()
    };
    let frame = v1::WorkerFrame { hello: Some(hello), ..Default::default() };
    malformed("hello.kinds[1]", FieldProblem::NotAName, worker::frame_in(&frame));
}

#[test]
fn a_reference_has_a_whole_digest() {
    let reference = Some(v1::Reference { digest: vec![7; 31].into(), length: 5 });
    let input = v1::NamedResult { workflow: "a".into(), reference, ..Default::default() };
    let text = || "a".to_owned();
    let assignment = v1::Assignment {
        claim: Some(good_claim()),
        queue: text(),
        workflow: text(),
        kind: text(),
        inputs: vec![input],
        ..Default::default()
    };
    let frame = v1::ManagerFrame { assignments: vec![assignment], ..Default::default() };
    let problem = FieldProblem::WrongLength { bytes: 31, expected: 32 };
    malformed("assignments[0].inputs[0].reference.digest", problem, manager::frame_in(&frame));
}

#[test]
fn a_request_for_an_input_is_checked() {
    let asked = v1::FetchInputRequest { claim: Some(good_claim()), workflow: "a".into() };
    let (claim, name) = worker::fetch_in(&asked).expect("well formed");
    assert_eq!(worker::fetch_out(claim, &name), asked);
    let nameless = v1::FetchInputRequest { workflow: String::new(), ..asked.clone() };
    malformed("workflow", FieldProblem::NotAName, worker::fetch_in(&nameless));
    malformed("claim", FieldProblem::Missing, worker::fetch_in(&v1::FetchInputRequest { claim: None, ..asked }));
}

#[test]
fn a_frame_with_too_many_entries_is_refused_wherever_they_are() {
    let full = v1::WorkerFrame { probe_answers: vec![1; MAX_FRAME_ENTRIES], ..Default::default() };
    assert_eq!(worker::frame_in(&full).map(|parts| parts.len()), Ok(MAX_FRAME_ENTRIES));
    let request = v1::ExtensionRequest { claims: vec![good_claim(); MAX_FRAME_ENTRIES], ..Default::default() };
    let frame = v1::WorkerFrame { extension_requests: vec![request], ..Default::default() };
    let problem = FieldProblem::TooMany { count: MAX_FRAME_ENTRIES + 1, max: MAX_FRAME_ENTRIES };
    malformed("frame", problem, worker::frame_in(&frame));
}

#[test]
fn numbers_that_the_protocol_does_not_name_are_refused() {
    for why in [0, 7, -1] {
        let frame =
            v1::ManagerFrame { cancels: vec![v1::Cancel { claim: Some(good_claim()), why }], ..Default::default() };
        malformed("cancels[0].why", FieldProblem::UnknownNumber(why), manager::frame_in(&frame));
    }
    let retry = Retry::default();
    let wire = v1::Draft { on_stuck: 3, ..Default::default() };
    malformed("on_stuck", FieldProblem::UnknownNumber(3), draft::draft_in(wire, &retry));
    let wire = v1::Draft { timeout_policy: 4, ..Default::default() };
    malformed("timeout_policy", FieldProblem::UnknownNumber(4), draft::draft_in(wire, &retry));
    let wire = v1::Draft {
        retry: Some(v1::RetryPolicy { base_ms: Some(u64::MAX), ..Default::default() }),
        ..Default::default()
    };
    let problem = FieldProblem::TooLong { value: Duration::from_millis(u64::MAX), max: MAX_SPAN };
    malformed("retry.base_ms", problem, draft::draft_in(wire, &retry));
}

#[test]
fn a_retry_policy_is_completed_by_the_defaults() {
    let retry = Retry { max_attempts: 9, base: Duration::from_secs(2), max: Duration::from_secs(4) };
    let policy = v1::RetryPolicy { base_ms: Some(1_500), ..Default::default() };
    let wire = v1::Draft { retry: Some(policy), ..Default::default() };
    let got = draft::draft_in(wire, &retry).expect("well formed");
    assert_eq!(got.retry, Some(Retry { base: Duration::from_millis(1_500), ..retry }));
}

#[test]
fn the_parts_of_a_frame_are_taken_in_the_order_of_their_numbers() {
    let claim = Claim::try_from(&good_claim()).expect("well formed");
    let mut frame = v1::WorkerFrame::default();
    worker::put(&mut frame, FromWorker::Ended(vec![claim]));
    worker::put(&mut frame, FromWorker::ProbeAnswer { probe: 4 });
    worker::put(&mut frame, FromWorker::Capacity { slots: 2, accepting: true });
    let expected = vec![
        FromWorker::Capacity { slots: 2, accepting: true },
        FromWorker::ProbeAnswer { probe: 4 },
        FromWorker::Ended(vec![claim]),
    ];
    assert_eq!(worker::frame_in(&frame), Ok(expected));
}
