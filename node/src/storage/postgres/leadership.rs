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

use onward_core::candidate::{Advice, Candidate, CandidateRule, CandidateStanding, HolderId, SeatSight, WaitReason};
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_postgres::{Database, MemberRow, SeatView};

use super::leader_link::LeaderLink;
use crate::clock;
use crate::cluster::leader::LeaderAddress;
use crate::cluster::{HandoverError, Heir, Heirs, Leadership, OwnStanding, SeatLook};

/// The interval between two signs of life to the other managers.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// A manager that was not heard of for so long counts no more.
const GONE_AFTER: Duration = Duration::from_secs(4);
/// The number of events that a manager may be behind to be handed the seat.
const MAX_BEHIND: u64 = 100_000;
/// The interval between two looks whether commits wait for a standby.
const LOOK_AT_STANDBYS_EVERY: Duration = Duration::from_secs(10);
/// The value while a clock was not compared with the database's yet: nobody hands the seat to such a manager.
const CLOCK_UNKNOWN: i64 = i64::MAX;
/// The interval at which the thread that says that we live looks whether it is over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The managers that share the log, as they were last seen, and what the others are told of us.
#[derive(Debug)]
pub(super) struct Membership {
    database: Database,
    log: String,
    applied: AtomicU64,
    /// The milliseconds by which the database's clock is ahead of ours; [`CLOCK_UNKNOWN`] before the first look at it.
    clock_ahead_ms: AtomicI64,
    is_leaving: Arc<AtomicBool>,
    /// As of the last look at the seat.
    may_stand: AtomicBool,
    reaches_leader: Arc<AtomicBool>,
    is_over: AtomicBool,
    others: Mutex<Others>,
    rule: CandidateRule,
}

#[derive(Debug, Default)]
struct Others {
    members: Vec<MemberRow>,
    seen_at: Option<Instant>,
}

impl Membership {
    pub(super) fn new(
        database: Database,
        log: &str,
        rule: CandidateRule,
        is_leaving: Arc<AtomicBool>,
        reaches_leader: Arc<AtomicBool>,
    ) -> Arc<Self> {
        Arc::new(Self {
            database,
            log: log.to_owned(),
            applied: AtomicU64::new(0),
            clock_ahead_ms: AtomicI64::new(CLOCK_UNKNOWN),
            is_leaving,
            may_stand: AtomicBool::new(false),
            reaches_leader,
            is_over: AtomicBool::new(false),
            others: Mutex::default(),
            rule,
        })
    }

    /// Says that we live, and looks who else does. False if our name belongs to another.
    pub(super) fn publish_member(&self) -> Result<bool, onward_log::Error> {
        let applied = Seq(self.applied.load(Ordering::Relaxed));
        let reaches_leader = self.reaches_leader.load(Ordering::Relaxed);
        let is_ours = self.database.put_member(&self.log, applied, self.may_lead(), reaches_leader)?;
        let members = self.database.members(&self.log)?;
        *self.others() = Others { members, seen_at: Some(Instant::now()) };
        Ok(is_ours)
    }

    /// Says so once a second, on a thread of its own, until it is over.
    pub(super) fn say_on(self: &Arc<Self>) -> std::io::Result<()> {
        let ours = self.clone();
        let say = move || {
            let (mut next, mut standbys) = (Instant::now() + SAY_EVERY, Standbys::default());
            while !ours.is_over.load(Ordering::Relaxed) {
                thread::sleep(LOOK_EVERY);
                if Instant::now() < next {
                    continue;
                }
                next = Instant::now() + SAY_EVERY;
                match ours.publish_member() {
                    Ok(true) => {}
                    Ok(false) => tracing::error!("another manager uses our name; give each a name of its own"),
                    Err(error) => tracing::debug!(%error, "the other managers cannot be told that we live"),
                }
                standbys.look(&ours.database);
            }
        };
        thread::Builder::new().name("onward-members".into()).spawn(say).map(drop)
    }

    fn may_lead(&self) -> bool {
        !self.is_leaving.load(Ordering::Relaxed)
            && self.may_stand.load(Ordering::Relaxed)
            && self.clock_skew() <= self.rule.max_clock_skew
    }

    fn clock_skew(&self) -> Duration {
        Duration::from_millis(self.clock_ahead_ms.load(Ordering::Relaxed).unsigned_abs())
    }

