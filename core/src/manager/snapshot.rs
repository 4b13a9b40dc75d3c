//! Snapshots: the whole state at one event, taken a few records at a time while the machine goes on.
//!
//! [`Manager::begin_snapshot`] notes the newest event, S. From then on [`Manager::snapshot_next`] walks over the jobs,
//! and whatever is about to change or remove a job that the walk has not reached takes its image first, as it was at S
//! (copy before write). Jobs that came after S are left out. So all records together say what the state was at S, and
//! nothing ever stops or is held twice; an image taken early is handed out by the next call.
//!
//! [`Manager::restore`] puts the records into a new machine, [`Manager::finish_restore`] says that these were all, and
//! then come the events after S. Keys into the pages differ from those of the machine that was copied. What must not
//! depend on them is written down instead: whose turn it is among equals, and the order in which keys expire.

use core::ops::Range;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::event::{Event, StampedEvent};
use crate::fence::Term;
use crate::ids::{JobId, Name, Seq, WorkerId};
use crate::job::{JobSpec, WorkflowState};
use crate::state::{JobImage, JobKey, KeyRecord, Schedule, WorkerRecord, WorkflowKey};
use crate::time::Wall;

use super::Manager;

/// The number of keys without a job that are passed over per record that is asked for.
const PASSED_PER_RECORD: usize = 64;

#[derive(Clone, PartialEq, Debug)]
pub enum SnapshotRecord {
    /// The first of all.
    Head(Box<SnapshotHead>),
    Job(Box<JobRecord>),
    Key(KeyExpiry),
    Schedule(Box<ScheduleRecord>),
}

/// The small parts of the state, and the number of records that follow.
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotHead {
    pub term: Term,
    pub newest: Wall,
    pub seq: Seq,
    /// The newest turn that was given to a workflow.
    pub turn: u64,
    pub jobs: u64,
    pub keys: u64,
    pub workers: Vec<(WorkerId, WorkerRecord)>,
    pub paused: Vec<Name>,
    pub schedules: u64,
}

/// A schedule. They come in the order of their names, but for those that were taken before they changed.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleRecord {
    pub name: Name,
    pub schedule: Schedule,
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobRecord {
    pub image: JobImage,
    /// The turn of each workflow; lower was ready earlier.
    pub turns: Vec<u64>,
}

/// An idempotency key of a job that has ended. They come in the order in which they expire.
#[derive(Clone, PartialEq, Debug)]
pub struct KeyExpiry {
    pub expires_at: Wall,
    pub key: Name,
    pub record: KeyRecord,
}

/// Some records of a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct SnapshotPart {
    pub records: Vec<SnapshotRecord>,
    /// Set if there are no more records.
    pub done: bool,
}

/// The error for records that are not a whole snapshot. The machine is of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the snapshot is not whole: {found} of {expected} records")]
pub struct SnapshotCut {
    pub found: u64,
    pub expected: u64,
}

/// A snapshot under way.
#[derive(Debug)]
pub(crate) struct OpenSnapshot {
    head: Option<Box<SnapshotHead>>,
    /// Taken before they changed, in that order.
    early: VecDeque<SnapshotRecord>,
    /// The place of the walk, and its end. Keys from there on are of jobs that came later.
    jobs: Range<u32>,
    /// A bit per key below the end: what lies there is not to be taken, because it was, or because it came later.
    passed: Vec<u64>,
    /// Keys that expire, by number.
    keys: Range<u64>,
    /// The last schedule that the walk has passed, if it has not come to their end.
    schedules: Option<Option<Name>>,
    /// Schedules that are not to be taken, because they were, or because they came later.
    passed_schedules: BTreeSet<Name>,
}

impl OpenSnapshot {
    fn wants(&self, key: JobKey) -> bool {
        let index = key.index();
        self.jobs.contains(&(index as u32)) && self.passed[index / 64] & (1 << (index % 64)) == 0
    }

    pub(super) fn pass(&mut self, key: JobKey) {
        let index = key.index();
        if index < self.jobs.end as usize {
            self.passed[index / 64] |= 1 << (index % 64);
        }
    }
}

/// The records that a machine has been given to restore so far.
#[derive(Debug, Default)]
pub(super) struct RestoreProgress {
    expected: u64,
    found: u64,
    /// Workflows that wait for a worker. They are put on their shelves in order, which is cheapest.
    ready: Vec<(u64, WorkflowKey)>,
}

impl Manager {
    /// Begins a snapshot of the state as it is now; one that is under way is given up. It may be used once the event
    /// that is returned is durable.
    pub fn begin_snapshot(&mut self) -> Seq {
        let state = &self.state;
        let keys = state.expiring_span();
        let head = SnapshotHead {
            term: state.term(),
            newest: state.newest(),
            seq: state.seq(),
            turn: self.dispatch.newest_turn(),
            jobs: state.job_count() as u64,
            keys: keys.end - keys.start,
            workers: state.workers().map(|(id, record)| (id.clone(), record.clone())).collect(),
            paused: state.paused().iter().cloned().collect(),
            schedules: state.schedules().len() as u64,
        };
        let end = state.job_keys_end().index();
        self.snapshot = Some(Box::new(OpenSnapshot {
            head: Some(Box::new(head)),
            early: VecDeque::new(),
            jobs: JobKey::FIRST.index() as u32..end as u32,
            passed: vec![0; end.div_ceil(64)],
            keys,
            schedules: Some(None),
            passed_schedules: BTreeSet::new(),
        }));
        self.state.seq()
    }

