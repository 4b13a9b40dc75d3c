//! Leadership where managers share a database: the candidate with eyes and hands.
//!
//! What it sees: the seat's row, at every look; the other managers, by a thread that says once a second that this one
//! lives; and a link to the leader, by a thread that holds a connection open, so that a leader whose process has gone is
//! noticed at once. What it does is told by [`Candidate`].

use core::time::Duration;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use onward_core::candidate::{Advice, Candidate, CandidateRule, CandidateStanding, HolderId, WaitReason};
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_postgres::{Database, Member, Seat};

use super::leader_link::LeaderLink;
use crate::clock;
use crate::cluster::leader::LeaderAddress;
use crate::cluster::{HandoverError, Heir, Heirs, Leadership, SeatLook};

/// Between two signs of life to the other managers.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// A manager that was not heard of for so long counts no more.
const GONE_AFTER: Duration = Duration::from_secs(4);
/// How far a manager may be behind to be handed the seat.
const MAX_BEHIND: u64 = 100_000;
/// How often the thread that says that we live looks whether it is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who shares the log, as it was last seen, and what the others are told of us.
#[derive(Debug)]
pub(super) struct Membership {
    database: Database,
    log: String,
    applied: AtomicU64,
    /// How far the database's clock is ahead of ours.
    clock_ahead_ms: AtomicI64,
    is_leaving: Arc<AtomicBool>,
    is_over: AtomicBool,
    others: Mutex<Others>,
    rule: CandidateRule,
}

#[derive(Debug, Default)]
struct Others {
    members: Vec<Member>,
    seen_at: Option<Instant>,
}

impl Membership {
    pub(super) fn new(database: Database, log: &str, rule: CandidateRule, is_leaving: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self {
            database,
            log: log.to_owned(),
            applied: AtomicU64::new(0),
            clock_ahead_ms: AtomicI64::new(0),
            is_leaving,
            is_over: AtomicBool::new(false),
            others: Mutex::default(),
            rule,
        })
    }

    /// Says that we live, and looks who else does. False if our name belongs to another.
    pub(super) fn say(&self) -> Result<bool, onward_log::Error> {
        let applied = Seq(self.applied.load(Ordering::Relaxed));
        let is_ours = self.database.put_member(&self.log, applied, self.may_lead())?;
        let members = self.database.members(&self.log)?;
        *self.others() = Others { members, seen_at: Some(Instant::now()) };
        Ok(is_ours)
    }

    /// Says so once a second, on a thread of its own, until it is over.
    pub(super) fn say_on(self: &Arc<Self>) -> std::io::Result<()> {
        let ours = self.clone();
        let say = move || {
            let mut next = Instant::now() + SAY_EVERY;
            while !ours.is_over.load(Ordering::Relaxed) {
                thread::sleep(LOOK_EVERY);
                if Instant::now() < next {
                    continue;
                }
                next = Instant::now() + SAY_EVERY;
                match ours.say() {
                    Ok(true) => {}
                    Ok(false) => tracing::error!("another manager uses our name; give each a name of its own"),
                    Err(error) => tracing::debug!(%error, "the other managers cannot be told that we live"),
                }
            }
        };
        thread::Builder::new().name("onward-members".into()).spawn(say).map(drop)
    }

    fn may_lead(&self) -> bool {
        !self.is_leaving.load(Ordering::Relaxed) && self.clock_skew() <= self.rule.max_clock_skew
    }

    fn clock_skew(&self) -> Duration {
        Duration::from_millis(self.clock_ahead_ms.load(Ordering::Relaxed).unsigned_abs())
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who live, besides us, by their names.
    fn living(&self) -> Vec<Member> {
        let others = self.others();
        let age = others.seen_at.map_or(Duration::ZERO, |at| at.elapsed());
        let lives = |member: &&Member| {
            member.holder != self.database.holder() && member.silent_for + age < GONE_AFTER + SAY_EVERY
        };
        others.members.iter().filter(lives).cloned().collect()
    }

    /// How many of those who may lead come before us, and whether there are others at all.
    fn rank(&self, leader: Option<HolderId>) -> (u32, bool) {
        let me = self.database.name();
        let living = self.living();
        let mut peers = living.iter().filter(|member| member.is_candidate && Some(member.holder) != leader);
        let before = peers.clone().filter(|member| member.name.as_str() < me).count();
        (u32::try_from(before).unwrap_or(u32::MAX), peers.next().is_some())
    }

    fn heir(&self, to: Option<&str>) -> Result<Heir, HandoverError> {
        // It may be the first that anybody hears of a manager that has just started.
        self.say().map_err(HandoverError::Storage)?;
        let living = self.living();
        let me = self.database.name();
        let applied = self.applied.load(Ordering::Relaxed);
        let why_not = |member: &Member| {
            let behind = applied.saturating_sub(member.applied.0);
            if !member.is_candidate {
                Some("it drains, or its clock is off the database's".to_owned())
            } else if behind > MAX_BEHIND {
                Some(format!("it is {behind} events behind"))
            } else {
                None
            }
        };
        let chosen = match to {
            Some(name) if name == me => return Err(HandoverError::LeadsAlready { name: name.into() }),
            Some(name) => {
                let known = || living.iter().map(|member| member.name.clone()).collect();
                let unknown = || HandoverError::UnknownManager { name: name.into(), known: known() };
                let member = living.iter().find(|member| member.name == name).ok_or_else(unknown)?;
                if let Some(why) = why_not(member) {
                    return Err(HandoverError::NotReady { name: name.into(), why });
                }
                member
            }
            None => {
                let able = living.iter().filter(|member| why_not(member).is_none());
                able.max_by_key(|member| member.applied).ok_or(HandoverError::Alone)?
            }
        };
        let Member { name, address, holder, .. } = chosen.clone();
        Ok(Heir { holder, leader: LeaderAddress { name, address } })
    }

    /// To whom the seat can be handed over.
    pub(super) fn heirs(self: &Arc<Self>) -> Heirs {
        let ours = self.clone();
        Arc::new(move |to| ours.heir(to))
    }
}

