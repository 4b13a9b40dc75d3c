//! How many durable appends a second this machine's disk gives, beside a bare write and sync of the same bytes.
//!
//! `cargo run --release -p onward-log --example append_rate [folder]`

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onward_core::event::{Event, JobSubmitted, Stamped};
use onward_core::ids::{JobId, Seq};
use onward_core::job::draft::{self, Draft, JobDefaults};
use onward_core::limits::Limits;
use onward_core::time::Wall;
use onward_log::{BatchId, BatchKey, Log, RedbLog, codec};

const RUN: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    println!(
        "events a batch | bytes a row | log: batches/s, events/s | bare sync: batches/s, events/s | log to bare | reopen ms, read events/s"
    );
    for size in [1, 64, 256] {
        let events = submissions(size);
        let mut row = Vec::new();
        codec::encode(key(1, 1), &events, &mut row);
        let folder = tempfile::tempdir_in(&parent)?;
        // Alternating, because a shared disk is not the same from one minute to the next.
        let (mut logged, mut bare) = (0.0, 0.0);
        let mut read = (0.0, 0.0);
        for round in 0..2 {
            logged += append_rate(&folder.path().join(round.to_string()), &events)? / 2.0;
            read = read_rate(&folder.path().join(round.to_string()))?;
            bare += sync_rate(&folder.path().join(format!("bare-{round}")), &row)? / 2.0;
        }
        println!(
            "{size:>14} | {:>11} | {logged:>9.0} {:>14.0} | {bare:>14.0} {:>15.0} | {:>12.2} | {:>9.0} {:>13.0}",
            row.len(),
            logged * size as f64,
            bare * size as f64,
            logged / bare,
            read.0,
            read.1
        );
    }
    Ok(())
}

fn key(term: u64, first: u64) -> BatchKey {
    BatchKey { term: onward_core::fence::Term::new(term), id: BatchId(first), first: Seq(first) }
}

/// Jobs with a payload of 100 bytes.
fn submissions(count: usize) -> Vec<Stamped> {
    let draft = Draft::of_kind("resize", vec![7; 100]);
    let spec = draft::check(draft, &Limits::default(), &JobDefaults::default()).expect("a plain job");
    let spec = Arc::new(spec);
    let submitted = |n| {
        let id = JobId::v7(Wall::from_ms(1_800_000_000_000), n);
        Event::JobSubmitted(JobSubmitted { id, spec: spec.clone(), fingerprint: None, retry_of: None })
    };
    let stamped = |n| Stamped { at: Wall::from_ms(1_800_000_000_000), event: submitted(n as u128) };
    (0..count).map(stamped).collect()
}

fn append_rate(folder: &Path, events: &[Stamped]) -> Result<f64, Box<dyn Error>> {
    let mut log = RedbLog::open(folder)?;
    let term = log.take_seat()?.term.get();
    let mut next = 1;
    let began = Instant::now();
    while began.elapsed() < RUN {
        log.append(key(term, next), events, &[])?;
        next += events.len() as u64;
    }
    Ok((next - 1) as f64 / events.len() as f64 / began.elapsed().as_secs_f64())
}

/// How long opening takes, and how fast everything is read back.
fn read_rate(folder: &Path) -> Result<(f64, f64), Box<dyn Error>> {
    let began = Instant::now();
    let mut log = RedbLog::open(folder)?;
    let opened = began.elapsed();
    let (began, mut next) = (Instant::now(), Seq(1));
    loop {
        let batches = log.read(next, 10_000)?;
        let Some(last) = batches.last() else { break };
        next = Seq(last.first.0 + last.events.len() as u64);
    }
    Ok((opened.as_secs_f64() * 1e3, (next.0 - 1) as f64 / began.elapsed().as_secs_f64()))
}

fn sync_rate(path: &Path, row: &[u8]) -> Result<f64, Box<dyn Error>> {
    let mut file = File::create(path)?;
    let mut written = 0_u64;
    let began = Instant::now();
    while began.elapsed() < RUN {
        file.write_all(row)?;
        file.sync_data()?;
        written += 1;
    }
    Ok(written as f64 / began.elapsed().as_secs_f64())
}