    fn others(&self) -> MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Managers that live, besides us, by their names.
    fn living(&self) -> Vec<MemberRow> {
        let others = self.others();
        let age = others.seen_at.map_or(Duration::ZERO, |at| at.elapsed());
        let lives = |member: &&MemberRow| {
            member.holder != self.database.holder() && member.silent_for + age < GONE_AFTER + SAY_EVERY
        };
        others.members.iter().filter(lives).cloned().collect()
    }

    /// The number of candidates before us, and whether there are others at all.
    fn rank(&self, leader: Option<HolderId>) -> (u32, bool) {
        let me = self.database.name();
        let living = self.living();
        let mut peers = living.iter().filter(|member| member.is_candidate && Some(member.holder) != leader);
        let before = peers.clone().filter(|member| member.name.as_str() < me).count();
        (u32::try_from(before).unwrap_or(u32::MAX), peers.next().is_some())
    }

    /// Whether neither we nor any other manager gets an answer from this leader. One other must say so too.
    fn is_unreached(&self, leader: HolderId) -> bool {
        let living = self.living();
        let mut others = living.iter().filter(|member| member.holder != leader).peekable();
        !self.reaches_leader.load(Ordering::Relaxed)
            && others.peek().is_some()
            && others.all(|member| !member.reaches_leader)
    }

    fn heir(&self, to: Option<&str>) -> Result<Heir, HandoverError> {
        // It may be the first that anybody hears of a manager that has just started.
        self.publish_member().map_err(HandoverError::Storage)?;
        let living = self.living();
        let me = self.database.name();
        let applied = self.applied.load(Ordering::Relaxed);
        let why_not = |member: &MemberRow| {
            let behind = applied.saturating_sub(member.applied.0);
            if !member.is_candidate {
                Some("it drains, its clock is off the database's, or it is a gate in poor health".to_owned())
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
        let MemberRow { name, address, holder, .. } = chosen.clone();
        Ok(Heir { holder, leader: LeaderAddress { name, address } })
    }

    /// The function that finds a manager to hand the seat over to.
    pub(super) fn heirs(self: &Arc<Self>) -> Heirs {
        let ours = self.clone();
        Arc::new(move |to| ours.heir(to))
    }
}

/// Whether commits wait for a standby, as it was last seen. Tools that manage standbys change it while nodes run.
#[derive(Debug, Default)]
struct Standbys {
    names: Option<String>,
    looked_at: Option<Instant>,
}

impl Standbys {
    /// Says so when it has changed.
    fn look(&mut self, database: &Database) {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_AT_STANDBYS_EVERY) {
            return;
        }
        self.looked_at = Some(Instant::now());
        let Ok(names) = database.synchronous_standbys() else { return };
        if self.names.as_ref() == Some(&names) {
            return;
        }
        match names.as_str() {
            "" => tracing::warn!(
                "commits wait for no standby (synchronous_standby_names is empty): what the database's computer loses is lost"
            ),
            standbys => tracing::info!(standbys, "commits wait for standbys"),
        }
        self.names = Some(names);
    }
}

/// The candidate of this node.
#[derive(Debug)]
pub(super) struct DatabaseLeadership {
    membership: Arc<Membership>,
    candidate: Candidate,
    link: LeaderLink,
    /// The seat as it was last seen.
    seat: SeatView,
    waits_because: Option<WaitReason>,
}

impl DatabaseLeadership {
    /// `earlier` is the life of this node before this one, which has ended.
    pub(super) fn new(membership: Arc<Membership>, earlier: Option<HolderId>) -> std::io::Result<Self> {
        let candidate = Candidate::new(membership.rule, membership.database.holder(), earlier);
        let link = LeaderLink::start()?;
        Ok(Self { membership, candidate, link, seat: SeatView::default(), waits_because: None })
    }

    fn follow(&self) -> SeatLook {
        let SeatView { sight, name, address, .. } = &self.seat;
        let is_other = sight.holder.is_some_and(|holder| holder != self.membership.database.holder());
        let leader = name.clone().zip(address.clone()).filter(|_| is_other && sight.handover.is_none());
        // An earlier life of this very node leads no more.
        let leader = leader.filter(|(name, _)| name != self.membership.database.name());
        let leader = leader.map(|(name, address)| LeaderAddress { name, address });
        SeatLook::Follow { term: sight.term, leader }
    }

