//! A thousand restarts and takeovers: crashes that lose what was not durable, stops, clocks that differ from node to
//! node, and plans that are changed before it is known what has come. Every due instant has exactly one record.

use std::time::Duration;

use crate::due::{DueWitness, find_due};
use crate::rig::{job, name, secs};
use onward_core::effect::{Effect, Effects};
use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::{JobId, Name, RequestId, Seq};
use onward_core::input::{Call, Input, ScheduleDraft};
use onward_core::manager::Manager;
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use onward_core::settings::Rules;
use onward_core::state::SchedulePlan;
use onward_core::time::{Mono, Now, Wall};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Every change of a schedule is asked for by this one.
const CHANGE: RequestId = RequestId(2);

struct Fleet {
    manager: Manager,
    rng: ChaCha8Rng,
    log: Vec<StampedEvent>,
    durable: usize,
    now: Now,
    /// The true time, which no node knows.
    true_ms: u64,
    term: u64,
    open: Vec<JobId>,
    to_archive: Vec<JobId>,
    /// Instants that were found and that the machine is not told yet, if that takes a while.
    found: Option<Vec<Input>>,
    answered: u64,
}

impl Fleet {
    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    /// The log answers unless it is about to be lost with the process.
    fn step(&mut self, input: Input, log_answers: bool) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Effects::default();
            self.manager.step(self.now, input, &mut effects);
            for stamped in &effects.events {
                if let onward_core::event::Event::JobSubmitted(submitted) = &stamped.event {
                    self.open.push(submitted.id);
                }
            }
            let decided = !effects.events.is_empty();
            self.log.append(&mut effects.events);
            if decided && log_answers {
                self.durable = self.log.len();
                inputs.push(Input::Durable { seq: Seq(self.durable as u64) });
            }
            for waiting in effects.list {
                match &waiting.effect {
                    Effect::ConfirmSeat { question } if log_answers => {
                        inputs.push(Input::QueueEmptied);
                        inputs.push(Input::SeatConfirmed { term: Term::new(self.term), question: *question });
                    }
                    Effect::Archive { job } => self.to_archive.push(*job),
                    Effect::Reply { request: CHANGE, answer: Ok(_) } => self.answered += 1,
                    effect => self.found.as_mut().unwrap_or(&mut inputs).extend(find_due(effect)),
                }
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        self.now = Now { mono: self.now.mono + span, wall: self.now.wall + span };
        self.true_ms += span.as_millis() as u64;
    }

    /// Changes a schedule, often before the machine knows what has come.
    fn change(&mut self, names: &[Name]) {
        let at = self.below(names.len() as u64) as usize;
        let schedule = names[at].clone();
        let call = match self.below(4) {
            0 => Call::PauseSchedule(schedule),
            1 => Call::ResumeSchedule(schedule),
            _ => {
                let known = self.manager.state().schedule(&schedule).expect("it is there");
                let mut plan = (*known.plan).clone();
                match self.below(4) {
                    0 => plan.jitter = secs(self.below(3)),
                    1 => plan.timing = Timing::Cron { expression: "*/10 * * * *".into(), zone: "UTC".into() },
                    _ => plan.timing = Timing::Every(secs(7 + 10 * (1 + self.below(9)))),
                }
                let SchedulePlan { timing, overlap, missed, jitter, critical, .. } = plan;
                let paused = None;
                Call::SetSchedule(Box::new(ScheduleDraft {
                    schedule,
                    timing,
                    job: job("k"),
                    overlap,
                    missed,
                    jitter,
                    critical,
                    paused,
                }))
            }
        };
        self.step(Input::Call { request: CHANGE, call }, true);
        for found in self.found.take().unwrap_or_default() {
            self.step(found, true);
        }
    }

    fn live_for(&mut self, span: Duration) {
        let end = self.now.mono + span;
        while let Some((at, _)) = self.manager.next_wakeup().filter(|(at, _)| *at <= end) {
            self.pass(at.since(self.now.mono));
            self.step(Input::Wake, true);
            // Runs end some time.
            if self.below(4) == 0
                && let Some(job) = self.open.pop()
            {
                self.step(Input::Call { request: RequestId(1), call: Call::Cancel { job, epoch: None } }, true);
                let jobs = std::mem::take(&mut self.to_archive);
                self.step(Input::Archived { jobs }, true);
            }
        }
        self.pass(end.since(self.now.mono));
    }

