//! Blobs in redb: who waits for whom, and what room they take.

use core::time::Duration;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use onward_core::ids::Seq;
use onward_log::{BatchId, BatchKey, Blob, BlobDigest, EmbeddedLog, EventLog, Log, OnLoss};
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

use crate::samples::Draw;

/// A disk on which a sync can be held up: it says that it began, and waits until it may end.
#[derive(Clone, Debug)]
struct HeldBlob {
    bytes: Arc<InMemoryBackend>,
    gate: Arc<Mutex<Option<Gate>>>,
}

/// Only a test that fails waits this long.
const PATIENCE: Duration = Duration::from_secs(120);

type Gate = (Sender<()>, Receiver<()>);

impl StorageBackend for HeldBlob {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.set_len(len)
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.bytes.write(offset, data)
    }
    fn sync_data(&self) -> io::Result<()> {
        let gate = self.gate.lock().unwrap().take();
        if let Some((began, may_end)) = gate {
            began.send(()).unwrap();
            may_end.recv().unwrap();
        }
        self.bytes.sync_data()
    }
}

fn append(log: &mut EmbeddedLog, blobs: &[(BlobDigest, &[u8])]) {
    let tail = log.tail().unwrap();
    let key = BatchKey { term: tail.term, id: BatchId(tail.last.0), first: Seq(tail.last.0 + 1) };
    let blobs: Vec<_> = blobs.iter().map(|&(digest, bytes)| Blob { digest, bytes }).collect();
    log.append_events(key, &Draw::new(0).batch(2), &blobs).unwrap();
}

#[test]
fn a_read_does_not_wait_for_a_commit() {
    let disk = HeldBlob { bytes: Arc::new(InMemoryBackend::new()), gate: Arc::default() };
    let same = disk.clone();
    let journal = HeldBlob { bytes: Arc::new(InMemoryBackend::new()), gate: Arc::default() };
    let mut log =
        EmbeddedLog::on_storage(move || Ok(same.clone()), move || Ok(journal.clone()), 1 << 20, OnLoss::Refuse)
            .unwrap();
    log.seize_seat().unwrap();
    let (old, new) = (vec![1; 100_000], vec![2; 100_000]);
    append(&mut log, &[([1; 32], &old)]);
    let reader = log.blob_reader();

    let (began, has_begun) = channel();
    let (let_end, may_end) = channel();
    *disk.gate.lock().unwrap() = Some((began, may_end));
    let commit = thread::spawn(move || append(&mut log, &[([2; 32], &new)]));
    has_begun.recv().unwrap();
    // The commit ends after this; so if the read waited for it, there would be no answer, however long the patience.
    let (answer, answered) = channel();
    let same = reader.clone();
    thread::spawn(move || answer.send((same.blob(&[1; 32]).unwrap(), same.blob(&[2; 32]).unwrap())));
    let seen = answered.recv_timeout(PATIENCE);
    let_end.send(()).unwrap();
    commit.join().unwrap();
    assert_eq!(seen, Ok((Some(old), None)), "what the last commit left, and before the next one ended");
    assert!(reader.blob(&[2; 32]).unwrap().is_some());
}

fn megabytes(folder: &std::path::Path) -> u64 {
    std::fs::metadata(folder.join("onward.redb")).unwrap().len() >> 20
}

#[test]
fn blobs_waste_little_room_and_give_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let term = log.seize_seat().unwrap().term;
    let content = vec![7; (1 << 20) + 100];
    // No two have a name in common, so that what one leaves behind is not overwritten by another.
    let name =
        |n: u64| core::array::from_fn::<u8, 32, _>(|at| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8);
    let round = |log: &mut EmbeddedLog, names: core::ops::Range<u64>| {
        names.for_each(|n| append(log, &[(name(n), &content)]));
    };
    round(&mut log, 0..32);
    // redb doubles a small file, so this says only that 33 MiB are not 64 in runs that are rounded up.
    let after_one = megabytes(folder.path());
    assert!(after_one <= 66, "{after_one} MiB for 32");
    for first in [0, 32, 64, 96] {
        for n in first..first + 32 {
            log.drop_blobs(term, &[name(n)]).unwrap();
        }
        assert_eq!(log.blobs(None, 1).unwrap(), Vec::<BlobDigest>::new());
        round(&mut log, first + 32..first + 64);
    }
    let after_five = megabytes(folder.path());
    assert!(after_five <= after_one * 3 / 2, "{after_one} MiB became {after_five}");
}
