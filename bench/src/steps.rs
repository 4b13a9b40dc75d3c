//! The longest step: how long anybody else waits while very many jobs are dealt with at once.

use std::time::Duration;

use onward_core::ids::{JobId, Name};
use onward_core::input::{Call, Filter};
use onward_core::job::Draft;
use onward_core::payload::Payload;

use crate::cpu::Stopwatch;
use crate::machine::BenchMachine;
use crate::report::Figure;

/// The goal in milliseconds.
const WANTED: f64 = 50.0;
const HOUR: Duration = Duration::from_secs(3600);
const KIND: &str = "resize";

/// `jobs` are in memory each time; a third of them, where something happens at one instant that few jobs share.
pub fn steps(jobs: u64) -> Vec<Figure> {
    let third = jobs / 3;
    vec![
        figure(format!("submitting {}, by 256", count(jobs)), submitting(jobs)),
        figure("a batch of 10k with idempotency keys".into(), keyed_batch(jobs)),
        figure(format!("{} cancelled by a filter", count(jobs)), cancelling(jobs)),
        figure(format!("{} due at one instant, workers waiting", count(third)), due(jobs, third)),
        figure(format!("{} leases end at one instant", count(third)), expiring(jobs, third)),
        figure(format!("{} overall timeouts at one instant", count(jobs)), timing_out(jobs)),
        figure(format!("{} idempotency keys expire at one instant", count(third)), forgetting(jobs, third)),
        figure("a worker with 10k attempts is replaced".into(), replacing(jobs)),
        figure(format!("snapshot of {}", count(jobs)), snapshot(jobs)),
    ]
}

fn figure(what: String, longest: Duration) -> Figure {
    Figure {
        what: format!("longest step: {what}"),
        value: longest.as_secs_f64() * 1e3,
        unit: "ms",
        wanted: Some(WANTED),
        more: false,
        spread: None,
    }
}

fn count(jobs: u64) -> String {
    if jobs.is_multiple_of(1_000_000) { format!("{}M", jobs / 1_000_000) } else { format!("{}k", jobs / 1_000) }
}

fn draft() -> Draft {
    Draft::of_kind(KIND, Payload::from([b'x'; 100]))
}

/// A machine with so many jobs that wait for nobody, and are out of the way of what is measured.
fn machine_with(jobs: u64) -> BenchMachine {
    let mut machine = BenchMachine::new();
    submit(&mut machine, jobs, || Draft { delay: Some(1_000 * HOUR), timeout: Some(1_000 * HOUR), ..draft() });
    machine
}

/// All within a millisecond, as far as the machine knows.
fn submit(machine: &mut BenchMachine, jobs: u64, draft: impl Fn() -> Draft) {
    let mut left = jobs;
    while left > 0 {
        let some = left.min(256);
        machine.submit((0..some).map(|_| draft()));
        left -= some;
    }
}

fn submitting(jobs: u64) -> Duration {
    let mut machine = BenchMachine::new();
    machine.begin_timing();
    for _ in 0..jobs / 256 {
        machine.submit((0..256).map(|_| draft()));
        machine.tick();
    }
    machine.longest()
}

fn keyed_batch(jobs: u64) -> Duration {
    let mut machine = machine_with(jobs);
    machine.begin_timing();
    machine.submit((0..10_000).map(|n| Draft { idempotency_key: Some(format!("key-{n}").into()), ..draft() }));
    machine.longest()
}

fn cancelling(jobs: u64) -> Duration {
    /// The number of jobs that a node cancels in one turn.
    const A_FEW: usize = 500;
    let mut machine = BenchMachine::new();
    submit(&mut machine, jobs, draft);
    let mut ids: Vec<JobId> = machine.manager.state().jobs().map(|(_, job)| job.id).collect();
    ids.sort_unstable_by(|one, other| other.cmp(one));
    let filter = Filter { kind: Name::new(KIND), ..Filter::default() };
    machine.begin_timing();
    for some in ids.chunks(A_FEW) {
        machine.call(Call::CancelWhere { filter: filter.clone(), jobs: some.to_vec() });
    }
    assert_eq!(machine.manager.state().open_jobs(), 0);
    machine.longest()
}

