//! A gate machine with very many jobs, and datacenters that say what the machine waits for: what a report costs, what a
//! job takes in memory, and whether a decision costs more where more jobs are tracked.

use std::collections::VecDeque;
use std::time::Duration;

use onward_core::fence::{GateEpoch, Term};
use onward_core::gate::Gate;
use onward_core::gate::effect::{Effect, Effects};
use onward_core::gate::input::{Call, Input};
use onward_core::gate::message::{Frame, FromDatacenter, Hello, JobOutline, JobReport, ToDatacenter, WorkflowCounts};
use onward_core::health::DatacenterCounts;
use onward_core::ids::{JobId, Name, RequestId, Seq, StreamId};
use onward_core::input::Submission;
use onward_core::job::{Draft, JobState, TimeoutPolicy};
use onward_core::payload::Payload;
use onward_core::settings::Settings;
use onward_core::time::{Mono, Now, Wall};
use onward_core::timeout::{ExtensionTotals, TimeoutReason};

use crate::allocation::live_bytes;
use crate::cpu::Stopwatch;
use crate::report::Figure;
use crate::runs::median;

/// Reports in a frame, as a manager packs them.
const REPORTS_IN_FRAME: usize = 256;
const DATACENTERS: [&str; 3] = ["dc-a", "dc-b", "dc-c"];
const TERM: Term = Term::new(1);

/// `jobs` are tracked; a decision is compared with one among a tenth of them.
pub fn gates(rounds: usize, jobs: u64) -> Vec<Figure> {
    let thousands = jobs / 1_000;
    let before = live_bytes();
    let mut large = Machine::with_jobs(jobs);
    let bytes = (live_bytes().saturating_sub(before) as f64 - large.own_bytes() as f64) / jobs as f64;
    let few = jobs / 10;
    let mut small = Machine::with_jobs(few);
    let (mut rates, mut at_small, mut at_large, mut ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        rates.push(large.reports_per_s() / 1e3);
        let (among_few, among_many) = (small.decide(100), large.decide(100));
        at_small.push(among_few);
        at_large.push(among_many);
        ratios.push(among_many / among_few);
    }
    let figure = |what: String, (value, spread), unit, wanted, more| Figure { what, value, unit, wanted, more, spread };
    vec![
        figure(format!("a gate with {thousands}k jobs: reports taken"), median(rates), "k reports/s", Some(50.0), true),
        figure(format!("memory per job of a gate, {thousands}k tracked"), (bytes, None), "bytes", None, false),
        figure(format!("one decision among {few} jobs"), median(at_small), "µs", None, false),
        figure(format!("one decision among {thousands}k jobs"), median(at_large), "µs", None, false),
        figure("the second over the first".into(), median(ratios), "×", Some(2.0), false),
    ]
}

struct Machine {
    gate: Gate,
    now: Now,
    stored: u64,
    effects: Effects,
    /// What was placed in each datacenter, and how much of it was confirmed.
    placed: Vec<Vec<(JobId, GateEpoch)>>,
    confirmed: Vec<usize>,
    decisions: u64,
    frames: u64,
}

impl Machine {
    fn with_jobs(jobs: u64) -> Self {
        let now = Now { mono: Mono::from_ms(1_000), wall: Wall::from_ms(1_800_000_000_000) };
        let rules = Settings::default().check().expect("valid settings");
        let mut machine = Self {
            gate: Gate::new(rules, 1, now),
            now,
            stored: 0,
            effects: Effects::default(),
            placed: vec![Vec::new(); DATACENTERS.len()],
            confirmed: vec![0; DATACENTERS.len()],
            decisions: 0,
            frames: 0,
        };
        machine.feed(Input::SeatTaken { term: TERM });
        for (at, name) in DATACENTERS.into_iter().enumerate() {
            let datacenter = Name::new(name).expect("valid");
            machine.feed(Input::StreamOpened { stream: stream(at), datacenter: datacenter.clone() });
            let counts = DatacenterCounts {
                managers: 1,
                managers_live: 1,
                managers_ready: 1,
                managers_stuck: 0,
                workers: 10,
                workers_healthy_or_busy: 10,
                free_slots: 1_000_000,
            };
            machine.hear(at, FromDatacenter::Hello(Hello { datacenter, life: 1, epoch: None, counts }));
        }
        let mut left = jobs;
        while left > 0 {
            let some = left.min(256);
            machine.submit(jobs - left, some);
            left -= some;
        }
        assert_eq!(machine.gate.state().open_jobs() as u64, jobs, "all of them are tracked");
        machine
    }

