//! Each operation of the disk fails once, or from then on, while jobs go through all of their lives; and some fail at
//! random under load. Nothing that was acknowledged is lost or changed, and the node serves again by itself.
//!
//! `ONWARD_SOAK_CASES` sets the number of cases; `ONWARD_FAULT_CASE` picks one.

#![allow(clippy::print_stdout, reason = "the case that fails must be seen")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_core::ids::{Claim, Name};
use onward_node::engine::Engine;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::disk::{Fault, Kind, Op};
use crate::rig::until_handed_over;
use crate::world::{Draw, Stop, World};

const CASES: u64 = 64;
/// The number of cases at a time: most of a case is waiting.
const TOGETHER: usize = 4;
/// An archive that is being opened anew cannot be read while it is held. Then all clients may wait for it, and nobody uses
/// the disk.
const HELD_FOR: Duration = Duration::from_millis(100);
/// Ways in which one operation fails.
const WAYS: u64 = 8;
/// All tests together have at least so many cases, if so many are asked for.
const SOAK: u64 = 2_400;

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
pub async fn live(world: &World, seed: u64) -> Result<(), Stop> {
    let mut draw = Draw::new(seed);
    let engine = world.start().await?;
    let lived = async {
        for round in 0..3 {
            let mut submitted = Vec::new();
            for _ in 0..4 {
                submitted.push(world.submit(&engine, draw.bytes()).await?);
            }
            world.cancel(&engine, submitted[3]).await?;
            world.extend(&engine, submitted[2], &name("more"), &mut draw).await?;
            world.extend(&engine, submitted[2], &name(&format!("more{round}")), &mut draw).await?;
            fail(world, &engine, &mut draw, true).await?;
            fail(world, &engine, &mut draw, false).await?;
            let ended = world.succeed(&engine, draw.bytes()).await?;
            world.succeed(&engine, draw.bytes()).await?;
            match (round, world.dead_letter()) {
                (0, Some(dead)) => world.replay(&engine, dead, &name("again")).await?,
                (1, Some(dead)) => world.drop_dead_letter(&engine, dead).await?,
                _ => {}
            }
            world.set_paused(&engine, &name("side"), round != 1).await?;
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

/// An attempt that comes some way and then fails, if there is a job that is ready.
async fn fail(world: &World, engine: &Engine, draw: &mut Draw, retryable: bool) -> Result<(), Stop> {
    let Some(claim) = world.lease(engine).await? else { return Ok(()) };
    world.checkpoint(engine, claim, draw.bytes()).await?;
    let last = (draw.below(2) == 0).then(|| draw.bytes());
    world.fail(engine, claim, draw.words(), retryable, last).await
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A fault of one operation, the `nth` of those that count.
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

/// The number of operations in a life that meets no fault.
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

/// Goes on after a refusal, with another request.
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
        // Few enough that some are asked for again.
        let request = name(&format!("{seed}-{}", draw.below(3)));
        let done = match draw.below(14) {
            0..3 => world.submit(engine, draw.bytes()).await.map(|id| known.push(id)),
            3..8 => attempt(world, engine, &mut draw).await,
            8 => match known.pop() {
                Some(id) => world.cancel(engine, id).await,
                None => Ok(()),
            },
            9 => world.files.change_tokens(format!("{seed}-{step}"), &mut draw).await,
            10 => match known.last() {
                Some(id) => world.extend(engine, *id, &request, &mut draw).await,
                None => Ok(()),
            },
            11 => match world.dead_letter() {
                Some(dead) if draw.below(3) == 0 => world.drop_dead_letter(engine, dead).await,
                Some(dead) => world.replay(engine, dead, &request).await,
                None => Ok(()),
            },
            12 => world.set_paused(engine, &name(&format!("side{seed}")), draw.below(2) == 0).await,
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

/// One that prints and leaves checkpoints, if there is a job that is ready.
async fn attempt(world: &World, engine: &Engine, draw: &mut Draw) -> Result<(), Stop> {
    let Some(claim) = world.lease(engine).await? else { return Ok(()) };
    for _ in 0..draw.below(3) {
        world.files.print(engine, claim, &draw.printed()).await.or_else(go_on)?;
    }
    for _ in 0..draw.below(3) {
        world.checkpoint(engine, claim, draw.bytes()).await.or_else(go_on)?;
    }
    match draw.below(2) {
        0 => world.settle(engine, claim, draw.bytes()).await,
        _ => {
            let (retryable, last) = (draw.below(2) == 0, (draw.below(2) == 0).then(|| draw.bytes()));
            world.fail(engine, claim, draw.words(), retryable, last).await
        }
    }
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
    let cases = random_cases().await;
    let met_in_files = Arc::new(AtomicU64::new(0));
    let sum = met_in_files.clone();
    let failures = every_case(cases, move |case| {
        let sum = sum.clone();
        async move {
            let world = World::at_random(case);
            let engine = world.start().await.map_err(|why| format!("{why:?}"))?;
            // It prints from the beginning to the end.
            let witness = loop {
                world.until_it_serves(&engine).await?;
                if let Some(claim) = unless_refused(world.lease(&engine).await)?.flatten() {
                    break claim;
                }
            };
            let (met, in_files) = fail_at_random(&world, &engine, witness, case).await?;
            sum.fetch_add(in_files, Ordering::Relaxed);
            world.check(Some(engine)).await.map(|()| met)
        }
    });
    let failures = failures.await;
    let in_files = met_in_files.load(Ordering::Relaxed);
    println!(
        "{cases} cases: {failures} operations on log, journal and archive failed, and {in_files} changes to files"
    );
    let is_one = number("ONWARD_FAULT_CASE").is_some();
    assert!(is_one || failures >= cases && in_files >= cases, "{failures} and {in_files} failures in {cases} cases");
}

/// How often something failed that belongs to log and archive, and how often a change to a file did.
async fn fail_at_random(world: &World, engine: &Engine, witness: Claim, case: u64) -> Result<(u64, u64), String> {
    let say = |why: Stop| format!("{why:?}");
    let mut clients = JoinSet::new();
    for client in 0..3 {
        let (world, engine) = (world.clone(), engine.clone());
        clients.spawn(async move { load(&world, &engine, case << 8 | client).await });
    }
    let mut draw = Draw::new(case);
    let (mut met, mut in_files) = (0, 0);
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
        world.files.faults().fail_one_in(1 + draw.below(6));
        let is_held = draw.below(3) == 0;
        if is_held {
            world.disk.hold_archive();
        }
        world.files.make_own_token().or_else(go_on).map_err(say)?;
        world.files.print(engine, witness, &draw.printed()).await.or_else(go_on).map_err(say)?;
        let ops = until_ops(world, now + draw.below(120), &mut clients);
        let wrong = match is_held {
            true => timeout(HELD_FOR, ops).await.unwrap_or(Ok(())),
            false => ops.await,
        };
        met += world.disk.heal();
        in_files += world.files.faults().heal();
        world.disk.release();
        wrong?;
        until_ops(world, world.disk.ops() + draw.below(40), &mut clients).await?;
    }
    while unless_refused(world.files.print(engine, witness, b"the end").await)?.is_none() {
        world.until_it_serves(engine).await?;
    }
    world.files.check_end(witness).await?;
    let result = draw.bytes();
    while unless_refused(world.settle(engine, witness, result.clone()).await)?.is_none() {
        world.until_it_serves(engine).await?;
    }
    Ok((met, in_files))
}

fn unless_refused<T>(done: Result<T, Stop>) -> Result<Option<T>, String> {
    match done {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Refused) => Ok(None),
        Err(Stop::Wrong(wrong)) => Err(wrong),
    }
}

/// At least an eighth of what is asked for, and as many as are missing to [`SOAK`] with those that are enumerated.
async fn random_cases() -> u64 {
    let asked = number("ONWARD_SOAK_CASES");
    let least = asked.unwrap_or(CASES) / 8;
    let Some(asked) = asked else { return least };
    let (archiving, _) = archived_twice(0, None).await.unwrap();
    let enumerated: u64 = [ops_of_a_life().await, archiving].iter().map(|ops| (ops * WAYS).min(asked)).sum();
    let cases = least.max(SOAK.min(asked).saturating_sub(enumerated));
    println!("{} cases in all: {enumerated} of one operation that fails, {cases} at random", enumerated + cases);
    cases
}
