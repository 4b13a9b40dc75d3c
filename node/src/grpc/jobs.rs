//! Jobs in large numbers: call by call, or as a stream.

use onward_core::health::overload::LoadClass;
use onward_core::input::Submission;
use onward_core::refusal::RefusalKind;
use onward_proto::v1::job_service_server::JobService;
use onward_proto::v1::{SubmitAnswer, SubmitRequest};
use onward_proto::{FieldProblem, MAX_FRAME_ENTRIES, MalformedMessage, draft};
use tokio::sync::watch;
use tonic::{Code, Request, Response, Status, Streaming};

use super::submissions::Submissions;
use super::{access_of, status};
use crate::api::access::Access;
use crate::api::jobs::submit::{EXEC, needs_token_for_exec};
use crate::engine::Engine;
use crate::server::shed;

#[derive(Debug)]
pub(super) struct Jobs {
    engine: Engine,
    draining: watch::Receiver<bool>,
}

impl Jobs {
    pub(super) fn new(engine: Engine, draining: watch::Receiver<bool>) -> Self {
        Self { engine, draining }
    }
}

#[tonic::async_trait]
impl JobService for Jobs {
    type SubmitStreamStream = Submissions;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitAnswer>, Status> {
        let access = access_of(&request);
        submit(self.engine.clone(), request.into_inner(), access).await.map(Response::new)
    }

    async fn submit_stream(
        &self,
        request: Request<Streaming<SubmitRequest>>,
    ) -> Result<Response<Self::SubmitStreamStream>, Status> {
        let access = access_of(&request);
        let (engine, by) = (self.engine.clone(), access.clone());
        let answer = move |request| {
            let (engine, access) = (engine.clone(), by.clone());
            async move {
                // A call is shed before it comes here; a stream that was opened in better times is not.
                let answered = match shed::refused(&engine, LoadClass::Submission) {
                    Some(text) => Err(status::of(Code::Unavailable, RefusalKind::Overloaded.code(), text)),
                    None => submit(engine, request, access).await,
                };
                let refused = |status| SubmitAnswer { refused: Some(status::in_stream(&status)), jobs: Vec::new() };
                answered.unwrap_or_else(refused)
            }
        };
        Ok(Response::new(Submissions::new(request.into_inner(), answer, access, self.draining.clone())))
    }
}

async fn submit(engine: Engine, request: SubmitRequest, access: Access) -> Result<SubmitAnswer, Status> {
    // The message may have come long after the headers that the access was found by.
    access.still_valid().map_err(|problem| status::problem(&problem))?;
    let submissions = submissions(&engine, request).map_err(|error| status::malformed(&error))?;
    let mut workflows = submissions.iter().flat_map(|submission| &submission.draft.workflows);
    if !access.may_exec() && workflows.any(|workflow| &*workflow.kind == EXEC) {
        return Err(status::problem(&needs_token_for_exec()));
    }
    let accepted = engine.submit(submissions).await.map_err(|refused| status::refused(&refused))?;
    let jobs = accepted.into_iter().map(|one| draft::accepted_out(one.id, one.duplicate)).collect();
    Ok(SubmitAnswer { jobs, refused: None })
}

fn submissions(engine: &Engine, request: SubmitRequest) -> Result<Vec<Submission>, MalformedMessage> {
    let count = request.jobs.len();
    if count == 0 {
        return Err(MalformedMessage::new("jobs", FieldProblem::Missing));
    }
    if count > MAX_FRAME_ENTRIES {
        return Err(MalformedMessage::new("jobs", FieldProblem::TooMany { count, max: MAX_FRAME_ENTRIES }));
    }
    let retry = &engine.rules().job.retry;
    let submission = |(index, wire)| {
        let draft = draft::draft_in(wire, retry).map_err(|error| error.at("jobs", index))?;
        Ok(Submission { id: engine.new_job_id(), draft })
    };
    request.jobs.into_iter().enumerate().map(submission).collect()
}
