//! Each operation of the disk fails once, or from then on, while jobs go through all of their lives; and some fail at
//! random under load. Nothing that was acknowledged is lost or changed, and the node serves again by itself.
//!
//! `ONWARD_SOAK_CASES` sets the number of cases; `ONWARD_FAULT_CASE` picks one.

#![allow(clippy::print_stdout, reason = "the case that fails must be seen")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_node::engine::Engine;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::disk::{Fault, Kind, Op};
use crate::rig::until_handed_over;
use crate::world::{Draw, Stop, World};

const CASES: u64 = 64;
/// At a time: most of a case is waiting.
const TOGETHER: usize = 4;
/// An archive that is being opened anew cannot be read while it is held. Then all clients may wait for it, and nobody uses
/// the disk.
const HELD_FOR: Duration = Duration::from_millis(100);
/// Ways in which one operation fails.
const WAYS: u64 = 8;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// Runs `case` for each number, some of them at a time; says how often the disk failed.
async fn every_case<F: Future<Output = Result<u64, String>> + Send>(
    cases: u64,
    case: impl Fn(u64) -> F + Send + Sync + 'static,
) -> u64 {
    let picked = number("ONWARD_FAULT_CASE");
    let (case, next, failures) = (Arc::new(case), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let run = || {
        let (case, next, failures) = (case.clone(), next.clone(), failures.clone());
        async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= cases {
                    return;
                }
                if picked.is_some_and(|picked| picked != number) {
                    continue;
                }
                match case(number).await {
                    Ok(count) => drop(failures.fetch_add(count, Ordering::Relaxed)),
                    Err(wrong) => panic!("ONWARD_FAULT_CASE={number}: {wrong}"),
                }
            }
        }
    };
    let mut running = JoinSet::new();
    (0..TOGETHER).for_each(|_| drop(running.spawn(run())));
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    failures.load(Ordering::Relaxed)
}

/// Jobs of each size go through all of their lives.
async fn live(world: &World, seed: u64) -> Result<(), Stop> {
    let mut draw = Draw::new(seed);
    let engine = world.start().await?;
    let lived = async {
        for round in 0..3 {
            let mut submitted = Vec::new();
            for _ in 0..4 {
                submitted.push(world.submit(&engine, draw.bytes()).await?);
            }
            world.cancel(&engine, submitted[3]).await?;
            let ended = world.succeed(&engine, draw.bytes()).await?;
            world.succeed(&engine, draw.bytes()).await?;
            world.let_archive(&engine).await;
            if let Some(ended) = ended {
                world.retry(&engine, ended, round).await?;
            }
        }
        Ok(())
    };
    let lived = lived.await;
    world.stop(engine).await?;
    lived
}

/// How an operation fails, which is the `nth` of those that count.
#[derive(Clone, Copy, Debug)]
struct OneFault {
    nth: u64,
    way: u64,
}

impl OneFault {
    /// `before`: how many operations do not count.
    fn after(self, before: u64) -> Fault {
        let Self { nth, way } = self;
        let kind = if way.is_multiple_of(2) { Kind::Io } else { Kind::Full };
        let times = if way < 4 { 1 } else { u64::MAX };
        Fault { from: before + nth, every: 1, times, kind, op: None, is_short: way % 4 >= 2 }
    }
}

/// Runs `case` with a fault at each of so many operations and in each way, or with as many cases as are asked for.
async fn every_fault<F: Future<Output = Result<u64, String>> + Send>(
    ops: u64,
    case: impl Fn(u64, OneFault) -> F + Send + Sync + 'static,
) {
    let all = ops * WAYS;
    let cases = number("ONWARD_SOAK_CASES").unwrap_or(CASES).min(all);
    let failures = every_case(cases, move |number| {
        // Spread over all of them, and each way comes at each place.
        let at = number * all / cases;
        case(number, OneFault { nth: 1 + at / WAYS, way: (at + number) % WAYS })
    });
    let failures = failures.await;
    assert!(number("ONWARD_FAULT_CASE").is_some() || failures >= cases / 2, "{failures} failures in {cases} cases");
}