fn due(jobs: u64, due: u64) -> Duration {
    let mut machine = machine_with(jobs - due);
    workers(&mut machine, due);
    submit(&mut machine, due, || Draft { delay: Some(HOUR), ..draft() });
    machine.advance_answering(HOUR - Duration::from_secs(1));
    machine.begin_timing();
    machine.advance_answering(Duration::from_secs(1));
    assert_eq!(machine.held.iter().map(Vec::len).sum::<usize>() as u64, due);
    machine.longest()
}

/// Adds workers that could take all of these at once.
fn workers(machine: &mut BenchMachine, slots: u64) {
    let kind = Name::new(KIND).expect("valid");
    for worker in 0..slots.div_ceil(10_000) {
        machine.worker(format!("worker-{worker}"), 10_000, std::slice::from_ref(&kind));
    }
}

fn expiring(jobs: u64, leases: u64) -> Duration {
    let mut machine = machine_with(jobs - leases);
    workers(&mut machine, leases);
    submit(&mut machine, leases, || Draft { stuck_after: Some(HOUR), ..draft() });
    machine.advance_answering(Duration::from_millis(1));
    assert_eq!(machine.held.iter().map(Vec::len).sum::<usize>() as u64, leases);
    machine.held.iter_mut().for_each(Vec::clear);
    machine.advance_answering(Duration::from_secs(290));
    machine.begin_timing();
    machine.advance_answering(Duration::from_secs(20));
    machine.longest()
}

fn timing_out(jobs: u64) -> Duration {
    let mut machine = BenchMachine::new();
    submit(&mut machine, jobs, || Draft { timeout: Some(HOUR), ..draft() });
    machine.begin_timing();
    machine.advance(HOUR + Duration::from_secs(1));
    assert_eq!(machine.manager.state().open_jobs(), 0);
    machine.longest()
}

fn forgetting(jobs: u64, keys: u64) -> Duration {
    let mut machine = machine_with(jobs - keys);
    let number = std::cell::Cell::new(0_u64);
    submit(&mut machine, keys, || {
        let n = number.replace(number.get() + 1);
        Draft { idempotency_key: Some(format!("key-{n}").into()), timeout: Some(HOUR), ..draft() }
    });
    machine.advance(HOUR + Duration::from_secs(1));
    machine.archive();
    machine.begin_timing();
    machine.advance(25 * HOUR);
    assert_eq!(machine.manager.state().idempotency_keys(), 0);
    machine.longest()
}

fn replacing(jobs: u64) -> Duration {
    let mut machine = machine_with(jobs);
    workers(&mut machine, 10_000);
    submit(&mut machine, 10_000, draft);
    machine.begin_timing();
    machine.worker_again(0, 10_000, &[Name::new(KIND).expect("valid")]);
    machine.longest()
}

fn snapshot(jobs: u64) -> Duration {
    /// The number of jobs that a node takes in one turn.
    const A_FEW: usize = 64;
    let mut machine = machine_with(jobs);
    let begun = Stopwatch::start();
    machine.manager.begin_snapshot();
    let mut longest = begun.elapsed();
    let mut job = 0;
    loop {
        let begun = Stopwatch::start();
        let part = machine.manager.snapshot_next(A_FEW);
        longest = longest.max(begun.elapsed());
        if part.done {
            break;
        }
        drop(part);
        // Something changes meanwhile, and is copied before it does.
        job += 1;
        if job % 64 == 0 {
            machine.begin_timing();
            machine.submit(core::iter::once(draft()));
            longest = longest.max(machine.longest());
        }
    }
    longest
}