/// The candidate of this node.
#[derive(Debug)]
pub(super) struct DatabaseLeadership {
    membership: Arc<Membership>,
    candidate: Candidate,
    link: LeaderLink,
    /// As it was last seen.
    seat: Seat,
    waits_because: Option<WaitReason>,
}

impl DatabaseLeadership {
    /// `earlier` is the life of this node before this one, which has ended.
    pub(super) fn new(membership: Arc<Membership>, earlier: Option<HolderId>) -> std::io::Result<Self> {
        let candidate = Candidate::new(membership.rule, membership.database.holder(), earlier);
        let link = LeaderLink::start()?;
        Ok(Self { membership, candidate, link, seat: Seat::default(), waits_because: None })
    }

    fn follow(&self) -> SeatLook {
        let Seat { sight, name, address, .. } = &self.seat;
        let is_other = sight.holder.is_some_and(|holder| holder != self.membership.database.holder());
        let leader = name.clone().zip(address.clone()).filter(|_| is_other && sight.handover.is_none());
        let leader = leader.map(|(name, address)| LeaderAddress { name, address });
        SeatLook::Follow { term: sight.term, leader }
    }

    fn say_why(&mut self, why: WaitReason) {
        let is_news = self.waits_because.as_ref().map(core::mem::discriminant) != Some(core::mem::discriminant(&why));
        if is_news && matches!(why, WaitReason::ClockOff { .. } | WaitReason::BackingOff) {
            tracing::warn!("this node does not try for the seat: {why}");
        }
        self.waits_because = Some(why);
    }
}

impl Leadership for DatabaseLeadership {
    /// A database that does not answer says nothing of who leads.
    fn look(&mut self, applied: Seq, is_caught_up: bool) -> SeatLook {
        let membership = self.membership.clone();
        if is_caught_up {
            membership.applied.store(applied.0, Ordering::Relaxed);
        }
        match membership.database.seat(&membership.log) {
            Ok(seat) => self.seat = seat,
            Err(error) => {
                tracing::debug!(%error, "the seat cannot be looked at");
                return self.follow();
            }
        }
        membership.clock_ahead_ms.store(self.seat.clock_ahead_ms, Ordering::Relaxed);
        let holder = self.seat.sight.holder.filter(|holder| *holder != membership.database.holder());
        self.link.watch(holder.zip(self.seat.address.clone()));
        let (rank, has_peers) = membership.rank(self.seat.sight.holder);
        let standing = CandidateStanding {
            is_caught_up,
            is_healthy: !membership.is_leaving.load(Ordering::Relaxed),
            clock_skew: membership.clock_skew(),
            rank,
            has_peers,
            is_leader_refusing: holder.is_some_and(|holder| self.link.is_refused(holder)),
        };
        match self.candidate.advise(clock::mono(), &self.seat.sight, &standing) {
            Advice::Try(why) => {
                tracing::info!(reason = why.code(), seen = %self.seat.sight.term, "trying for the seat");
                self.waits_because = None;
                SeatLook::Try
            }
            Advice::Wait(why) => {
                self.say_why(why);
                self.follow()
            }
        }
    }

    fn leads(&mut self, _term: Term) {
        self.link.watch(None);
        self.candidate.leads(clock::mono());
    }

    fn term_ended(&mut self) {
        self.candidate.term_ended(clock::mono());
    }

    fn hand_over(&mut self, term: Term, heir: &Heir) -> Result<(), HandoverError> {
        let Membership { database, log, .. } = &*self.membership;
        match database.hand_over(log, term, heir.holder) {
            Ok(true) => {
                self.candidate.handed_over();
                Ok(())
            }
            Ok(false) => Err(HandoverError::TermOver),
            Err(error) => Err(HandoverError::Storage(error)),
        }
    }
}

impl Drop for DatabaseLeadership {
    /// The others need not wait until we were not heard of for a while.
    fn drop(&mut self) {
        self.membership.is_over.store(true, Ordering::Relaxed);
        let Membership { database, log, .. } = &*self.membership;
        if let Err(error) = database.remove_member(log) {
            tracing::debug!(%error, "the other managers cannot be told that we leave");
        }
    }
}
