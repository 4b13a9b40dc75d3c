//! What a beat costs whoever works, and what many leases cost whoever renews them.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onward::extender::LeaseState;
use onward::mailbox::{Mailbox, Memory, Message, Want};
use onward::testing::TestAttempt;
use onward::{Context, Delivery, Heartbeat, LeaseExtender, LeaseRule};

use crate::report::Figure;
use crate::runs::median;

const THREADS: u32 = 8;
const LEASES: usize = 10_000;

/// Times beats with a lease attached, as a handler has it.
pub fn beats(rounds: usize, count: u32) -> Vec<Figure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let extender = LeaseExtender::new(LeaseRule::default()).expect("the default rule");
    let (delivery, _lease) = runtime.block_on(async {
        let delivery = deliveries(1, Duration::from_secs(300)).await.remove(0);
        let lease = extender.attach(&delivery, &delivery).expect("attached once");
        (delivery, lease)
    });
    let one = (0..rounds).map(|_| per_beat(&delivery, 1, count)).collect();
    let many = (0..rounds).map(|_| per_beat(&delivery, THREADS, count)).collect();
    let mut figures = vec![
        figure("a beat, one thread", median(one), Some(10.0)),
        figure("a beat, 8 threads on one heartbeat", median(many), Some(50.0)),
        figure("a beat of a worker's attempt, one thread", median(of_attempts(&runtime, rounds, count)), Some(10.0)),
    ];
    figures.push(runtime.block_on(many_leases()));
    figures
}

/// The same as a worker's handler has it, whose beats are reported to a manager.
fn of_attempts(runtime: &tokio::runtime::Runtime, rounds: usize, count: u32) -> Vec<f64> {
    let (told, heard) = std::sync::mpsc::channel();
    let handler = |ctx: Context, (): ()| async move {
        for _ in 0..rounds {
            told.send(per_beat(ctx.heartbeat(), 1, count))?;
        }
        Ok(())
    };
    runtime.block_on(TestAttempt::of("beats").payload(&()).run(handler));
    heard.iter().collect()
}

/// Nanoseconds of a processor for one beat.
fn per_beat(heartbeat: &Heartbeat, threads: u32, count: u32) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..count).for_each(|_| black_box(heartbeat).beat()));
        }
    });
    began.elapsed().as_nanos() as f64 * f64::from(threads.min(cores)) / (f64::from(threads) * f64::from(count))
}

/// Ten thousand leases that are renewed every second, for three of them: how late the last one is.
async fn many_leases() -> Figure {
    let second = Duration::from_secs(1);
    let rule = LeaseRule { initial: 10 * second, extension: 10 * second, interval: second, enabled: true };
    let extender = LeaseExtender::new(rule).expect("a valid rule");
    let held: Vec<_> = deliveries(LEASES, rule.initial).await;
    let leases: Vec<_> = held.iter().map(|one| extender.attach(one, one).expect("attached once")).collect();
    let began = Instant::now();
    while began.elapsed() < 3 * second {
        held.iter().for_each(|one| one.beat());
        tokio::time::sleep(second / 10).await;
    }
    let left = leases.iter().map(|lease| match lease.state() {
        LeaseState::Held { remaining } => remaining,
        LeaseState::Lost { .. } => Duration::ZERO,
    });
    let least = left.min().expect("there are some").as_secs_f64();
    Figure {
        what: "least that is left of 10,000 leases of 10 s, renewed each second".into(),
        value: least,
        unit: "s",
        wanted: Some(8.0),
        more: true,
        spread: None,
    }
}

async fn deliveries(count: usize, lease: Duration) -> Vec<Delivery> {
    let mailbox = Arc::new(Memory::new());
    mailbox.send((0..count).map(|_| Message::new("work")).collect()).await;
    let asked = tokio::time::Instant::now();
    let received = mailbox.receive(Want { max: count, lease, wait: Duration::ZERO }).await.expect("it is in memory");
    received.into_iter().map(|one| Delivery::new(mailbox.clone(), one, Some(asked))).collect()
}

fn figure(what: &str, (value, spread): (f64, Option<(f64, f64)>), wanted: Option<f64>) -> Figure {
    Figure { what: what.into(), value, unit: "ns", wanted, more: false, spread }
}
