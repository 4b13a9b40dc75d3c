//! Snapshots of a gate: the whole state at one event, taken a few records at a time while the machine goes on.
//!
//! As a manager's are taken: the walk goes over the jobs in the order of their ids, and whatever is about to change a job
//! that the walk has not reached takes it first, as it was.

use core::ops::Bound;
use std::collections::{BTreeSet, VecDeque};

use crate::fence::Term;
use crate::ids::{JobId, Name, Seq};
use crate::manager::SnapshotCut;
use crate::time::Wall;

use super::Gate;
use super::event::Event;
use super::state::{DatacenterRecord, Job};

#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotRecord {
    /// The first of all.
    Head(Box<SnapshotHead>),
    Job(Box<Job>),
}

/// The small parts of the state, and the number of records that follow.
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotHead {
    pub term: Term,
    pub newest: Wall,
    pub seq: Seq,
    /// The least number that epochs may have.
    pub raised: u64,
    pub datacenters: Vec<(Name, DatacenterRecord)>,
    pub jobs: u64,
}

/// A snapshot under way.
#[derive(Debug)]
pub(super) struct OpenGateSnapshot {
    head: Option<Box<SnapshotHead>>,
    /// Taken before they changed.
    early: VecDeque<Job>,
    /// Jobs that the walk passes by: they were taken early, or came after it began.
    passed: BTreeSet<JobId>,
    /// The last job that the walk has reached.
    after: Bound<JobId>,
    is_walked: bool,
}

#[derive(Debug, Default)]
pub(super) struct RestoreProgress {
    expected: u64,
    found: u64,
}

impl OpenGateSnapshot {
    fn has_passed(&self, id: JobId) -> bool {
        let is_behind = match self.after {
            Bound::Excluded(after) => id <= after,
            _ => false,
        };
        self.is_walked || is_behind || self.passed.contains(&id)
    }
}

impl Gate {
    /// Begins a snapshot of the state at the newest event, which it gives. One under way is given up.
    pub fn begin_snapshot(&mut self) -> Seq {
        let state = &self.state;
        let head = SnapshotHead {
            term: state.term,
            newest: state.newest,
            seq: state.seq,
            raised: state.raised,
            datacenters: state.datacenters.iter().map(|(name, record)| (name.clone(), *record)).collect(),
            jobs: state.jobs.len() as u64,
        };
        self.snapshot = Some(Box::new(OpenGateSnapshot {
            head: Some(Box::new(head)),
            early: VecDeque::new(),
            passed: BTreeSet::new(),
            after: Bound::Unbounded,
            is_walked: false,
        }));
        self.state.seq
    }

    /// The next records, at most so many, and whether they are the last.
    pub fn snapshot_next(&mut self, max: usize) -> (Vec<SnapshotRecord>, bool) {
        let Some(snapshot) = &mut self.snapshot else { return (Vec::new(), true) };
        let mut records = Vec::new();
        if max > 0 {
            records.extend(snapshot.head.take().map(SnapshotRecord::Head));
        }
        while records.len() < max {
            if let Some(job) = snapshot.early.pop_front() {
                records.push(SnapshotRecord::Job(Box::new(job)));
                continue;
            }
            let Some((id, job)) = self.state.jobs.range((snapshot.after, Bound::Unbounded)).next() else {
                snapshot.is_walked = true;
                break;
            };
            snapshot.after = Bound::Excluded(*id);
            if !snapshot.passed.remove(id) {
                records.push(SnapshotRecord::Job(Box::new(job.clone())));
            }
        }
        let is_done = snapshot.is_walked && snapshot.head.is_none() && snapshot.early.is_empty();
        if is_done {
            self.snapshot = None;
        }
        (records, is_done)
    }

    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Takes what an event is about to change before it is applied, if the snapshot does not have it yet.
    pub(super) fn copy_before(&mut self, event: &Event) {
        let Some(snapshot) = &mut self.snapshot else { return };
        event.for_each_job(&mut |id| {
            if snapshot.has_passed(id) {
                return;
            }
            // One that is not there yet came after the snapshot began.
            snapshot.early.extend(self.state.jobs.get(&id).cloned());
            snapshot.passed.insert(id);
        });
    }

    /// Puts one record of a snapshot into this machine, which is new.
    pub fn restore(&mut self, record: SnapshotRecord) {
        debug_assert!(self.replaying, "a machine that has taken its seat is not restored");
        match record {
            SnapshotRecord::Head(head) => {
                let SnapshotHead { term, newest, seq, raised, datacenters, jobs } = *head;
                (self.state.term, self.state.newest, self.state.seq) = (term, newest, seq);
                self.state.raised = raised;
                self.state.datacenters = datacenters.into_iter().collect();
                self.restoring = Some(RestoreProgress { expected: jobs + 1, found: 0 });
                self.durability.set_replayed(seq);
            }
            SnapshotRecord::Job(job) => self.state.restore_job(*job),
        }
        self.restoring.as_mut().expect("a snapshot begins with its head").found += 1;
    }

    /// All records were restored. Says up to which event: the next one to apply comes after it.
    pub fn finish_restore(&mut self) -> Result<Seq, SnapshotCut> {
        let RestoreProgress { expected, found } = self.restoring.take().unwrap_or_default();
        if found != expected || found == 0 {
            return Err(SnapshotCut { found, expected });
        }
        Ok(self.state.seq)
    }
}
