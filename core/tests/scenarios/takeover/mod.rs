//! Another leader, or the same one after it could not run: what must not change does not, what must wait waits.

mod attempts;
mod jobs;
mod late;
mod notes;
mod replay;
mod wall_clock;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::rig::*;
use onward_core::effect::{Answer, ManagerNotice};
use onward_core::event::Event;
use onward_core::grant::Denial;
use onward_core::ids::{Claim, JobId, SessionId};
use onward_core::input::{Call, Input, ScheduleDraft};
use onward_core::job::{Draft, JobState, OnStuck, Retry};
use onward_core::message::{Beat, EndReport, ToWorker};
use onward_core::refusal::Refusal;
use onward_core::schedule::{MissedPolicy, Overlap, Timing};
use onward_core::time::{Wall, WallStep};
use onward_core::timeout::TimeoutReason;

const SEAT_TTL: Duration = Duration::from_secs(3);

fn done(rig: &mut Rig, call: Call) {
    assert_eq!(rig.call(call), Ok(Answer::Done));
}

fn running(rig: &Rig, job: JobId) -> onward_core::manager::AttemptView {
    rig.view(job).workflows[0].running.clone().expect("an attempt runs")
}

fn held_out(rig: &mut Rig, session: SessionId) -> Vec<Claim> {
    rig.assigned(session).into_iter().map(|assignment| assignment.claim).collect()
}
