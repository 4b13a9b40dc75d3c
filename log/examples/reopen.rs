//! How long the files of a data folder take to open after their process was killed in the middle of its work.
//!
//! `cargo run --release -p onward-log --example reopen [archived rows] [MiB of blobs in the log]`

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Seq;
use onward_core::time::Wall;
use onward_log::{Archive, ArchivedJob, BatchId, BatchKey, Blob, EmbeddedArchive, EmbeddedLog, EventLog, Log};

/// Set for the process that is killed.
const FOLDER: &str = "ONWARD_REOPEN_FOLDER";
const ROWS_A_PUT: u64 = 1000;
const BLOB_BYTES: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let number = |at| std::env::args().nth(at).map_or(Ok(0), |text| text.parse::<u64>());
    let (rows, megabytes) = (number(1)?, number(2)?);
    if let Some(folder) = std::env::var_os(FOLDER) {
        return filled(Path::new(&folder), rows, megabytes);
    }
    let folder = tempfile::tempdir()?;
    let myself = std::env::current_exe()?;
    let mut child = Command::new(myself).args(std::env::args().skip(1)).env(FOLDER, folder.path()).spawn()?;
    while !folder.path().join("full").exists() && child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    let bytes = |name: &str| std::fs::metadata(folder.path().join(name)).map_or(0, |file| file.len() >> 20);
    let sizes = (bytes("archive.redb"), bytes("onward.redb"));
    let began = Instant::now();
    let archive = EmbeddedArchive::open(folder.path())?;
    println!("archive: {} rows, {} MiB, opened in {:?}", archive.count()?, sizes.0, began.elapsed());
    let began = Instant::now();
    let mut log = EmbeddedLog::open(folder.path())?;
    println!("log: {:?}, {} MiB, opened in {:?}", log.tail()?, sizes.1, began.elapsed());
    Ok(())
}

/// Goes on for ever once it is full, so that it is killed while it writes.
fn filled(folder: &Path, rows: u64, megabytes: u64) -> Result<(), Box<dyn Error>> {
    let archive = EmbeddedArchive::open(folder)?;
    let row = [7; 400];
    let put = |first: u64| {
        let job = |n: u64| ArchivedJob {
            id: u128::from(n) << 64 | u128::from(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            ended_at_ms: n / 3,
            expires_at_ms: Some(n),
            row: &row,
            blobs: &[],
        };
        archive.put(&(first..first + ROWS_A_PUT).map(job).collect::<Vec<_>>())
    };
    let began = Instant::now();
    (0..rows / ROWS_A_PUT).try_for_each(|at| put(at * ROWS_A_PUT))?;
    println!("{:.0} rows archived a second", rows as f64 / began.elapsed().as_secs_f64());
    let mut log = EmbeddedLog::open(folder)?;
    let term = log.seize_seat()?.term;
    let mut append = |at: u64| {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        let events = [StampedEvent { at: Wall::from_ms(at), event: Event::TermBegan { term } }];
        let key = BatchKey { term, id: BatchId(at), first: Seq(at) };
        log.append_events(key, &events, &[Blob { digest, bytes: &[5; BLOB_BYTES] }])
    };
    let blobs = (megabytes << 20) / BLOB_BYTES as u64;
    (1..=blobs).try_for_each(&mut append)?;
    std::fs::write(folder.join("full"), "")?;
    for at in 0.. {
        put((rows / ROWS_A_PUT + at) * ROWS_A_PUT)?;
        append(blobs + 1 + at)?;
    }
    Ok(())
}