/// How many operations a life takes that meets no fault.
async fn ops_of_a_life() -> u64 {
    let world = World::new();
    live(&world, 0).await.unwrap_or_else(|why| panic!("without any fault: {why:?}"));
    let ops = world.disk.ops();
    world.check(None).await.unwrap();
    ops
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_operation_fails_nothing_acknowledged_is_lost_or_changed() {
    let ops = ops_of_a_life().await;
    println!("a life takes {ops} operations");
    every_fault(ops, move |case, fault| async move {
        let world = World::new();
        world.disk.set_fault(fault.after(0));
        let lived = live(&world, case).await;
        let met = world.disk.heal();
        if let Err(Stop::Wrong(wrong)) = lived {
            return Err(wrong);
        }
        world.check(None).await.map(|()| met)
    })
    .await;
}

/// A job has ended and the archive is at it, and comes no further, when more is asked of the log and that fails. A term
/// that begins then hands the same job over again. Gives how many operations the log took.
async fn end_a_term_while_archiving(
    world: &World,
    engine: &Engine,
    seed: u64,
    fault: Option<OneFault>,
) -> Result<u64, Stop> {
    let mut draw = Draw::new(seed);
    for _ in 0..3 {
        world.submit(engine, draw.large()).await?;
    }
    world.disk.hold_archive();
    world.succeed(engine, draw.large()).await?;
    world.disk.until_waited_for().await;
    let before = world.disk.ops();
    if let Some(fault) = fault {
        world.disk.set_fault(fault.after(before));
    }
    for _ in 0..2 {
        world.submit(engine, draw.large()).await.map(drop).or_else(go_on)?;
        world.succeed(engine, draw.large()).await.map(drop).or_else(go_on)?;
    }
    Ok(world.disk.ops() - before)
}

/// Whoever is refused asks for something else.
fn go_on(stop: Stop) -> Result<(), Stop> {
    if let Stop::Wrong(_) = stop { Err(stop) } else { Ok(()) }
}

async fn archived_twice(seed: u64, fault: Option<OneFault>) -> Result<(u64, u64), String> {
    let world = World::with_a_slow_archive();
    let engine = world.start().await.map_err(|why| format!("{why:?}"))?;
    let done = end_a_term_while_archiving(&world, &engine, seed, fault).await;
    let met = world.disk.heal();
    world.until_it_serves(&engine).await?;
    until_handed_over(&engine).await;
    world.disk.release();
    let ops = match done {
        Ok(ops) => ops,
        Err(Stop::Refused) => 0,
        Err(Stop::Wrong(wrong)) => return Err(wrong),
    };
    world.check(Some(engine)).await.map(|()| (ops, met))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whichever_operation_ends_a_term_while_jobs_are_archived_their_content_is_kept() {
    let (ops, _) = archived_twice(0, None).await.unwrap();
    println!("the log takes {ops} operations while jobs are archived");
    every_fault(ops, |case, fault| async move { archived_twice(case, Some(fault)).await.map(|(_, met)| met) }).await;
}

/// Clients and workers go on whatever they are told, while the disk fails now and then, or has no room for what is large.
async fn load(world: &World, engine: &Engine, seed: u64) -> Result<(), Stop> {
    let mut draw = Draw::new(seed);
    let mut known = Vec::new();
    for step in 0..40 {
        let done = match draw.below(8) {
            0..3 => world.submit(engine, draw.bytes()).await.map(|id| known.push(id)),
            3..6 => world.succeed(engine, draw.bytes()).await.map(drop),
            6 => match known.pop() {
                Some(id) => world.cancel(engine, id).await,
                None => Ok(()),
            },
            _ => {
                world.let_archive(engine).await;
                Ok(())
            }
        };
        match done {
            Err(Stop::Refused) if step % 4 == 0 => world.let_archive(engine).await,
            Err(Stop::Refused) => tokio::task::yield_now().await,
            done => done?,
        }
    }
    Ok(())
}

/// Until the disk has done so much, or all clients have.
async fn until_ops(world: &World, ops: u64, clients: &mut JoinSet<Result<(), Stop>>) -> Result<(), String> {
    loop {
        tokio::select! {
            () = world.disk.until_ops(ops) => return Ok(()),
            done = clients.join_next() => match done {
                Some(done) => done.expect("a client does not panic").or_else(go_on).map_err(|why| format!("{why:?}"))?,
                None => return Ok(()),
            },
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_and_failures_at_random_nothing_acknowledged_is_lost_or_changed() {
    let cases = number("ONWARD_SOAK_CASES").unwrap_or(CASES) / 8;
    let failures = every_case(cases, move |case| async move {
        let world = if case.is_multiple_of(2) { World::new() } else { World::with_a_slow_archive() };
        let engine = world.start().await.map_err(|why| format!("{why:?}"))?;
        let mut clients = JoinSet::new();
        for client in 0..3 {
            let (world, engine) = (world.clone(), engine.clone());
            clients.spawn(async move { load(&world, &engine, case << 8 | client).await });
        }
        let mut draw = Draw::new(case);
        let mut met = 0;
        while !clients.is_empty() {
            let now = world.disk.ops();
            let from = now + 1 + draw.below(30);
            let kind = if draw.below(2) == 0 { Kind::Io } else { Kind::Full };
            let op = [None, Some(Op::Sync), Some(Op::Write), Some(Op::SetLen)][draw.below(4) as usize];
            let (every, times) = (1 + draw.below(20), 1 + draw.below(20));
            match draw.below(3) {
                0 => world.disk.set_room(draw.below(60_000) as usize),
                _ => world.disk.set_fault(Fault { from, every, times, kind, op, is_short: draw.below(2) == 0 }),
            }
            let is_held = draw.below(3) == 0;
            if is_held {
                world.disk.hold_archive();
            }
            let ops = until_ops(&world, now + draw.below(120), &mut clients);
            let wrong = match is_held {
                true => timeout(HELD_FOR, ops).await.unwrap_or(Ok(())),
                false => ops.await,
            };
            met += world.disk.heal();
            world.disk.release();
            wrong?;
            until_ops(&world, world.disk.ops() + draw.below(40), &mut clients).await?;
        }
        world.check(Some(engine)).await.map(|()| met)
    });
    let failures = failures.await;
    println!("{failures} operations failed");
    assert!(number("ONWARD_FAULT_CASE").is_some() || failures >= cases, "{failures} failures in {cases} cases");
}
