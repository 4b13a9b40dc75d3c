//! What operators ask and do: queues, nodes, dead letters, schedules, the node itself.

use onward_api::backup::{BackupAnswer, BackupBody};
use onward_api::command::Nothing;
use onward_api::dead_letter::{DeadLetterList, DropAnswers, DropLetters, Replay, ReplayAnswers, ReplayFromWord};
use onward_api::leader::{TransferAnswer, TransferBody};
use onward_api::node::{DatacenterList, DrainAnswer, Node, NodeList};
use onward_api::queue::{PauseAnswer, QueueList};
use onward_api::schedule::{RecordList, RemoveAnswer, RunNow, Schedule, ScheduleList, SetSchedule};
use onward_api::status::Status;
use onward_api::submit::SubmitAnswer;

use super::calls::ApiCall;
use super::{CallError, Client, JobFilter, NodeAnswer, Page, escaped};

impl Client {
    pub async fn status(&self) -> Result<NodeAnswer<Status>, CallError> {
        self.calls.ask(ApiCall::get("/status")).await
    }

    /// All queues that anything is known of.
    pub async fn queues(&self) -> Result<NodeAnswer<QueueList>, CallError> {
        self.calls.ask(ApiCall::get("/v1/queues")).await
    }

    /// Nothing of the queue is handed out until it is resumed; what runs goes on.
    pub async fn pause_queue(&self, name: &str) -> Result<NodeAnswer<PauseAnswer>, CallError> {
        self.calls.ask(ApiCall::post(format!("/v1/queues/{}/pause", escaped(name)), &Nothing {})?).await
    }

    pub async fn resume_queue(&self, name: &str) -> Result<NodeAnswer<PauseAnswer>, CallError> {
        self.calls.ask(ApiCall::post(format!("/v1/queues/{}/resume", escaped(name)), &Nothing {})?).await
    }

    pub async fn nodes(&self, page: &Page) -> Result<NodeAnswer<NodeList>, CallError> {
        self.calls.ask(ApiCall::get(format!("/v1/nodes?{page}"))).await
    }

    pub async fn node(&self, id: &str) -> Result<NodeAnswer<Node>, CallError> {
        self.calls.ask(ApiCall::get(format!("/v1/nodes/{}", escaped(id)))).await
    }

    /// The node gets no new work; what it holds may end.
    pub async fn drain_node(&self, id: &str) -> Result<NodeAnswer<DrainAnswer>, CallError> {
        self.calls.ask(ApiCall::post(format!("/v1/nodes/{}/drain", escaped(id)), &Nothing {})?).await
    }

    pub async fn undrain_node(&self, id: &str) -> Result<NodeAnswer<DrainAnswer>, CallError> {
        self.calls.ask(ApiCall::post(format!("/v1/nodes/{}/undrain", escaped(id)), &Nothing {})?).await
    }

    pub async fn datacenters(&self) -> Result<NodeAnswer<DatacenterList>, CallError> {
        self.calls.ask(ApiCall::get("/v1/datacenters")).await
    }

    /// A page of the dead letters that match; those that died first come first.
    pub async fn dead_letters(&self, which: &JobFilter, page: &Page) -> Result<NodeAnswer<DeadLetterList>, CallError> {
        self.calls.ask(ApiCall::get(format!("/v1/dead-letters?{page}{which}"))).await
    }

    /// Submits the jobs of at most 1,000 dead letters again. The same request again gives the same jobs.
    pub async fn replay(
        &self,
        jobs: &[String],
        from: ReplayFromWord,
        request_id: &str,
    ) -> Result<NodeAnswer<ReplayAnswers>, CallError> {
        let body = Replay { jobs: jobs.to_vec().into(), request_id: request_id.into(), from };
        self.calls.ask(ApiCall::post("/v1/dead-letters/replay", &body)?).await
    }

    /// Forgets at most 1,000 dead letters.
    pub async fn drop_dead_letters(&self, jobs: &[String]) -> Result<NodeAnswer<DropAnswers>, CallError> {
        self.calls.ask(ApiCall::post("/v1/dead-letters/drop", &DropLetters { jobs: jobs.to_vec().into() })?).await
    }

    /// A page of the schedules, by name.
    pub async fn schedules(&self, page: &Page) -> Result<NodeAnswer<ScheduleList>, CallError> {
        self.calls.ask(ApiCall::get(format!("/v1/schedules?{page}"))).await
    }

    pub async fn schedule(&self, name: &str) -> Result<NodeAnswer<Schedule>, CallError> {
        self.calls.ask(ApiCall::get(schedule(name, ""))).await
    }

    /// A new schedule, or another plan for one that is there.
    pub async fn set_schedule(&self, name: &str, plan: &SetSchedule) -> Result<NodeAnswer<Schedule>, CallError> {
        self.calls.ask(ApiCall::put(schedule(name, ""), plan)?).await
    }

    pub async fn remove_schedule(&self, name: &str) -> Result<NodeAnswer<RemoveAnswer>, CallError> {
        self.calls.ask(ApiCall::delete(schedule(name, ""))).await
    }

    pub async fn pause_schedule(&self, name: &str) -> Result<NodeAnswer<Schedule>, CallError> {
        self.calls.ask(ApiCall::post(schedule(name, "/pause"), &Nothing {})?).await
    }

    pub async fn resume_schedule(&self, name: &str) -> Result<NodeAnswer<Schedule>, CallError> {
        self.calls.ask(ApiCall::post(schedule(name, "/resume"), &Nothing {})?).await
    }

    /// Runs it at once, besides the runs that are due. The same request again gives the same run.
    pub async fn run_schedule(&self, name: &str, request_id: &str) -> Result<NodeAnswer<SubmitAnswer>, CallError> {
        let body = RunNow { request_id: Some(request_id.into()) };
        self.calls.ask(ApiCall::post(schedule(name, "/run-now"), &body)?).await
    }

    /// Records of due instants, the newest first.
    pub async fn schedule_records(&self, name: &str, page: &Page) -> Result<NodeAnswer<RecordList>, CallError> {
        self.calls.ask(ApiCall::get(schedule(name, &format!("/records?{page}")))).await
    }

    /// Hands the seat over to the manager of this name, or to the one that is furthest with the log.
    pub async fn transfer_leader(&self, to: Option<&str>) -> Result<NodeAnswer<TransferAnswer>, CallError> {
        let body = TransferBody { to: to.map(str::to_owned) };
        self.calls.ask(ApiCall::post("/v1/leader/transfer", &body)?.once()).await
    }

    /// Copies everything into a file on the node's own disk. Made once: where the answer was lost, the file says whether
    /// it was done.
    pub async fn back_up(&self, path: &str) -> Result<NodeAnswer<BackupAnswer>, CallError> {
        self.calls.ask(ApiCall::post("/v1/backup", &BackupBody { path: path.into() })?.once()).await
    }
}

fn schedule(name: &str, rest: &str) -> String {
    format!("/v1/schedules/{}{rest}", escaped(name))
}
