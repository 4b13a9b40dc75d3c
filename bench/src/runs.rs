//! The runs.

use std::hint::black_box;
use std::time::Duration;

use onward_core::ids::{Name, SessionId};
use onward_core::input::Input;
use onward_core::job::{Draft, LimitDraft, WorkflowDraft};
use onward_core::message::FromWorker;
use onward_core::payload::Payload;

use crate::allocation::live_bytes;
use crate::beats::beats;
use crate::cpu::Stopwatch;
use crate::gate_machine::gates;
use crate::machine::BenchMachine;
use crate::reopen::reopen;
use crate::report::Figure;
use crate::steps::steps;

const IN_FLIGHT: usize = 64;

/// A part of the run, by its name.
pub fn stage(name: &str, quick: bool) -> Vec<Figure> {
    let (rounds, jobs) = if quick { (3, 200_000) } else { (5, 1_000_000) };
    match name {
        "cycles" => vec![cycles(rounds, jobs)],
        "backlog" if quick => backlog(200_000, 15),
        "backlog" => backlog(1_000_000, 100),
        "workers" => workers(rounds),
        "steps" if quick => steps(300_000),
        "steps" => steps(3_000_000),
        "beats" if quick => beats(3, 5_000_000),
        "beats" => beats(9, 20_000_000),
        "gates" if quick => gates(3, 20_000),
        "gates" => gates(9, 100_000),
        "reopen" if quick => reopen(200_000, 600_000),
        "reopen" => reopen(1_000_000, 3_000_000),
        _ => Vec::new(),
    }
}

/// The median, and between what nine tenths of the values lie.
pub fn median(mut values: Vec<f64>) -> (f64, Option<(f64, f64)>) {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    (values[values.len() / 2], Some((values[last / 20], values[last - last / 20])))
}

fn payload() -> Payload {
    Payload::from([b'x'; 100])
}

/// Submit, assign, beat, succeed, archive, with 64 in flight.
fn cycles(rounds: usize, jobs: u64) -> Figure {
    let kind = Name::new("resize").expect("valid");
    let rates = (0..rounds).map(|_| {
        let mut machine = BenchMachine::new();
        for worker in 0..8 {
            machine.worker(format!("worker-{worker}"), (IN_FLIGHT / 8) as u32, std::slice::from_ref(&kind));
        }
        let payload = payload();
        let begun = Stopwatch::start();
        while machine.completed < jobs {
            machine.submit((0..IN_FLIGHT).map(|_| Draft::of_kind("resize", payload.clone())));
            machine.work();
            machine.archive();
            machine.tick();
        }
        machine.completed as f64 / begun.elapsed().as_secs_f64()
    });
    let (value, spread) = median(rates.collect());
    Figure {
        what: "submit→assign→beat→succeed cycles".into(),
        value: value / 1e3,
        unit: "k jobs/s",
        wanted: Some(400.0),
        more: true,
        spread: spread.map(|(low, high)| (low / 1e3, high / 1e3)),
    }
}

/// 100 kinds, 3 priorities, 1,000 limit keys; 10 % delayed, 20 % of the workflows waiting for another.
pub struct Mix {
    kinds: Vec<String>,
    keys: Vec<std::sync::Arc<str>>,
    payload: Payload,
    n: u64,
}

impl Mix {
    pub fn new() -> Self {
        Self {
            kinds: (0..100).map(|kind| format!("kind-{kind}")).collect(),
            keys: (0..1_000).map(|key| format!("key-{key}").into()).collect(),
            payload: payload(),
            n: 0,
        }
    }

    pub fn names(&self) -> Vec<Name> {
        self.kinds.iter().map(|kind| Name::new(kind.as_str()).expect("valid")).collect()
    }

    pub fn next(&mut self, may_delay: bool) -> Draft {
        self.n += 1;
        // A fixed shuffle, so that kinds, priorities and keys do not march in step.
        let roll = self.n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let kind = &self.kinds[(roll % 100) as usize];
        let mut draft = Draft::of_kind(kind, self.payload.clone());
        draft.priority = (roll / 100 % 3) as i32 * 10;
        let key = self.keys[(roll / 300 % 1_000) as usize].clone();
        draft.limits.push(LimitDraft { key, max: 100, ordered: false });
        if may_delay && (roll / 300_000).is_multiple_of(10) {
            draft.delay = Some(Duration::from_secs(20 * 3600));
        } else if (roll / 3_000_000).is_multiple_of(4) {
            // One job in four has a second workflow that waits for the first: a fifth of all workflows.
            draft.workflows[0].name = Some("first".into());
            draft.workflows.push(WorkflowDraft {
                name: Some("second".into()),
                kind: kind.as_str().into(),
                payload: self.payload.clone(),
                after: vec!["first".into()],
                ..WorkflowDraft::default()
            });
        }
        draft
    }
}

