//! What is said about jobs that have left memory: the same as if they had not.

use onward_core::effect::Answer;
use onward_core::ids::{Claim, JobId, Name};
use onward_core::input::{Call, ReplayFrom};
use onward_core::message::{BeatAnswer, Report, SettleAnswer, Settlement};
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;
use onward_core::state::{JobImage, State};
use onward_log::codec;

use super::{Engine, Refused};

/// A call that is answered from the archive where the machine does not know the job any more.
pub(super) enum ArchivedCommand {
    Cancel(JobId),
    Extend { job: JobId, request: Name },
    Replay { job: JobId, request: Name, from: ReplayFrom },
    DropLetter(JobId),
    Settle(Vec<Settlement>),
    Beat,
    Extension(Vec<Claim>),
}

impl ArchivedCommand {
    pub(super) fn of(call: &Call) -> Option<Self> {
        match call {
            Call::Cancel { job, .. } => Some(Self::Cancel(*job)),
            Call::Extend { job, request, .. } => Some(Self::Extend { job: *job, request: request.clone() }),
            Call::ReplayDeadLetter { job, request, from, .. } => {
                Some(Self::Replay { job: *job, request: request.clone(), from: *from })
            }
            Call::DropDeadLetter { job } => Some(Self::DropLetter(*job)),
            Call::Settle(settlements) => Some(Self::Settle(settlements.clone())),
            Call::Beat(_) => Some(Self::Beat),
            Call::RequestExtension(asked) => Some(Self::Extension(asked.claims.clone())),
            _ => None,
        }
    }
}

impl Engine {
    pub(super) async fn answer_from_archive(
        &self,
        asked: ArchivedCommand,
        answer: Result<Answer, Refused>,
    ) -> Result<Answer, Refused> {
        const UNKNOWN: Result<Answer, Refused> = Err(Refused::ByMachine(Refusal::UnknownJob));
        match (asked, answer) {
            (ArchivedCommand::Settle(settlements), Ok(Answer::Settled(mut answers))) => {
                self.settle_again(&settlements, &mut answers).await?;
                Ok(Answer::Settled(answers))
            }
            (ArchivedCommand::Beat, Ok(Answer::Beats(mut answers))) => {
                self.beat_again(&mut answers).await?;
                Ok(Answer::Beats(answers))
            }
            (ArchivedCommand::Extension(claims), answer) if answer == UNKNOWN => match claims.first() {
                Some(claim) => match self.archived(claim.job).await? {
                    Some(image) => {
                        self.0.stats.late_claims_refused.add(1);
                        Err(Refused::ByMachine(over(&image, claim)))
                    }
                    None => answer,
                },
                None => answer,
            },
            (ArchivedCommand::Cancel(job), answer) if answer == UNKNOWN => match self.archived(job).await? {
                Some(_) => Ok(Answer::Done),
                None => answer,
            },
            (ArchivedCommand::Extend { job, request }, answer) if answer == UNKNOWN => {
                match self.archived(job).await? {
                    Some(image) => extended(&image, &request).ok_or(Refused::ByMachine(Refusal::AlreadyEnded)),
                    None => answer,
                }
            }
            (ArchivedCommand::Replay { job, request, from }, answer) if answer == UNKNOWN => {
                match self.archived(job).await? {
                    Some(image) => replayed(&image, &request, from).map_err(Refused::ByMachine),
                    None => answer,
                }
            }
            (ArchivedCommand::DropLetter(job), answer) if answer == UNKNOWN => match self.archived(job).await? {
                Some(_) => Err(Refused::ByMachine(Refusal::NotADeadLetter)),
                None => answer,
            },
            (_, answer) => answer,
        }
    }

    /// Why none of these dead letters can be replayed for this request, wherever the jobs are kept: the first that is at
    /// fault. One that the request has replayed already is not, unless it asked for something else then.
    pub async fn replay_fault(
        &self,
        jobs: Vec<JobId>,
        request: Name,
        from: ReplayFrom,
    ) -> Result<Option<(usize, Refusal)>, Refused> {
        let (asked, by) = (jobs.clone(), request.clone());
        let standing = self.read(move |view| {
            let of = |job: &JobId| view.manager.check_replay(*job, &by, from).err();
            asked.iter().map(of).collect::<Vec<_>>()
        });
        for (index, (job, refusal)) in jobs.into_iter().zip(standing.await?).enumerate() {
            let refusal = match refusal {
                Some(Refusal::UnknownJob) => match self.archived(job).await? {
                    Some(image) => replayed(&image, &request, from).err(),
                    None => Some(Refusal::UnknownJob),
                },
                other => other,
            };
            if let Some(refusal) = refusal {
                return Ok(Some((index, refusal)));
            }
        }
        Ok(None)
    }

