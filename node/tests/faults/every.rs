//! Each operation of the disk fails once, or from then on, while jobs go through all of their lives; and some fail at
//! random under load. Nothing that was acknowledged is lost or changed, and the node serves again by itself.
//!
//! `ONWARD_SOAK_CASES` sets the number of cases; `ONWARD_FAULT_CASE` picks one.

#![allow(clippy::print_stdout, reason = "the case that fails must be seen")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk::{Fault, Kind, Op};
use crate::world::{Draw, Stop, World};

const CASES: u64 = 64;
/// At a time: most of a case is waiting.
const TOGETHER: usize = 4;
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
    let mut running = tokio::task::JoinSet::new();
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

fn fault(from: u64, way: u64) -> Fault {
    let kind = if way.is_multiple_of(2) { Kind::Io } else { Kind::Full };
    let times = if way < 4 { 1 } else { u64::MAX };
    Fault { from, every: 1, times, kind, op: None, is_short: way % 4 >= 2 }
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
    let all = ops * WAYS;
    let cases = number("ONWARD_SOAK_CASES").unwrap_or(CASES).min(all);
    let failures = every_case(cases, move |case| async move {
        // Spread over all of them, and each way comes at each place.
        let at = case * all / cases;
        let world = World::new();
        world.disk.set_fault(fault(1 + at / WAYS, (at + case) % WAYS));
        let lived = live(&world, case).await;
        let met = world.disk.heal();
        if let Err(Stop::Wrong(wrong)) = lived {
            return Err(wrong);
        }
        world.check(None).await.map(|()| met)
    });
    let failures = failures.await;
    assert!(number("ONWARD_FAULT_CASE").is_some() || failures >= cases / 2, "{failures} failures in {cases} cases");
}

/// Clients and workers go on whatever they are told, while the disk fails now and then, or has no room for what is large.
async fn load(world: &World, engine: &onward_node::engine::Engine, seed: u64) -> Result<(), Stop> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_and_failures_at_random_nothing_acknowledged_is_lost_or_changed() {
    let cases = number("ONWARD_SOAK_CASES").unwrap_or(CASES) / 8;
    let failures = every_case(cases, move |case| async move {
        let world = World::new();
        let engine = world.start().await.map_err(|why| format!("{why:?}"))?;
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let (world, engine) = (world.clone(), engine.clone());
                tokio::spawn(async move { load(&world, &engine, case << 8 | client).await })
            })
            .collect();
        let mut draw = Draw::new(case);
        let mut met = 0;
        while !clients.iter().all(tokio::task::JoinHandle::is_finished) {
            let from = world.disk.ops() + 1 + draw.below(30);
            let kind = if draw.below(2) == 0 { Kind::Io } else { Kind::Full };
            let op = [None, Some(Op::Sync), Some(Op::Write), Some(Op::SetLen)][draw.below(4) as usize];
            let (every, times) = (1 + draw.below(20), 1 + draw.below(20));
            match draw.below(3) {
                0 => world.disk.set_room(draw.below(60_000) as usize),
                _ => world.disk.set_fault(Fault { from, every, times, kind, op, is_short: draw.below(2) == 0 }),
            }
            tokio::time::sleep(core::time::Duration::from_millis(draw.below(40))).await;
            met += world.disk.heal();
            tokio::time::sleep(core::time::Duration::from_millis(draw.below(10))).await;
        }
        for client in clients {
            if let Err(Stop::Wrong(wrong)) = client.await.expect("a client does not panic") {
                return Err(wrong);
            }
        }
        world.check(Some(engine)).await.map(|()| met)
    });
    let failures = failures.await;
    println!("{failures} operations failed");
    assert!(number("ONWARD_FAULT_CASE").is_some() || failures >= cases, "{failures} failures in {cases} cases");
}
