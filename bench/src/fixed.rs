//! A fixed run, for counting instructions: every job's way through a node, without sockets, threads, disk or clock.
//!
//! Time depends on the machine and on who else uses it; how many instructions a job takes does not. `cargo xtask soak`
//! counts them under valgrind and compares with what is written down in `bench/instructions.json`.

use onward_core::effect::{Effect, Effects};
use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::{ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, WorkerId};
use onward_core::input::{Call, Input, Submission};
use onward_core::job::Draft;
use onward_core::manager::Manager;
use onward_core::message::{FromWorker, Hello, Subscription};
use onward_core::settings::Rules;
use onward_core::time::{Mono, Now, Wall};
use onward_log::{BatchId, BatchKey, LogRow, codec};
use onward_proto::v1::{Beat, ManagerFrame, Settlement, SubmitRequest, Succeed, WorkerFrame, settlement};
use onward_proto::{draft, manager, worker};
use prost::Message;

const IN_FLIGHT: usize = 64;
const KIND: &str = "work";
const SESSION: SessionId = SessionId(1);

/// Takes so many jobs through: submitted, assigned, beaten for once, succeeded, archived. Gives the bytes that went to
/// the log, over the wire and to the archive, so that none of it can be left out.
pub fn run(jobs: u64) -> usize {
    let mut node = Node::new();
    let mut done = 0;
    while done < jobs {
        node.submit();
        done += node.work();
        node.archive();
    }
    node.bytes
}

struct Node {
    manager: Manager,
    rules: Rules,
    now: Now,
    effects: Effects,
    row: Vec<u8>,
    body: Vec<u8>,
    wire: Vec<u8>,
    /// The frame for the worker, not sent yet.
    frame: ManagerFrame,
    ended: Vec<JobId>,
    events: u64,
    jobs: u64,
    bytes: usize,
}

impl Node {
    fn new() -> Self {
        let now = Now { mono: Mono::from_ms(1_000), wall: Wall::from_ms(1_800_000_000_000) };
        let rules = Rules::default();
        let mut node = Self {
            manager: Manager::new(rules.clone(), 1, now),
            rules,
            now,
            effects: Effects::default(),
            row: Vec::new(),
            body: Vec::new(),
            wire: Vec::new(),
            frame: ManagerFrame::default(),
            ended: Vec::new(),
            events: 0,
            jobs: 0,
            bytes: 0,
        };
        node.feed(Input::SeatTaken { term: Term::new(1) });
        let hello = Hello {
            worker: WorkerId::new("worker").expect("valid"),
            incarnation: Incarnation::new("1").expect("valid"),
            subscription: Subscription {
                queues: vec![Name::new("default").expect("valid")],
                kinds: vec![Name::new(KIND).expect("valid")],
            },
            slots: IN_FLIGHT as u32,
            holding: Vec::new(),
            client: ClientId::default(),
        };
        node.feed(Input::Session { session: SESSION, message: FromWorker::Hello(hello) });
        node
    }

    fn feed(&mut self, input: Input) {
        self.manager.step(self.now, input, &mut self.effects);
        let mut asked = None;
        for waiting in self.effects.list.drain(..) {
            match waiting.effect {
                Effect::Send { message, .. } => manager::put(&mut self.frame, message),
                Effect::Archive { job } => self.ended.push(job),
                Effect::ConfirmSeat { question } => asked = Some(question),
                _ => {}
            }
        }
        let events = core::mem::take(&mut self.effects.events);
        if !events.is_empty() {
            self.log(&events);
            self.feed(Input::Durable { seq: Seq(self.events) });
        }
        if let Some(question) = asked {
            self.feed(Input::SeatConfirmed { term: Term::new(1), question });
            self.feed(Input::QueueEmptied);
        }
    }

    fn log(&mut self, events: &[StampedEvent]) {
        let first = Seq(self.events + 1);
        self.row.clear();
        self.body.clear();
        codec::encode_events(events, &mut self.body);
        let row = LogRow { count: events.len() as u32, body: &self.body };
        row.put(BatchKey { term: Term::new(1), id: BatchId(first.0), first }, &mut self.row);
        self.bytes += self.row.len();
        self.events += events.len() as u64;
    }

    fn submit(&mut self) {
        let payload = [b'x'; crate::contest::PAYLOAD];
        let jobs = (0..IN_FLIGHT).map(|_| draft::draft_out(Draft::of_kind(KIND, payload.as_slice()))).collect();
        let wire = SubmitRequest { jobs }.encode_to_vec();
        let request = SubmitRequest::decode(&*wire).expect("what was encoded");
        self.bytes += wire.len();
        let retry = self.rules.job.retry;
        let submissions = request.jobs.into_iter().map(|wire| {
            self.jobs += 1;
            let draft = draft::draft_in(wire, &retry).expect("well formed");
            Submission { id: JobId::v7(self.now.wall, u128::from(self.jobs) << 32), draft }
        });
        let submissions = submissions.collect();
        self.feed(Input::Call { request: RequestId(self.jobs), call: Call::Submit(submissions) });
    }

    /// The worker gets its frame, beats for all that it was given and reports it as done.
    fn work(&mut self) -> u64 {
        let frame = self.over_the_wire();
        let claims = || frame.assignments.iter().map(|assignment| assignment.claim.clone());
        let beats = claims().map(|claim| Beat { claim, watermark: Some(1), ..Beat::default() }).collect();
        self.hear(&WorkerFrame { beats, ..WorkerFrame::default() });
        let report = || Some(settlement::Report::Succeed(Succeed::default()));
        let settlements = claims().map(|claim| Settlement { claim, report: report() }).collect();
        self.hear(&WorkerFrame { settlements, ..WorkerFrame::default() });
        self.over_the_wire().settle_answers.len() as u64
    }

    fn over_the_wire(&mut self) -> ManagerFrame {
        let frame = core::mem::take(&mut self.frame);
        self.wire.clear();
        frame.encode(&mut self.wire).expect("a vector has room");
        self.bytes += self.wire.len();
        ManagerFrame::decode(&*self.wire).expect("what was encoded")
    }

    fn hear(&mut self, frame: &WorkerFrame) {
        let wire = frame.encode_to_vec();
        self.bytes += wire.len();
        let frame = WorkerFrame::decode(&*wire).expect("what was encoded");
        for message in worker::frame_in(&frame).expect("well formed") {
            self.feed(Input::Session { session: SESSION, message });
        }
    }

    fn archive(&mut self) {
        let jobs = core::mem::take(&mut self.ended);
        for job in &jobs {
            let image = self.manager.image(*job).expect("it has not left");
            self.row.clear();
            codec::encode_image(&image, &mut self.row);
            self.bytes += self.row.len();
        }
        self.feed(Input::Archived { jobs });
        let step = std::time::Duration::from_millis(1);
        self.now = Now { mono: self.now.mono + step, wall: self.now.wall + step };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_job_goes_all_the_way_and_the_same_way_each_time() {
        let (few, twice) = (super::run(640), super::run(640));
        assert_eq!(few, twice);
        // A payload of 100 bytes is submitted, logged, assigned and archived.
        assert!(few > 640 * 400, "{few}");
    }
}