    /// Another node takes the seat after a while, with a clock of its own; some of what was not durable is lost.
    fn takeover(&mut self) {
        let undurable = (self.log.len() - self.durable) as u64;
        let kept = self.durable + self.below(undurable + 1) as usize;
        self.log.truncate(kept);
        self.durable = kept;
        let stop = [1, 40, 90, 10_000][self.below(4) as usize];
        let stop = secs(1 + self.below(stop));
        self.pass(stop);
        self.term += 1;
        let skew = self.below(10_000);
        self.now = Now { mono: Mono::from_ms(self.below(900_000)), wall: Wall::from_ms(self.true_ms - 5_000 + skew) };
        let seed = self.rng.next_u64();
        self.manager = Manager::new(Rules::default(), seed, self.now);
        self.found = (self.below(2) == 0).then(Vec::new);
        self.log.iter().for_each(|stamped| self.manager.apply(stamped));
        self.open.clear();
        self.open.extend(self.manager.state().schedules().values().flat_map(|schedule| schedule.open.clone()));
        self.step(Input::SeatTaken { term: Term::new(self.term) }, true);
    }
}

#[test]
fn across_a_thousand_restarts_and_takeovers_every_due_instant_has_exactly_one_record() {
    let now = Now { mono: Mono::from_ms(1), wall: Wall::from_ms(1_800_000_000_000) };
    let mut fleet = Fleet {
        manager: Manager::new(Rules::default(), 1, now),
        rng: ChaCha8Rng::seed_from_u64(5),
        log: Vec::new(),
        durable: 0,
        now,
        true_ms: now.wall.as_ms(),
        term: 1,
        open: Vec::new(),
        to_archive: Vec::new(),
        found: None,
        answered: 0,
    };
    fleet.step(Input::SeatTaken { term: Term::new(1) }, true);
    let mut names = Vec::new();
    for overlap in Overlap::ALL {
        for missed in MissedPolicy::ALL {
            let schedule = name(&format!("{}-{}", overlap.word(), missed.word()));
            names.push(schedule.clone());
            let timing = Timing::Every(secs(7 + 10 * names.len() as u64));
            let jitter = secs(names.len() as u64 % 3);
            let (job, critical, paused) = (job("k"), false, None);
            let draft = ScheduleDraft { schedule, timing, job, overlap, missed, jitter, critical, paused };
            fleet.step(Input::Call { request: RequestId(1), call: Call::SetSchedule(Box::new(draft)) }, true);
        }
    }
    for _ in 0..1_000 {
        let span = Duration::from_millis(fleet.below(20_000));
        fleet.live_for(span);
        // The process dies while the log does not answer: what it decides last is in doubt.
        for _ in 0..fleet.below(4) {
            let Some((at, _)) = fleet.manager.next_wakeup() else { break };
            fleet.pass(at.since(fleet.now.mono));
            fleet.step(Input::Wake, false);
        }
        fleet.takeover();
        fleet.change(&names);
    }
    for schedule in names.clone() {
        fleet.step(Input::Call { request: CHANGE, call: Call::ResumeSchedule(schedule) }, true);
    }
    fleet.live_for(secs(300));
    assert_eq!(fleet.answered, 1_000 + names.len() as u64, "every change was made");
    let mut witness = DueWitness::default();
    fleet.log.iter().for_each(|stamped| witness.note(stamped));
    for name in &names {
        witness.check_horizon(name, fleet.now.wall, secs(10));
    }
    let kept = fleet.manager.state().schedules().values();
    let counted = kept.map(|schedule| {
        let counts = schedule.counts;
        counts.fired + counts.skipped + counts.missed
    });
    assert_eq!(counted.sum::<u64>(), witness.recorded);
    assert!(witness.recorded > 20_000, "{} instants", witness.recorded);
}