/// The same work with 10k and with 1M jobs queued behind it.
///
/// What is measured is the steady state: each machine has first completed `settle` workflows (a million is at least as
/// many as were queued), so that what it keeps lies as scattered in memory as after days. Then they take turns, and in
/// its turn one is alone: what the other left in the caches is gone before anything is measured.
fn backlog(settle: u64, turns: usize) -> Vec<Figure> {
    const UNMEASURED: u64 = 10_000;
    /// A tenth of a second: what disturbs the machine mostly disturbs both of a pair, or few of them.
    const MEASURED: u64 = 40_000;
    make_memory_real(2 << 30);
    let mut machines = [10_000, 1_000_000].map(Backlog::of);
    let bytes_per_job = machines[1].bytes_per_job;
    machines.iter_mut().for_each(|machine| {
        machine.work(settle);
    });
    let mut costs = [Vec::new(), Vec::new()];
    for _ in 0..turns {
        for (machine, costs) in machines.iter_mut().zip(&mut costs) {
            machine.work(UNMEASURED);
            costs.push(machine.work(MEASURED));
        }
    }
    let ratios = costs[0].iter().zip(&costs[1]).map(|(small, large)| large / small).collect();
    let [small, large] = costs;
    let (small, small_spread) = median(small);
    let (large, large_spread) = median(large);
    let (ratio, ratio_spread) = median(ratios);
    let explains =
        |what: &str, value, spread| Figure { what: what.into(), value, unit: "ns", wanted: None, more: false, spread };
    vec![
        explains("cost per workflow at 10k queued, mixed", small, small_spread),
        explains("cost per workflow at 1M queued, mixed", large, large_spread),
        Figure {
            what: "cost at 1M queued over cost at 10k".into(),
            value: ratio,
            unit: "×",
            wanted: Some(1.1),
            more: false,
            spread: ratio_spread,
        },
        Figure {
            what: "memory per queued job, 100-byte payload, mixed".into(),
            value: bytes_per_job,
            unit: "bytes",
            wanted: Some(1_024.0),
            more: false,
            spread: None,
        },
    ]
}

/// Has the system back this much memory now. It does so when a page is first touched, which can take longer than
/// everything that is measured; the allocator keeps what is given back to it here. In pieces: what is too large for
/// its arenas it would return to the system at once.
fn make_memory_real(bytes: usize) {
    const PIECE: usize = 1 << 20;
    drop(black_box((0..bytes / PIECE).map(|_| vec![1_u8; PIECE]).collect::<Vec<_>>()));
}

/// A machine with so many jobs queued, and workers that take whatever comes.
struct Backlog {
    machine: BenchMachine,
    mix: Mix,
    bytes_per_job: f64,
}

impl Backlog {
    fn of(queued: u64) -> Self {
        let mut mix = Mix::new();
        let before = live_bytes();
        let mut machine = BenchMachine::new();
        for _ in 0..queued / 100 {
            machine.submit((0..100).map(|_| mix.next(true)));
            machine.tick();
        }
        let bytes_per_job = (live_bytes() - before) as f64 / queued as f64;
        for worker in 0..8 {
            machine.worker(format!("worker-{worker}"), (IN_FLIGHT / 8) as u32, &mix.names());
        }
        Self { machine, mix, bytes_per_job }
    }

    /// Submits and completes about so many workflows; returns what one cost in nanoseconds.
    fn work(&mut self, workflows: u64) -> f64 {
        let (begun, from) = (Stopwatch::start(), self.machine.completed);
        while self.machine.completed < from + workflows {
            self.machine.submit((0..51).map(|_| self.mix.next(false)));
            self.machine.work();
            self.machine.archive();
            self.machine.tick();
        }
        begun.elapsed().as_secs_f64() * 1e9 / (self.machine.completed - from) as f64
    }
}

/// A million sessions, probed as usual, with 10,000 changes of capacity a second on top.
fn workers(rounds: usize) -> Vec<Figure> {
    const WORKERS: usize = 1_000_000;
    let kind = Name::new("resize").expect("valid");
    let before = live_bytes();
    let mut machine = BenchMachine::new();
    for worker in 0..WORKERS {
        machine.worker(format!("worker-{worker:07}"), 4, std::slice::from_ref(&kind));
        if worker % 100_000 == 99_999 {
            // Hellos of a real fleet do not all come in one millisecond.
            machine.advance(Duration::from_millis(900));
        }
    }
    // The bench's own books of a session are not the machine's.
    let books = machine.held.capacity() * std::mem::size_of::<Vec<onward_core::ids::Claim>>();
    let bytes = (live_bytes() - before - books) as f64 / WORKERS as f64;
    let mut shares = Vec::new();
    let mut probe_shares = Vec::new();
    let mut all = Vec::new();
    for round in 0..rounds {
        let mut changes = Duration::ZERO;
        let mut probes = Duration::ZERO;
        for tick in 0..100u64 {
            let begun = Stopwatch::start();
            for change in 0..1_000u64 {
                let worker = (tick * 1_000 + change).wrapping_mul(7_919) % WORKERS as u64;
                let message = FromWorker::Capacity { slots: (change % 5) as u32, accepting: true };
                machine.feed(Input::Session { session: SessionId(worker), message });
            }
            changes += begun.elapsed();
            let begun = Stopwatch::start();
            machine.advance(Duration::from_millis(100));
            machine.answer_probes();
            probes += begun.elapsed();
        }
        // Ten simulated seconds.
        shares.push(changes.as_secs_f64() * 10.0);
        probe_shares.push(probes.as_secs_f64() * 10.0);
        let begun = Stopwatch::start();
        black_box(machine.manager.judge_all().map(|verdict| verdict as usize + round).sum::<usize>());
        all.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let (share, share_spread) = median(shares);
    let (probe_share, probe_spread) = median(probe_shares);
    let (judged, judged_spread) = median(all);
    vec![
        Figure {
            what: "1M workers: 10k changes/s judged, share of a core".into(),
            value: share,
            unit: "%",
            wanted: Some(10.0),
            more: false,
            spread: share_spread,
        },
        Figure {
            what: "1M workers: 100k probes/s and answers, share of a core".into(),
            value: probe_share,
            unit: "%",
            wanted: Some(50.0),
            more: false,
            spread: probe_spread,
        },
        Figure {
            what: "1M workers: all judged".into(),
            value: judged,
            unit: "ms",
            wanted: Some(100.0),
            more: false,
            spread: judged_spread,
        },
        Figure {
            what: "memory per tracked idle worker".into(),
            value: bytes,
            unit: "bytes",
            wanted: Some(300.0),
            more: false,
            spread: None,
        },
    ]
}