    /// The first result that replaying these dead letters from the failed workflow on would take over, and that cannot be
    /// read.
    pub async fn result_fault(&self, jobs: &[JobId]) -> Result<Option<ResultFault>, Refused> {
        for (index, job) in jobs.iter().copied().enumerate() {
            let results = self.read(move |view| large_results(view.manager.state(), job)).await?;
            for (workflow, result) in results {
                if let Err(refused) = self.content(job, &result).await {
                    return Ok(Some(ResultFault { index, workflow, refused }));
                }
            }
        }
        Ok(None)
    }

    /// The first of these jobs that is not kept anywhere.
    pub async fn first_unknown(&self, jobs: Vec<JobId>) -> Result<Option<usize>, Refused> {
        let asked = jobs.clone();
        let is_known = self
            .read(move |view| asked.iter().map(|job| view.manager.state().find(*job).is_some()).collect::<Vec<_>>());
        for (index, (job, is_known)) in jobs.into_iter().zip(is_known.await?).enumerate() {
            if !is_known && self.archived(job).await?.is_none() {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Puts the right answer where the machine did not know the job. `settlements` are what was answered, one by one.
    pub(super) async fn settle_again(
        &self,
        settlements: &[Settlement],
        answers: &mut [SettleAnswer],
    ) -> Result<(), Refused> {
        let pairs = settlements.iter().zip(&*answers).enumerate();
        let unknown = pairs.filter(|(_, (_, answer))| answer.answer == Err(Refusal::UnknownJob));
        let late = unknown.map(|(at, (said, _))| Late { at, claim: said.claim, report: Some(said.report.clone()) });
        for (at, answer) in self.late(late.collect()).await? {
            answers[at].answer = answer;
        }
        Ok(())
    }

    pub(super) async fn beat_again(&self, answers: &mut [BeatAnswer]) -> Result<(), Refused> {
        let unknown = answers.iter().enumerate().filter(|(_, answer)| answer.answer == Err(Refusal::UnknownJob));
        let late = unknown.map(|(at, answer)| Late { at, claim: answer.claim, report: None });
        for (at, answer) in self.late(late.collect()).await? {
            answers[at].answer = Err(answer.err().unwrap_or(Refusal::AlreadyEnded));
        }
        Ok(())
    }

    /// What is said about those whose job is in the archive, all of them in one read.
    async fn late(&self, late: Vec<Late>) -> Result<Vec<(usize, Result<(), Refusal>)>, Refused> {
        let archive = match self.0.archive_to_read()? {
            Some(archive) if !late.is_empty() => archive,
            _ => return Ok(Vec::new()),
        };
        let read = move || {
            let mut answers = Vec::new();
            for Late { at, claim, report } in late {
                if let Some(row) = archive.get(claim.job.as_u128())? {
                    answers.push((at, codec::decode_image(&row)?.answer(&claim, report)));
                }
            }
            Ok(answers)
        };
        let answers = self.0.read_disk(read).await?;
        let refused = answers.iter().filter(|(_, answer)| answer.is_err()).count();
        self.0.stats.late_claims_refused.add(refused as u64);
        Ok(answers)
    }
}

/// Something that was said for an attempt whose job the machine does not know, and its place in the list.
struct Late {
    at: usize,
    claim: Claim,
    report: Option<Report>,
}

/// A result that cannot be read: of which job in the list, of which workflow, and why.
#[derive(Debug)]
pub struct ResultFault {
    pub index: usize,
    pub workflow: Name,
    pub refused: Refused,
}

/// Those of a dead letter that lie in the store, by the names of their workflows.
fn large_results(state: &State, job: JobId) -> Vec<(Name, Payload)> {
    let Some(key) = state.find(job).filter(|key| state.job(*key).dead) else { return Vec::new() };
    let job = state.job(key);
    let named = state.workflows_of(job).map(|(key, workflow)| (&job.spec.workflows[usize::from(workflow.index)], key));
    let results = named.filter_map(|(spec, key)| Some((spec.name.clone(), state.result(key)?.clone())));
    results.filter(|(_, result)| result.as_stored().is_some()).collect()
}

/// What is said to somebody who speaks for an attempt of a job that has ended.
pub(super) fn over(image: &JobImage, claim: &Claim) -> Refusal {
    image.answer(claim, None::<Report>).err().unwrap_or(Refusal::AlreadyEnded)
}

/// A dead letter stays in memory until it is replayed or dropped, so one of the archive is none any more.
fn replayed(image: &JobImage, request: &Name, from: ReplayFrom) -> Result<Answer, Refusal> {
    let known = image.replayed_as(request, from).unwrap_or(Err(Refusal::NotADeadLetter));
    known.map(|job| Answer::Retried { job })
}

/// The same request was heard while the job ran.
fn extended(image: &JobImage, request: &Name) -> Option<Answer> {
    let given = image.more.as_ref()?.extended_by(request)?;
    Some(Answer::Extended { total: given.total })
}
