//! Calls of the machine, each with the type of its answer.

use core::time::Duration;

use onward_core::effect::{AcceptedJob, Answer};
use onward_core::ids::{Claim, Incarnation, JobId, Name, WorkerId};
use onward_core::input::{Call, Filter, ReplayFrom, ScheduleDraft, Submission};
use onward_core::message::{Beat, BeatAnswer, ExtensionAnswer, ExtensionRequest, SettleAnswer, Settlement};
use onward_core::payload::Payload;

use super::{Engine, EngineRefusal};

/// Each call with its answer: the name and arguments, what the machine is asked, and how it answers.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) -> $answer:ty {
        $call:expr => $pattern:pat => $value:expr
    })*) => {
        impl Engine {$(
            $(#[$doc])*
            pub async fn $name(&self, $($argument: $type),*) -> Result<$answer, EngineRefusal> {
                match self.call($call).await? {
                    $pattern => Ok($value),
                    other => mismatch(stringify!($name), &other),
                }
            }
        )*}
    };
}

/// The machine answers every call in its own way, or refuses it.
#[track_caller]
pub(super) fn mismatch(call: &str, answer: &Answer) -> ! {
    unreachable!("{call} is answered with {answer:?}")
}

calls! {
    /// All or nothing. A refusal says which submission is at fault, where one is.
    submit(submissions: Vec<Submission>) -> Vec<AcceptedJob> {
        Call::Submit(submissions) => Answer::Submitted(accepted) => accepted
    }
    cancel(job: JobId) -> () {
        Call::Cancel { job, epoch: None } => Answer::Done => ()
    }
    /// Says how many of these were cancelled.
    cancel_where(filter: Filter, jobs: Vec<JobId>) -> usize {
        Call::CancelWhere { filter, jobs } => Answer::Cancelled { jobs } => jobs
    }
    /// Gives the time that was added in all.
    extend(job: JobId, by: Duration, reason: Box<str>, request: Name) -> Duration {
        Call::Extend { job, by, reason, request } => Answer::Extended { total } => total
    }
    /// Gives the new job.
    replay_dead_letter(job: JobId, new_id: JobId, request: Name, from: ReplayFrom) -> JobId {
        Call::ReplayDeadLetter { job, new_id, request, from } => Answer::Retried { job } => job
    }
    drop_dead_letter(job: JobId) -> () {
        Call::DropDeadLetter { job } => Answer::Done => ()
    }
    pause_queue(queue: Name) -> () {
        Call::PauseQueue(queue) => Answer::Done => ()
    }
    resume_queue(queue: Name) -> () {
        Call::ResumeQueue(queue) => Answer::Done => ()
    }
    drain_worker(worker: WorkerId) -> () {
        Call::DrainWorker(worker) => Answer::Done => ()
    }
    undrain_worker(worker: WorkerId) -> () {
        Call::UndrainWorker(worker) => Answer::Done => ()
    }
    /// Says whether the schedule is a new one.
    set_schedule(draft: Box<ScheduleDraft>) -> bool {
        Call::SetSchedule(draft) => Answer::ScheduleSet { is_new } => is_new
    }
    remove_schedule(schedule: Name) -> () {
        Call::RemoveSchedule(schedule) => Answer::Done => ()
    }
    pause_schedule(schedule: Name) -> () {
        Call::PauseSchedule(schedule) => Answer::Done => ()
    }
    resume_schedule(schedule: Name) -> () {
        Call::ResumeSchedule(schedule) => Answer::Done => ()
    }
    /// Gives the run, of which there is exactly one.
    run_schedule(schedule: Name, request: Option<Name>) -> AcceptedJob {
        Call::RunSchedule { schedule, request } => Answer::Submitted(accepted) => accepted[0]
    }
    beat(beats: Vec<Beat>) -> Vec<BeatAnswer> {
        Call::Beat(beats) => Answer::Beats(answers) => answers
    }
    settle(settlements: Vec<Settlement>) -> Vec<SettleAnswer> {
        Call::Settle(settlements) => Answer::Settled(answers) => answers
    }
    request_extension(request: ExtensionRequest) -> ExtensionAnswer {
        Call::RequestExtension(request) => Answer::Extension(answer) => answer
    }
    /// Says how much a worker that wants no more work still holds.
    leave(worker: WorkerId, incarnation: Incarnation) -> u32 {
        Call::Goodbye { worker, incarnation } => Answer::Left { held } => held
    }
}

impl Engine {
    /// A new job like one that has ended, wherever that is kept. The same request gives the same job; says whether this
    /// is the first time.
    pub async fn retry(&self, job: JobId, request: Name) -> Result<(JobId, bool), EngineRefusal> {
        let new_id = self.new_job_id();
        match self.call(Call::Retry { job, new_id, request }).await? {
            Answer::Retried { job } => Ok((job, job == new_id)),
            other => mismatch("retry", &other),
        }
    }

    /// The bytes of an input, wherever they are.
    pub(super) async fn find_input(&self, claim: Claim, workflow: Name) -> Result<Payload, EngineRefusal> {
        match self.call(Call::FetchInput { claim, workflow }).await? {
            Answer::Input(input) => Ok(input),
            other => mismatch("fetch_input", &other),
        }
    }
}