    fn submit(&mut self, first: u64, some: u64) {
        let submission = |n: u64| Submission {
            id: JobId::v7(self.now.wall, u128::from(first + n)),
            draft: Draft {
                datacenters: vec![DATACENTERS[(n % 3) as usize].into()],
                ..Draft::of_kind("resize", Payload::from([b'x'; 100]))
            },
        };
        let call = Call::Submit((0..some).map(submission).collect());
        self.feed(Input::Call { request: RequestId(first), call });
        for at in 0..DATACENTERS.len() {
            let new: Vec<JobId> = self.placed[at][self.confirmed[at]..].iter().map(|(job, _)| *job).collect();
            self.confirmed[at] += new.len();
            for job in new {
                self.hear(at, FromDatacenter::Submitted { job, answer: Ok(()) });
            }
        }
    }

    /// What is kept here beside the gate.
    fn own_bytes(&self) -> usize {
        self.placed.iter().map(|placed| placed.capacity() * size_of::<(JobId, GateEpoch)>()).sum()
    }

    fn hear(&mut self, at: usize, message: FromDatacenter) {
        self.frames += 1;
        let frame = Frame { term: TERM, number: self.frames, message };
        self.feed(Input::Datacenter { stream: stream(at), frame });
    }

    /// Feeds an input. Not by recursion, as a log answers one step after the other.
    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.gate.step(self.now, input, &mut self.effects);
            if !self.effects.events.is_empty() {
                self.stored += self.effects.events.len() as u64;
                self.effects.events.clear();
                inputs.push_back(Input::Durable { seq: Seq(self.stored) });
            }
            for waiting in self.effects.list.drain(..) {
                match waiting.effect {
                    Effect::Send { stream, message: ToDatacenter::Submit(placement) } => {
                        self.placed[stream.0 as usize].push((placement.job, placement.epoch));
                    }
                    Effect::Send { message: ToDatacenter::GlobalTimeout { .. }, .. } => self.decisions += 1,
                    Effect::ConfirmSeat { question } => {
                        inputs.push_back(Input::SeatConfirmed { term: TERM, question });
                        inputs.push_back(Input::Drained);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Measures the rate of reports, with one of each job.
    fn reports_per_s(&mut self) -> f64 {
        self.now = Now { mono: self.now.mono + Duration::from_secs(1), wall: self.now.wall };
        let mut frames: Vec<(usize, Vec<JobReport>)> = Vec::new();
        for (at, placed) in self.placed.iter().enumerate() {
            let of = |some: &[(JobId, GateEpoch)]| some.iter().map(|one| report(at, *one, None)).collect();
            frames.extend(placed.chunks(REPORTS_IN_FRAME).map(|some| (at, of(some))));
        }
        let count: usize = frames.iter().map(|(_, reports)| reports.len()).sum();
        let begun = Stopwatch::start();
        for (at, reports) in frames {
            self.hear(at, FromDatacenter::Progress(reports));
        }
        count as f64 / begun.elapsed().as_secs_f64()
    }

    /// Reports so many jobs stuck, one after the other; gives microseconds for each, until it was decided and sent.
    fn decide(&mut self, times: usize) -> f64 {
        let (at, before) = (0, self.decisions);
        let reports: Vec<JobReport> = (0..times)
            .map(|_| self.placed[at].pop().expect("there are more jobs than decisions"))
            .map(|placed| report(at, placed, Some(TimeoutReason::Stuck)))
            .collect();
        let begun = Stopwatch::start();
        for report in reports {
            self.hear(at, FromDatacenter::TimedOut(Box::new(report)));
        }
        let spent = begun.elapsed();
        assert_eq!(self.decisions - before, times as u64, "each was decided");
        spent.as_secs_f64() * 1e6 / times as f64
    }
}

fn stream(at: usize) -> StreamId {
    StreamId(at as u64)
}

fn report(at: usize, (job, epoch): (JobId, GateEpoch), timed_out: Option<TimeoutReason>) -> JobReport {
    JobReport {
        job,
        outline: JobOutline {
            kind: Name::new("resize").expect("valid"),
            queue: Name::new("default").expect("valid"),
            targets: Box::new([Name::new(DATACENTERS[at]).expect("valid")]),
            policy: TimeoutPolicy::Any,
            timeout: Duration::from_secs(86_400),
            max_extension: Duration::from_secs(86_400),
        },
        epoch: Some(epoch),
        elapsed: Some(Duration::from_secs(60)),
        extended: ExtensionTotals::default(),
        since_progress: Some(Duration::from_secs(1)),
        state: JobState::Running,
        timed_out,
        workflows: WorkflowCounts { total: 1, succeeded: 0, failed: 0 },
        attempts: 1,
    }
}
