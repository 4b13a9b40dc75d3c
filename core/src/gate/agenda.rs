//! What is owed, due, or to be looked at, by job: follows the state, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{JobId, Name};
use crate::time::{Mono, Wall};

use super::orders::{DueOrder, owed};
use super::rule::GateRule;
use super::state::Job;

#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// Jobs about which a datacenter is owed something.
    owed: BTreeMap<Name, BTreeSet<JobId>>,
    /// The number of those that it is owed a submit of.
    submits: BTreeMap<Name, usize>,
    /// The entry of each open job.
    entries: BTreeMap<JobId, Entry>,
    deadlines: BTreeSet<(Wall, JobId)>,
    /// Jobs that wait for a datacenter.
    waiting: BTreeSet<JobId>,
    /// Jobs to be judged again.
    pub(super) to_judge: BTreeSet<JobId>,
    /// The instant at which everything that is owed is sent again.
    pub(super) resend_at: Mono,
}

#[derive(Debug, Default)]
struct Entry {
    owed: Vec<(Name, OwedKind)>,
    fires_at: Option<Wall>,
}

/// The kind of what a datacenter is owed about a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OwedKind {
    Submit,
    Order,
}

impl From<DueOrder> for OwedKind {
    fn from(owed: DueOrder) -> Self {
        match owed {
            DueOrder::Submit => Self::Submit,
            DueOrder::Withdraw | DueOrder::Cancel | DueOrder::GlobalTimeout(_) => Self::Order,
        }
    }
}

impl Agenda {
    pub(super) fn begin(&mut self, now: Mono, rule: &GateRule) {
        *self = Self { resend_at: now + rule.progress_every, ..Self::default() };
    }

    /// `fires_at`: when its overall time is over.
    pub(super) fn update(&mut self, job: &Job, fires_at: Wall) {
        if job.has_ended() {
            return self.remove(job.id);
        }
        let entry = self.entries.entry(job.id).or_default();
        let fires_at = job.decided.is_none().then_some(fires_at);
        if entry.fires_at != fires_at {
            entry.fires_at.map(|at| self.deadlines.remove(&(at, job.id)));
            fires_at.map(|at| self.deadlines.insert((at, job.id)));
            entry.fires_at = fires_at;
        }
        let now_owed: Vec<(Name, OwedKind)> = job
            .targets
            .iter()
            .filter_map(|target| Some((target.datacenter.clone(), owed(job, target)?.into())))
            .collect();
        if entry.owed != now_owed {
            let before = core::mem::replace(&mut entry.owed, now_owed.clone());
            self.settle(job.id, &before);
            for (name, kind) in now_owed {
                if kind == OwedKind::Submit {
                    *self.submits.entry(name.clone()).or_default() += 1;
                }
                self.owed.entry(name).or_default().insert(job.id);
            }
        }
        if job.targets.is_empty() {
            self.waiting.insert(job.id);
        } else {
            self.waiting.remove(&job.id);
        }
        if job.decided.is_some() {
            self.to_judge.remove(&job.id);
        }
    }

    pub(super) fn remove(&mut self, id: JobId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        entry.fires_at.map(|at| self.deadlines.remove(&(at, id)));
        self.settle(id, &entry.owed);
        self.waiting.remove(&id);
        self.to_judge.remove(&id);
    }

    /// Nothing of this is owed any more.
    fn settle(&mut self, id: JobId, owed: &[(Name, OwedKind)]) {
        for (name, kind) in owed {
            self.owed.get_mut(name).map(|jobs| jobs.remove(&id));
            if *kind == OwedKind::Submit
                && let Some(submits) = self.submits.get_mut(name)
            {
                *submits -= 1;
            }
        }
    }

    /// The next job, behind this one, about which the datacenter is owed something.
    pub(super) fn next_owed(&self, datacenter: &Name, after: Option<JobId>) -> Option<JobId> {
        let jobs = self.owed.get(datacenter)?;
        match after {
            Some(after) => jobs.range((core::ops::Bound::Excluded(after), core::ops::Bound::Unbounded)).next().copied(),
            None => jobs.first().copied(),
        }
    }

    pub(super) fn owed_to(&self, datacenter: &Name) -> usize {
        self.owed.get(datacenter).map_or(0, BTreeSet::len)
    }

    /// The number of submits that the datacenter is owed.
    pub(super) fn submits_to(&self, datacenter: &Name) -> usize {
        self.submits.get(datacenter).copied().unwrap_or_default()
    }

    pub(super) fn first_deadline(&self) -> Option<(Wall, JobId)> {
        self.deadlines.first().copied()
    }

    pub(super) fn first_waiting(&self) -> Option<JobId> {
        self.waiting.first().copied()
    }
}
