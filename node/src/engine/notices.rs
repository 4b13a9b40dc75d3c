//! Who is told about an event: those who watch its jobs.

use onward_core::event::Event;
use onward_core::ids::JobId;

/// The jobs that an event is about.
pub(super) fn jobs_of(event: &Event) -> Vec<JobId> {
    let mut jobs = Vec::new();
    event.for_each_job(&mut |job| jobs.push(job));
    jobs
}
