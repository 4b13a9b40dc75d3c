//! Jobs in large numbers.

use onward_core::effect::Answer;
use onward_core::input::{Call, Submission};
use onward_proto::v1::job_service_server::JobService;
use onward_proto::v1::{SubmitAnswer, SubmitRequest};
use onward_proto::{MAX_FRAME_ENTRIES, Malformed, Problem, draft};
use tonic::{Request, Response, Status};

use super::{ByToken, status};
use crate::api::jobs::submit::EXEC;
use crate::engine::Engine;

#[derive(Debug)]
pub(super) struct Jobs {
    engine: Engine,
}

impl Jobs {
    pub(super) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    fn submissions(&self, request: SubmitRequest) -> Result<Vec<Submission>, Malformed> {
        let count = request.jobs.len();
        if count == 0 {
            return Err(Malformed::new("jobs", Problem::Missing));
        }
        if count > MAX_FRAME_ENTRIES {
            return Err(Malformed::new("jobs", Problem::TooMany { count, max: MAX_FRAME_ENTRIES }));
        }
        let retry = &self.engine.rules().job.retry;
        let submission = |(index, wire)| {
            let draft = draft::draft_in(wire, retry).map_err(|error| error.at("jobs", index))?;
            Ok(Submission { id: self.engine.new_job_id(), draft })
        };
        request.jobs.into_iter().enumerate().map(submission).collect()
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitAnswer>, Status> {
        let by_token = request.extensions().get().is_some_and(|ByToken(by_token)| *by_token);
        let submissions = self.submissions(request.into_inner()).map_err(|error| status::malformed(&error))?;
        let mut workflows = submissions.iter().flat_map(|submission| &submission.draft.workflows);
        if !by_token && workflows.any(|workflow| &*workflow.kind == EXEC) {
            return Err(Status::permission_denied(
                "a job of kind `exec` runs a command, so submitting one needs a token: `authorization: Bearer <token>`",
            ));
        }
        let answer = self.engine.call(Call::Submit(submissions)).await.map_err(|refused| status::refused(&refused))?;
        let Answer::Submitted(accepted) = answer else { unreachable!("a submission is answered with its jobs") };
        let jobs = accepted.into_iter().map(|one| draft::accepted_out(one.id, one.duplicate)).collect();
        Ok(Response::new(SubmitAnswer { jobs }))
    }
}
