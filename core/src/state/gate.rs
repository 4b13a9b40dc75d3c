//! Applying what concerns jobs of a gate.

use crate::event::GateOrigin;
use crate::fence::GateEpoch;
use crate::ids::{Claim, JobId, Name};
use crate::job::fingerprint::Fingerprint;
use crate::time::Wall;
use crate::timeout::TimeoutReason;

use super::records::{GateTie, LedgerFact, LocalTimeout};
use super::{JobKey, KeyRecord, State};

/// The fingerprint under the key of a job that was withdrawn: no submission has this one.
pub const WITHDRAWN: Fingerprint = Fingerprint([0; 16]);

/// The idempotency key under which a gate's job is submitted in its datacenters.
pub fn gate_key(job: JobId) -> Name {
    Name::new(format!("gate:{job}")).expect("short, and without control characters")
}

impl State {
    pub(super) fn tie_to_gate(&mut self, key: JobKey, origin: &GateOrigin) {
        let more = self.more(key);
        more.epoch = Some(origin.epoch);
        more.gate = Some(Box::new(GateTie { waited: origin.waited, ..GateTie::default() }));
    }

    pub(super) fn tie(&mut self, key: JobKey) -> &mut GateTie {
        self.more(key).gate.get_or_insert_default()
    }

    pub(super) fn raise_epoch(&mut self, key: JobKey, epoch: Option<GateEpoch>) {
        if epoch.is_some() {
            let more = self.more(key);
            more.epoch = more.epoch.max(epoch);
        }
    }

    pub(super) fn time_out_locally(&mut self, at: Wall, key: JobKey, reason: TimeoutReason, stuck: Option<Claim>) {
        self.tie(key).local = Some(LocalTimeout { reason, at, stuck });
        self.record(at, key, LedgerFact::LocallyTimedOut { reason });
    }

    pub(super) fn end_local_timeout(&mut self, at: Wall, key: JobKey) {
        self.tie(key).local = None;
        self.record(at, key, LedgerFact::LocalTimeoutOver);
    }

    pub(super) fn note_gate_answer(&mut self, at: Wall, key: JobKey) {
        self.tie(key).answered_at = at;
        self.record(at, key, LedgerFact::GateAnswered);
    }

    /// The attempt has ended: if it was stuck, the job is so no longer.
    pub(super) fn end_local_stuck(&mut self, key: JobKey, claim: &Claim) {
        let tie = self.jobs[key].more.as_mut().and_then(|more| more.gate.as_mut());
        if let Some(tie) = tie {
            tie.local.take_if(|local| local.stuck.as_ref() == Some(claim));
        }
    }

    pub(super) fn give_time(&mut self, at: Wall, key: JobKey, until: Wall) {
        let tie = self.tie(key);
        tie.until = tie.until.max(until);
        tie.local.take_if(|local| local.reason == TimeoutReason::Overall);
        self.record(at, key, LedgerFact::TimeGiven { until });
    }

    pub(super) fn withdraw(&mut self, job: JobId, key_until: Wall) {
        let key = gate_key(job);
        self.idempotency.insert(key.clone(), KeyRecord { job, fingerprint: WITHDRAWN });
        self.expiring.push_back((key_until, key));
    }
}