    /// Gives up the snapshot that is under way, if there is one.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// The next records, at most so many; there may be none and yet more to come. To be stored in this order.
    pub fn snapshot_next(&mut self, max_records: usize) -> SnapshotPart {
        let mut records = Vec::new();
        let Some(mut snapshot) = self.snapshot.take() else { return SnapshotPart { records, done: true } };
        if max_records > 0 {
            records.extend(snapshot.head.take().map(SnapshotRecord::Head));
        }
        let early = snapshot.early.len().min(max_records.saturating_sub(records.len()));
        records.extend(snapshot.early.drain(..early));
        let mut looks = max_records.saturating_mul(PASSED_PER_RECORD);
        while records.len() < max_records && looks > 0 && !snapshot.jobs.is_empty() {
            looks -= 1;
            if let Some(key) = JobKey::at(snapshot.jobs.start)
                && snapshot.wants(key)
                && self.state.has_job(key)
            {
                records.push(self.job_record(key));
            }
            snapshot.jobs.start += 1;
        }
        while records.len() < max_records && snapshot.jobs.is_empty() && !snapshot.keys.is_empty() {
            records.push(self.key_record(snapshot.keys.start));
            snapshot.keys.start += 1;
        }
        while records.len() < max_records
            && looks > 0
            && snapshot.jobs.is_empty()
            && snapshot.keys.is_empty()
            && let Some(passed) = &snapshot.schedules
        {
            looks -= 1;
            let next = self.state.schedule_after(passed.as_ref());
            if let Some((name, schedule)) = next.filter(|(name, _)| !snapshot.passed_schedules.contains(*name)) {
                records.push(schedule_record(name, schedule));
            }
            snapshot.schedules = next.map(|(name, _)| Some(name.clone()));
        }
        let left = snapshot.head.is_some() || !snapshot.early.is_empty();
        let walked = snapshot.jobs.is_empty() && snapshot.keys.is_empty() && snapshot.schedules.is_none();
        let done = !left && walked;
        if !done {
            self.snapshot = Some(snapshot);
        }
        SnapshotPart { records, done }
    }

    /// Takes what an event is about to change before it is applied, if the snapshot under way does not have it yet.
    #[cold]
    pub(super) fn copy_before(&mut self, event: &Event) {
        let Some(mut snapshot) = self.snapshot.take() else { return };
        let mut take = |id: JobId| {
            if let Some(key) = self.state.find(id)
                && snapshot.wants(key)
            {
                snapshot.early.push_back(self.job_record(key));
                snapshot.pass(key);
            }
        };
        let mut schedules: Vec<Name> = event.schedule().into_iter().cloned().collect();
        event.for_each_job(&mut |id| {
            take(id);
            schedules.extend(self.state.schedule_of(id).cloned());
        });
        if let Event::KeysExpired { keys } = event {
            // The image of a job says whether its key is remembered.
            keys.iter().filter_map(|key| self.state.idempotency(key)).for_each(|known| take(known.job));
            let gone = self.state.expiring_span().start + keys.len() as u64;
            while snapshot.keys.start < gone && !snapshot.keys.is_empty() {
                snapshot.early.push_back(self.key_record(snapshot.keys.start));
                snapshot.keys.start += 1;
            }
        }
        for name in schedules {
            self.copy_schedule_before(&mut snapshot, name);
        }
        self.snapshot = Some(snapshot);
    }

    /// A schedule that is not there came later than the snapshot began.
    fn copy_schedule_before(&self, snapshot: &mut OpenSnapshot, name: Name) {
        let is_behind_walk = match &snapshot.schedules {
            None => true,
            Some(passed) => passed.as_ref().is_some_and(|passed| name <= *passed),
        };
        if is_behind_walk || snapshot.passed_schedules.contains(&name) {
            return;
        }
        if let Some(schedule) = self.state.schedule(&name) {
            snapshot.early.push_back(schedule_record(&name, schedule));
        }
        snapshot.passed_schedules.insert(name);
    }

    fn job_record(&self, key: JobKey) -> SnapshotRecord {
        let image = self.state.image(key);
        let workflows = self.state.job(key).workflows.as_slice();
        let turns = workflows.iter().map(|workflow| self.dispatch.turn(*workflow)).collect();
        SnapshotRecord::Job(Box::new(JobRecord { image, turns }))
    }

    fn key_record(&self, number: u64) -> SnapshotRecord {
        let (expires_at, key, record) = self.state.expiring_at(number);
        SnapshotRecord::Key(KeyExpiry { expires_at, key: key.clone(), record })
    }

