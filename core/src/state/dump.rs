//! The whole state as text, in an order that does not depend on where things lie in memory.

use core::fmt::Write;

use super::State;

impl State {
    /// Two states that came from the same events have the same dump, to the byte.
    pub fn dump(&self) -> String {
        let mut out = String::new();
        self.write_dump(&mut out).expect("writing to a string does not fail");
        out
    }

    fn write_dump(&self, out: &mut String) -> core::fmt::Result {
        writeln!(out, "term {} seq {} newest {:?} open {}", self.term, self.seq.0, self.newest, self.open_jobs)?;
        let mut jobs: Vec<_> = self.jobs.iter().map(|(_, job)| job).collect();
        jobs.sort_by_key(|job| job.id);
        for job in jobs {
            writeln!(
                out,
                "job {} created {:?} started {:?} ended {:?} open {} cancel {} dead {} timed_out {:?}",
                job.id,
                job.created_at,
                job.started_at,
                job.ended_at,
                job.open,
                job.cancel_asked,
                job.dead,
                job.timed_out
            )?;
            writeln!(out, "  {:?}", job.spec)?;
            if let Some(more) = &job.more {
                writeln!(out, "  {more:?}")?;
            }
            for (_, workflow) in self.workflows_of(job) {
                writeln!(
                    out,
                    "  workflow {} {} counted {} handouts {} fence {} ready {:?} due {:?} wall {} left {} past {:?}",
                    workflow.index,
                    workflow.state.word(),
                    workflow.counted,
                    workflow.handouts,
                    workflow.last_fence,
                    workflow.ready_at,
                    workflow.due_at,
                    workflow.wall_due,
                    workflow.predecessors_left,
                    workflow.past,
                )?;
                if let Some(attempt) = workflow.attempt {
                    let attempt = &self.attempts[attempt];
                    writeln!(
                        out,
                        "    attempt {} worker {:?} {:?} {:?} handed {:?} lease {:?} grants {} {:?} until {:?} quiet {:?} {:?} mark {:?}",
                        attempt.claim.fence,
                        attempt.worker,
                        attempt.incarnation,
                        attempt.via,
                        attempt.handed_at,
                        attempt.lease,
                        attempt.grants,
                        attempt.last_grant_progress,
                        attempt.granted_until,
                        attempt.quiet,
                        attempt.quiet_used,
                        attempt.mark,
                    )?;
                }
            }
        }
        let mut unique: Vec<_> = self.unique.iter().map(|(key, job)| (key, self.jobs[*job].id)).collect();
        unique.sort();
        let mut idempotency: Vec<_> = self.idempotency.iter().collect();
        idempotency.sort_by_key(|(key, _)| *key);
        let dead: Vec<_> = self.dead.iter().map(|(seq, job)| (seq, self.jobs[*job].id)).collect();
        writeln!(out, "unique {unique:?}\nidempotency {idempotency:?}\nexpiring {:?}", self.expiring)?;
        let mut stored: Vec<_> = self.stored.iter().collect();
        stored.sort_by_key(|(stored, _)| stored.digest);
        writeln!(out, "stored {stored:?}")?;
        for (name, schedule) in self.schedules() {
            writeln!(out, "schedule {name} {schedule:?}")?;
        }
        writeln!(out, "paused {:?}\nworkers {:?}\ndead {dead:?}", self.paused, self.workers)
    }
}
