//! How many durable appends a second this machine's disk gives, what one costs the processor and how long the longest
//! takes, beside a bare write and sync of the same bytes. No snapshot is taken, so all rows are kept.
//!
//! `cargo run --release -p onward-log --example append_rate [folder]`

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onward_core::event::{Event, JobSubmitted, StampedEvent};
use onward_core::ids::{JobId, Seq};
use onward_core::job::draft::{self, Draft, JobDefaults};
use onward_core::limits::Limits;
use onward_core::time::Wall;
use onward_log::{BatchId, BatchKey, EmbeddedLog, EventLog, codec};

const RUN: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    println!(
        "events a batch | bytes a row | log: batches/s, events/s | bare sync: batches/s, events/s | log to bare | reopen ms, read events/s | CPU µs a batch, longest ms"
    );
    for size in [1, 64, 256] {
        let events = submissions(size);
        let mut row = Vec::new();
        codec::encode(key(1, 1), &events, &mut row);
        let folder = tempfile::tempdir_in(&parent)?;
        // Alternating, because a shared disk is not the same from one minute to the next.
        let (mut logged, mut bare) = (0.0, 0.0);
        let (mut read, mut cost) = ((0.0, 0.0), (0.0, 0.0));
        for round in 0..2 {
            let appended = append_rate(&folder.path().join(round.to_string()), &events)?;
            logged += appended.rate / 2.0;
            cost = (cost.0 + appended.cpu_us / 2.0, f64::max(cost.1, appended.longest.as_secs_f64() * 1e3));
            read = read_rate(&folder.path().join(round.to_string()))?;
            bare += sync_rate(&folder.path().join(format!("bare-{round}")), &row)? / 2.0;
        }
        println!(
            "{size:>14} | {:>11} | {logged:>9.0} {:>14.0} | {bare:>14.0} {:>15.0} | {:>12.2} | {:>9.0} {:>13.0} | {:>9.0} {:>9.1}",
            row.len(),
            logged * size as f64,
            bare * size as f64,
            logged / bare,
            read.0,
            read.1,
            cost.0,
            cost.1
        );
    }
    Ok(())
}

fn key(term: u64, first: u64) -> BatchKey {
    BatchKey { term: onward_core::fence::Term::new(term), id: BatchId(first), first: Seq(first) }
}

/// Jobs with a payload of 100 bytes.
fn submissions(count: usize) -> Vec<StampedEvent> {
    let draft = Draft::of_kind("resize", vec![7; 100]);
    let spec = draft::check(draft, &Limits::default(), &JobDefaults::default()).expect("a plain job");
    let spec = Arc::new(spec);
    let submitted = |n| {
        let id = JobId::v7(Wall::from_ms(1_800_000_000_000), n);
        Event::JobSubmitted(JobSubmitted {
            id,
            spec: spec.clone(),
            fingerprint: None,
            retry_of: None,
            taken_over: Arc::default(),
            scheduled: None,
            gate: None,
        })
    };
    let stamped = |n| StampedEvent { at: Wall::from_ms(1_800_000_000_000), event: submitted(n as u128) };
    (0..count).map(stamped).collect()
}

struct AppendTimes {
    /// Batches a second.
    rate: f64,
    /// Processor time of one batch.
    cpu_us: f64,
    longest: Duration,
}

fn append_rate(folder: &Path, events: &[StampedEvent]) -> Result<AppendTimes, Box<dyn Error>> {
    let mut log = EmbeddedLog::open(folder)?;
    let term = log.seize_seat()?.term.get();
    let (mut next, mut longest, cpu) = (1, Duration::ZERO, cpu_us()?);
    let began = Instant::now();
    let mut now = began;
    while now - began < RUN {
        log.append_events(key(term, next), events, &[])?;
        next += events.len() as u64;
        longest = longest.max(now.elapsed());
        now = Instant::now();
    }
    let batches = (next - 1) as f64 / events.len() as f64;
    Ok(AppendTimes { rate: batches / began.elapsed().as_secs_f64(), cpu_us: (cpu_us()? - cpu) / batches, longest })
}

/// The processor time that this process has used so far, by the kernel's count of hundredths of a second.
fn cpu_us() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let ticks = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Ok(ticks.map(str::parse::<f64>).sum::<Result<f64, _>>()? * 1e4)
}

/// The time that opening takes, and the rate at which everything is read back.
fn read_rate(folder: &Path) -> Result<(f64, f64), Box<dyn Error>> {
    let began = Instant::now();
    let mut log = EmbeddedLog::open(folder)?;
    let opened = began.elapsed();
    let (began, mut next) = (Instant::now(), Seq(1));
    loop {
        let batches = log.read_events(next, 10_000)?;
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
