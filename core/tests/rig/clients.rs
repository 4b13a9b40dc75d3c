//! What clients and operators ask for, and what can be seen.

use super::*;

impl Rig {
    pub fn call(&mut self, call: Call) -> Result<Answer, Refusal> {
        let request = self.call_open(call);
        self.replies.remove(&request).expect("this call is answered at once")
    }

    /// A call that may be answered later, under the id returned.
    pub fn call_open(&mut self, call: Call) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.step(Input::Call { request, call });
        request
    }

    pub fn reply(&mut self, request: RequestId) -> Option<Result<Answer, Refusal>> {
        self.replies.remove(&request)
    }

    pub fn new_id(&mut self) -> JobId {
        self.jobs += 1;
        JobId::v7(self.now.wall, u128::from(self.jobs))
    }

    pub fn try_submit(&mut self, draft: Draft) -> Result<JobId, Refusal> {
        let id = self.new_id();
        match self.call(Call::Submit(vec![Submission { id, draft }])).map_err(Refusal::of_single)? {
            Answer::Submitted(accepted) => Ok(accepted[0].id),
            other => panic!("a submission is answered by {other:?}"),
        }
    }

    pub fn submit(&mut self, draft: Draft) -> JobId {
        self.try_submit(draft).expect("accepted")
    }

    pub fn cancel(&mut self, job: JobId) {
        assert_eq!(self.call(Call::Cancel { job, epoch: None }), Ok(Answer::Done));
    }

    /// Cancels all jobs that match, and says how many.
    pub fn cancel_where(&mut self, filter: Filter) -> usize {
        let mut jobs: Vec<JobId> = self.manager.state().jobs().map(|(_, job)| job.id).collect();
        jobs.sort_unstable();
        match self.call(Call::CancelWhere { filter, jobs }) {
            Ok(Answer::Cancelled { jobs }) => jobs,
            other => panic!("a cancel by filter is answered by {other:?}"),
        }
    }

    pub fn view(&self, job: JobId) -> JobView {
        self.manager.job(job).expect("the job is known")
    }

    pub fn state_of(&self, job: JobId) -> JobState {
        self.view(job).state
    }

    /// Endings of the attempts of a job's first workflow so far, oldest first.
    pub fn endings(&self, job: JobId) -> Vec<&'static str> {
        self.view(job).workflows[0].ended.iter().map(|ended| ended.ending.code()).collect()
    }

    /// Attempts of a job's first workflow that count.
    pub fn counted(&self, job: JobId) -> u32 {
        self.view(job).workflows[0].counted
    }

    /// The number of events of a kind in the log.
    pub fn logged(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.log.iter().filter(|stamped| is(&stamped.event)).count()
    }

    pub fn eviction_count(&self) -> usize {
        self.logged(|event| matches!(event, Event::WorkerEvicted { .. }))
    }

    /// Notices since this was last asked.
    pub fn noticed(&mut self) -> Vec<ManagerNotice> {
        std::mem::take(&mut self.notices)
    }

    pub fn refused(&self, kind: RefusalKind) -> u64 {
        self.manager.refusals().of(kind)
    }
}
