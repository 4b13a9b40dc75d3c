//! The workers that we know, as they are heard of. A million idle ones must fit: what only busy ones need is boxed.

use core::hash::BuildHasher;
use core::ops::Bound;
use core::time::Duration;
use std::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::beat::Motion;
use crate::dispatch::GroupKey;
use crate::health::progress::UnmovingAttempt;
use crate::health::{
    HttpLiveness, Judgement, LivenessRule, NotLive, NotReady, ProgressRule, ProgressSignal, SessionLiveness, Signals,
    Tally, Verdict, VerdictReason,
};
use crate::ids::{Claim, Incarnation, SessionId, WorkerId};
use crate::key::Key;
use crate::list::List;
use crate::pages::Pages;
use crate::state::{Attempt, AttemptKey};
use crate::time::{Awake, Wall};
use crate::wheel::TimerKey;

use super::super::polls::PollKey;
use super::super::timers::AwakeTimer;
use super::hold::HoldStanding;
use super::live::{LiveAttempt, LiveAttempts};

pub(crate) type WorkerKey = Key<FleetWorker>;

#[derive(Debug)]
pub(crate) struct FleetWorker {
    pub id: WorkerId,
    pub incarnation: Incarnation,
    pub link: WorkerTransport,
    /// The group of its subscription; a worker that was not heard of yet has none.
    pub group: Option<GroupKey>,
    /// Slots of a session. A poll brings its own.
    pub slots: u32,
    pub(super) held: u32,
    pub timer: Option<TimerKey<AwakeTimer>>,
    pub armed: Awake,
    pub judged: Judgement,
    /// Since when it has this verdict.
    pub since: Awake,
    pub accepting: bool,
    pub drained: bool,
    pub evicted: bool,
    /// Set if the worker was away at the last judgement.
    pub(super) away: bool,
    pub probation: bool,
    /// Set if the worker was stuck, and has not been on probation for it yet.
    pub was_stuck: bool,
    /// The worker's standing in the count of the hold.
    pub(super) counted: HoldStanding,
    /// Set while the worker is on the list of those to judge.
    pub(super) touched: bool,
    pub(super) work: Option<Box<HeldWork>>,
    pub eviction: Option<Box<EvictionInfo>>,
}

/// The way in which the worker speaks to us.
#[derive(Debug)]
pub(crate) enum WorkerTransport {
    Session {
        session: SessionId,
        liveness: SessionLiveness,
    },
    Http {
        liveness: HttpLiveness,
        poll: Option<PollKey>,
    },
    /// The log says that it holds something; it has not been heard of since we took the seat.
    Expected,
}

/// State of a worker that holds or held attempts.
#[derive(Debug)]
pub(crate) struct HeldWork {
    /// The newest first.
    pub attempts: List<Attempt>,
    pub moving: u32,
    pub unmoving: UnmovingAttempts,
    pub last_step: Option<Awake>,
    pub tally: Tally,
    /// Since when it holds nothing.
    pub empty_since: Option<Awake>,
    /// Since when it has been stuck, whatever came between: a reconnect is no forward step.
    pub stuck_since: Option<Awake>,
}

impl HeldWork {
    /// An attempt counts from now on, as its motion says.
    pub fn count_motion(&mut self, key: AttemptKey, live: &mut LiveAttempt) {
        match live.motion {
            Motion::Moving => self.moving += 1,
            Motion::Unmoving => {
                let unmoving = live.unmoving();
                self.unmoving.insert(key, unmoving);
                live.counted_stuck_at = Some(unmoving.stuck_at);
            }
            Motion::Young | Motion::Stopping => {}
        }
    }

    /// An attempt that counted so does no longer.
    pub fn uncount_motion(&mut self, key: AttemptKey, live: &mut LiveAttempt) {
        match live.motion {
            Motion::Moving => self.moving -= 1,
            Motion::Unmoving => {
                let stuck_at = live.counted_stuck_at.take().expect("it was counted");
                self.unmoving.remove(key, UnmovingAttempt { stuck_at, stuck_after: live.stuck_after });
            }
            Motion::Young | Motion::Stopping => {}
        }
    }
}

/// The attempts of a worker that do not move, in the order in which they can make it stuck: when thousands of one worker
/// end one after the other, none of them looks at all the others.
#[derive(Debug, Default)]
pub(crate) struct UnmovingAttempts(BTreeSet<(Duration, Awake, AttemptKey)>);

impl UnmovingAttempts {
    fn insert(&mut self, key: AttemptKey, unmoving: UnmovingAttempt) {
        self.0.insert((unmoving.stuck_after, unmoving.stuck_at, key));
    }

