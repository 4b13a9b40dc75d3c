//! Whose output is kept. The output itself never comes here, only the question.

use crate::ids::{Claim, SessionId};
use crate::late::LateReport;
use crate::refusal::Refusal;
use crate::state::ClaimStanding;

use super::Manager;

impl Manager {
    /// Whether what this attempt has printed is kept, or why not. It is kept of the attempt that runs, and of the newest
    /// one if its holder has ended it: the last lines may come behind the outcome. `session` is where it came on; what
    /// came by HTTP is proven by its receipt.
    ///
    /// Output that comes on a session is refused without a look into the archive, so that refusal is counted here.
    pub fn check_output(&mut self, claim: &Claim, session: Option<SessionId>) -> Result<(), Refusal> {
        let answer = self.may_print(claim, session);
        match &answer {
            Ok(()) => {}
            Err(refusal) if session.is_some() => self.refusals.count(refusal.kind()),
            Err(refusal) => self.refusals.note(refusal),
        }
        answer
    }

    fn may_print(&self, claim: &Claim, session: Option<SessionId>) -> Result<(), Refusal> {
        if !self.serving() {
            // Another may have taken the seat, and handed the workflow to somebody else.
            return Err(Refusal::NoLeader);
        }
        let by = match session {
            Some(session) => Some(self.fleet.find_session(session).ok_or(Refusal::UnknownWorker)?),
            None => None,
        };
        match self.state.standing(claim) {
            ClaimStanding::Current(key) => {
                let holder = self.fleet.get_live(key).map(|live| live.worker);
                if by.is_none() || by == holder { Ok(()) } else { Err(Refusal::StaleAttempt) }
            }
            ClaimStanding::Ended(_) => {
                let ended = self.state.ended_attempt(claim).filter(|ended| ended.ending.is_reported());
                let is_theirs = |by| ended.is_some_and(|ended| self.fleet.worker(by).id == ended.worker);
                match by.map_or(ended.is_some(), is_theirs) {
                    true => Ok(()),
                    false => Err(Refusal::StaleAttempt),
                }
            }
            ClaimStanding::Superseded(_) => Err(Refusal::StaleAttempt),
            ClaimStanding::NeverHandedOut => Err(Refusal::UnknownAttempt),
            ClaimStanding::NoSuchWorkflow => Err(Refusal::UnknownWorkflow),
            ClaimStanding::NoSuchJob => Err(LateReport::of_claim(claim)),
        }
    }
}