    /// Puts one record of a snapshot into this machine, which is new. All of them, in the order in which they were
    /// taken, then [`Self::finish_restore`], then the events that came after.
    pub fn restore(&mut self, record: SnapshotRecord) {
        debug_assert!(self.replaying, "a machine that has taken its seat is not restored");
        match record {
            SnapshotRecord::Head(head) => self.restore_head(*head),
            SnapshotRecord::Job(record) => self.restore_job(*record),
            SnapshotRecord::Key(KeyExpiry { expires_at, key, record }) => {
                self.state.restore_key(expires_at, key, record);
            }
            SnapshotRecord::Schedule(record) => {
                let ScheduleRecord { name, mut schedule } = *record;
                self.dispatch.share(&mut Arc::make_mut(&mut schedule.plan).job);
                self.state.restore_schedule(name, schedule);
            }
        }
        let restoring = self.restoring.as_mut().expect("a snapshot begins with its head");
        restoring.found += 1;
    }

    /// All records were restored. Says up to which event: the next one to apply comes after it.
    pub fn finish_restore(&mut self) -> Result<Seq, SnapshotCut> {
        let RestoreProgress { expected, found, mut ready } = *self.restoring.take().unwrap_or_default();
        if found != expected || found == 0 {
            return Err(SnapshotCut { found, expected });
        }
        ready.sort_unstable();
        for (_, workflow) in ready {
            self.dispatch.ready(workflow, true);
        }
        Ok(self.state.seq())
    }

    fn restore_head(&mut self, head: SnapshotHead) {
        let expected = 1 + head.jobs + head.keys + head.schedules;
        self.restoring = Some(Box::new(RestoreProgress { expected, ..RestoreProgress::default() }));
        self.state.restore_head(head.term, head.newest, head.seq);
        self.durability.set_replayed(head.seq);
        self.dispatch.set_newest_turn(head.turn);
        head.workers.into_iter().for_each(|(id, record)| self.state.restore_worker(id, record));
        head.paused.into_iter().for_each(|queue| self.state.restore_paused(queue));
    }

    fn restore_job(&mut self, record: JobRecord) {
        let JobRecord { mut image, turns } = record;
        self.dispatch.share(&mut image.spec);
        self.share_with_original(&mut image.spec, image.more.as_ref().and_then(|more| more.retry_of));
        self.sharing.get_or_insert_default().image(&mut image);
        let key = self.state.restore_job(image);
        let job = self.state.job(key);
        self.counts.queue(&job.spec.queue).moved(None, self.state.job_state(key));
        let restoring = self.restoring.as_mut().expect("a snapshot begins with its head");
        for (index, workflow) in self.state.workflows_of(job) {
            if workflow.state.is_terminal() {
                continue;
            }
            let (at, state) = (usize::from(workflow.index), &self.state);
            let kind = &job.spec.workflows[at].kind;
            self.dispatch.admit(index, &job.spec, kind, || state.is_paused(&job.spec.queue));
            self.dispatch.set_turn(index, turns[at]);
            match workflow.state {
                state if state.is_held() => self.dispatch.held(index),
                _ if workflow.handouts > 0 => self.dispatch.begin_order(index),
                _ => {}
            }
            if workflow.state == WorkflowState::Ready {
                restoring.ready.push((turns[at], index));
            }
        }
    }

    /// The same event, sharing with the jobs that are here what the log wrote out each time. Live jobs share by
    /// themselves.
    pub(super) fn shared(&mut self, stamped: &StampedEvent) -> Option<StampedEvent> {
        let sharing = self.sharing.get_or_insert_default();
        let event = match &stamped.event {
            Event::JobSubmitted(submitted) => {
                let mut submitted = submitted.clone();
                let spec = Arc::make_mut(&mut submitted.spec);
                self.dispatch.share(spec);
                self.share_with_original(spec, submitted.retry_of.as_ref().map(|retry| retry.job));
                Event::JobSubmitted(submitted)
            }
            Event::HandedOut(handed) => {
                let mut handed = handed.clone();
                sharing.workers.intern(&mut handed.worker);
                sharing.incarnations.intern(&mut handed.incarnation);
                Event::HandedOut(handed)
            }
            _ => return None,
        };
        Some(StampedEvent { at: stamped.at, event })
    }

    /// A job that repeats another carries what that one carries.
    fn share_with_original(&self, spec: &mut JobSpec, original: Option<JobId>) {
        let Some(key) = original.and_then(|id| self.state.find(id)) else { return };
        for (own, of_original) in spec.workflows.iter_mut().zip(self.state.job(key).spec.workflows.iter()) {
            if own.payload == of_original.payload {
                own.payload = of_original.payload.clone();
            }
        }
    }
}

fn schedule_record(name: &Name, schedule: &Schedule) -> SnapshotRecord {
    SnapshotRecord::Schedule(Box::new(ScheduleRecord { name: name.clone(), schedule: schedule.clone() }))
}