    fn remove(&mut self, key: AttemptKey, unmoving: UnmovingAttempt) {
        let found = self.0.remove(&(unmoving.stuck_after, unmoving.stuck_at, key));
        debug_assert!(found, "what is counted was counted under the same instant");
    }

    pub fn len(&self) -> u32 {
        self.0.len() as u32
    }

    /// The first attempt of each patience that jobs gave them to run out of it after `now`.
    pub fn first_of_each_patience(&self, now: Awake) -> impl Iterator<Item = UnmovingAttempt> + '_ {
        let mut next = self.0.first().map(|(patience, ..)| *patience);
        core::iter::from_fn(move || {
            loop {
                let patience = next?;
                next = self.after(patience, Awake::MAX).map(|(patience, _)| patience);
                if let Some((stuck_after, stuck_at)) = self.after(patience, now)
                    && stuck_after == patience
                {
                    return Some(UnmovingAttempt { stuck_at, stuck_after });
                }
            }
        })
    }

    fn after(&self, patience: Duration, at: Awake) -> Option<(Duration, Awake)> {
        let later = (Bound::Excluded((patience, at, AttemptKey::LAST)), Bound::Unbounded);
        self.0.range(later).next().map(|(patience, at, _)| (*patience, *at))
    }
}

/// State of a worker that is or was evicted, which few are.
#[derive(Debug, Default)]
pub(crate) struct EvictionInfo {
    /// Attempts taken from it by eviction that it has not confirmed as ended.
    pub unconfirmed: Vec<UnconfirmedAttempt>,
    /// While evicted: not before this.
    pub readmit_at: Wall,
    /// The instant by which all attempts have ended that another leader's eviction took from the worker.
    pub taken_until: Awake,
}

/// An attempt that was taken from its worker and may still run there.
#[derive(Debug)]
pub(crate) struct UnconfirmedAttempt {
    pub claim: Claim,
    /// The end of its lease: whoever runs it knows by then that it may not.
    pub until: Awake,
}

impl FleetWorker {
    pub fn new(id: WorkerId, incarnation: Incarnation, link: WorkerTransport, now: Awake) -> Self {
        Self {
            id,
            incarnation,
            link,
            group: None,
            slots: 0,
            held: 0,
            timer: None,
            armed: Awake::MAX,
            judged: Judgement {
                signals: Signals { live: true, ready: false, progress: ProgressSignal::Idle },
                verdict: Verdict::Busy,
                reason: VerdictReason::NotReady(NotReady::NoFreeSlot),
            },
            since: now,
            accepting: true,
            drained: false,
            evicted: false,
            away: false,
            probation: false,
            was_stuck: false,
            counted: HoldStanding::No,
            touched: false,
            work: None,
            eviction: None,
        }
    }

    pub fn session(&self) -> Option<SessionId> {
        match &self.link {
            WorkerTransport::Session { session, liveness } if !liveness.is_closed() => Some(*session),
            _ => None,
        }
    }

    /// Since when it has had a verdict that ends in eviction. Being stuck goes on while it is not live.
    pub fn failing_since(&self) -> Awake {
        let stuck_since = self.work.as_ref().and_then(|work| work.stuck_since);
        stuck_since.filter(|_| self.judged.verdict == Verdict::Stuck).unwrap_or(self.since)
    }

    pub fn is_session(&self) -> bool {
        matches!(self.link, WorkerTransport::Session { .. })
    }

    /// The number of attempts that the worker holds.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Whether the worker was away at the last judgement.
    pub fn is_away(&self) -> bool {
        self.away
    }

    /// The live signal. A worker that cannot be asked is never silent: its leases speak for it, or it is away.
    pub fn live_signal(&self, rule: &LivenessRule, now: Awake) -> Result<(), NotLive> {
        match &self.link {
            WorkerTransport::Session { liveness, .. } => liveness.judge(rule, now),
            // The worker has as long as its leases to be heard of; until then it is not judged.
            WorkerTransport::Http { .. } | WorkerTransport::Expected => Ok(()),
        }
    }

    /// Neither works nor asks for work, and has not said so for a while, or said goodbye; or it was not heard of since a
    /// takeover, and its leases are over.
    pub fn is_absent(&self, rule: &LivenessRule, now: Awake) -> bool {
        match &self.link {
            WorkerTransport::Http { liveness, poll: None } if self.held == 0 => liveness.is_away(rule, now),
            WorkerTransport::Expected => self.held == 0,
            _ => false,
        }
    }

    /// Has a new judgement, and gives the one before.
    pub fn set_judgement(&mut self, judged: Judgement, now: Awake) -> Judgement {
        let before = core::mem::replace(&mut self.judged, judged);
        if before.verdict != judged.verdict {
            self.since = now;
        }
        if let Some(work) = &mut self.work {
            let is_stuck = judged.signals.progress == ProgressSignal::Stuck;
            work.stuck_since = if is_stuck { work.stuck_since.or(Some(now)) } else { None };
        }
        before
    }