    fn say_why(&mut self, why: WaitReason) {
        let is_news = self.waits_because.as_ref().map(core::mem::discriminant) != Some(core::mem::discriminant(&why));
        if is_news && matches!(why, WaitReason::ClockOff { .. } | WaitReason::BackingOff | WaitReason::Yields) {
            tracing::warn!("this node does not try for the seat: {why}");
        }
        self.waits_because = Some(why);
    }
}

impl Leadership for DatabaseLeadership {
    /// A database that does not answer says nothing of who leads.
    fn look(&mut self, own: OwnStanding) -> SeatLook {
        let OwnStanding { applied, is_caught_up, is_live, may_stand } = own;
        let membership = self.membership.clone();
        if is_caught_up {
            membership.applied.store(applied.0, Ordering::Relaxed);
        }
        let could_stand = membership.may_stand.swap(may_stand, Ordering::Relaxed);
        match membership.database.seat(&membership.log) {
            Ok(seat) => self.seat = seat,
            Err(error) => {
                tracing::debug!(%error, "the seat cannot be looked at");
                let is_own = self.seat.sight.holder == Some(membership.database.holder());
                return if is_own { SeatLook::Unseen } else { self.follow() };
            }
        }
        let earlier = membership.clock_ahead_ms.swap(self.seat.clock_ahead_ms, Ordering::Relaxed);
        if earlier == CLOCK_UNKNOWN || could_stand != may_stand {
            match membership.publish_member() {
                Ok(_) if could_stand != may_stand => tracing::info!(may_stand, "candidacy"),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "the other managers cannot be told whether we may lead"),
            }
        }
        let holder = self.seat.sight.holder.filter(|holder| *holder != membership.database.holder());
        self.link.watch(holder.zip(self.seat.address.clone()));
        let (rank, has_peers) = membership.rank(self.seat.sight.holder);
        let standing = CandidateStanding {
            is_caught_up,
            is_healthy: is_live && !membership.is_leaving.load(Ordering::Relaxed),
            may_stand,
            clock_skew: membership.clock_skew(),
            rank,
            has_peers,
            is_leader_refusing: holder.is_some_and(|holder| self.link.is_refused(holder)),
            is_leader_unreached: holder.is_some_and(|holder| membership.is_unreached(holder)),
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

    fn leads(&mut self, term: Term) {
        // If the database is lost before the next look, whoever led before is not who is to be asked.
        let holder = Some(self.membership.database.holder());
        let sight = SeatSight { term, holder, handover: None, ..self.seat.sight };
        self.seat = SeatView { sight, name: None, address: None, ..self.seat };
        self.link.watch(None);
        self.candidate.leads(clock::mono());
    }

    fn term_ended(&mut self) {
        self.candidate.term_ended(clock::mono());
    }

    fn leader_version(&self) -> Option<String> {
        let holder = self.seat.sight.holder?;
        self.membership.living().into_iter().find(|member| member.holder == holder).map(|member| member.version)
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

#[cfg(test)]
mod tests {
    use onward_log::Log as _;
    use onward_testkit::PostgresServer;

    use super::*;

    #[test]
    fn a_leader_that_loses_the_database_does_not_name_its_predecessor() {
        let server = PostgresServer::options().fsync().start().unwrap();
        let url = server.database().unwrap();
        let node = |name: &str| Database::open(&url).unwrap().reached_at(name, "127.0.0.1:1");
        let take_seat = |database: &Database| {
            let mut log = database.log("dc").unwrap();
            let seen = log.tail().unwrap().term;
            log.take_seat(seen).unwrap().term
        };
        let (earlier, own) = (node("earlier"), node("own"));
        let first = take_seat(&earlier);
        let rule = CandidateRule::with_ttl(Duration::from_secs(600));
        let membership = Membership::new(own.clone(), "dc", rule, Arc::default(), Arc::new(AtomicBool::new(true)));
        let mut leadership = DatabaseLeadership::new(membership, None).unwrap();
        let standing = OwnStanding { is_caught_up: true, ..OwnStanding::BEFORE_READING };
        let leader = Some(LeaderAddress { name: "earlier".into(), address: "127.0.0.1:1".into() });
        assert_eq!(leadership.look(standing), SeatLook::Follow { term: first, leader });
        let second = take_seat(&own);
        leadership.leads(second);
        drop(server);
        assert_eq!(leadership.look(standing), SeatLook::Unseen);
    }
}