    /// Since when it holds nothing, or since when it has its verdict if it never held anything.
    pub fn empty_since(&self) -> Awake {
        self.work.as_ref().and_then(|work| work.empty_since).unwrap_or(self.since)
    }

    /// Attempts of the worker, the newest first.
    pub(super) fn attempts<'a>(&self, live: &'a LiveAttempts) -> impl Iterator<Item = AttemptKey> + use<'a> {
        self.work.as_ref().map_or(List::EMPTY, |work| work.attempts).iter(live)
    }

    pub(super) fn work(&mut self, rule: &ProgressRule) -> &mut HeldWork {
        self.work.get_or_insert_with(|| {
            Box::new(HeldWork {
                attempts: List::EMPTY,
                moving: 0,
                unmoving: UnmovingAttempts::default(),
                last_step: None,
                tally: Tally::new(rule),
                empty_since: None,
                stuck_since: None,
            })
        })
    }

    pub fn eviction_info(&mut self) -> &mut EvictionInfo {
        self.eviction.get_or_insert_with(Box::default)
    }
}

#[derive(Debug)]
pub(crate) struct Workers {
    hasher: FixedState,
    pages: Pages<FleetWorker>,
    ids: HashTable<WorkerKey>,
    sessions: HashTable<WorkerKey>,
}

impl Workers {
    pub fn new(seed: u64) -> Self {
        Self {
            hasher: FixedState::with_seed(seed),
            pages: Pages::new(),
            ids: HashTable::new(),
            sessions: HashTable::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    pub fn get(&self, key: WorkerKey) -> Option<&FleetWorker> {
        self.pages.get(key)
    }

    pub fn get_mut(&mut self, key: WorkerKey) -> Option<&mut FleetWorker> {
        self.pages.get_mut(key)
    }

    #[inline]
    pub fn at(&self, key: WorkerKey) -> &FleetWorker {
        &self.pages[key]
    }

    #[inline]
    pub fn at_mut(&mut self, key: WorkerKey) -> &mut FleetWorker {
        &mut self.pages[key]
    }

    pub fn iter(&self) -> impl Iterator<Item = (WorkerKey, &FleetWorker)> {
        self.pages.iter()
    }

    pub fn find(&self, id: &WorkerId) -> Option<WorkerKey> {
        self.ids.find(self.hasher.hash_one(id), |key| self.pages[*key].id == *id).copied()
    }

    pub fn find_session(&self, session: SessionId) -> Option<WorkerKey> {
        let hash = self.hasher.hash_one(session);
        self.sessions.find(hash, |key| self.pages[*key].session() == Some(session)).copied()
    }

    pub fn insert(&mut self, worker: FleetWorker) -> WorkerKey {
        let hash = self.hasher.hash_one(&worker.id);
        let key = self.pages.insert(worker);
        let (pages, hasher) = (&self.pages, &self.hasher);
        self.ids.insert_unique(hash, key, |key| hasher.hash_one(&pages[*key].id));
        if let Some(session) = self.pages[key].session() {
            self.index_session(session, key);
        }
        key
    }

    /// The worker speaks another way from now on. Its old session, if any, no longer finds it.
    pub fn relink(&mut self, key: WorkerKey, link: WorkerTransport) {
        self.unindex_session(key);
        self.pages[key].link = link;
        if let Some(session) = self.pages[key].session() {
            self.index_session(session, key);
        }
    }

    /// The session is closed; the worker stays.
    pub fn close_session(&mut self, key: WorkerKey) {
        self.unindex_session(key);
        if let WorkerTransport::Session { liveness, .. } = &mut self.pages[key].link {
            liveness.close();
        }
    }

    pub fn remove(&mut self, key: WorkerKey) -> FleetWorker {
        self.unindex_session(key);
        let hash = self.hasher.hash_one(&self.pages[key].id);
        let entry = self.ids.find_entry(hash, |known| *known == key);
        entry.expect("every worker is in the index").remove();
        self.pages.remove(key)
    }

    fn index_session(&mut self, session: SessionId, key: WorkerKey) {
        let (pages, hasher) = (&self.pages, &self.hasher);
        let hash = hasher.hash_one(session);
        self.sessions.insert_unique(hash, key, |key| {
            let session = pages[*key].session().expect("an indexed session is open");
            hasher.hash_one(session)
        });
    }

    fn unindex_session(&mut self, key: WorkerKey) {
        if let Some(session) = self.pages[key].session() {
            let entry = self.sessions.find_entry(self.hasher.hash_one(session), |known| *known == key);
            entry.expect("an open session is in the index").remove();
        }
    }
}
