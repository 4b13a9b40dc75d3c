//! Answers about a job that is not in memory: the same as if it were.
//!
//! The machine does not know whether such a job was archived or never was. It hands the question back whole
//! ([`Refusal::NotInMemory`]). Whoever can read the archive looks for the job, and [`LateReport::answer`] says what is
//! answered then. That changes nothing: a job of the archive has ended.

use crate::effect::Answer;
use crate::ids::{Claim, JobId, Name};
use crate::input::{Call, ReplayFrom};
use crate::job::Ending;
use crate::refusal::Refusal;
use crate::state::JobImage;

/// Something that was asked or said about a job that is not in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LateReport {
    pub job: JobId,
    pub question: LateQuestion,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LateQuestion {
    Cancel,
    Extend {
        request: Name,
    },
    Retry {
        new_id: JobId,
        request: Name,
    },
    Replay {
        request: Name,
        from: ReplayFrom,
    },
    DropDeadLetter,
    /// Speaks for an attempt, and may say how it ended.
    Claim {
        claim: Claim,
        outcome: Option<Ending>,
    },
}

/// The answer to a question once the job was looked for.
#[derive(Clone, PartialEq, Debug)]
pub enum LateAnswer {
    Answer(Answer),
    /// Only the machine can answer, now that it is shown the job.
    Ask(Box<Call>),
}

impl LateReport {
    pub(crate) fn refusal(job: JobId, question: LateQuestion) -> Refusal {
        Refusal::NotInMemory { report: Box::new(Self { job, question }) }
    }

    /// The refusal to a caller who speaks for this attempt and says nothing of its end.
    pub(crate) fn of_claim(claim: &Claim) -> Refusal {
        Self::refusal(claim.job, LateQuestion::Claim { claim: *claim, outcome: None })
    }

    /// `image` is the job as it was archived; none if it is not there either.
    pub fn answer(self, image: Option<JobImage>) -> Result<LateAnswer, Refusal> {
        let image = image.ok_or(Refusal::UnknownJob)?;
        let answer = match self.question {
            LateQuestion::Cancel => Answer::Done,
            LateQuestion::Extend { request } => {
                let given = image.more.as_ref().and_then(|more| more.extended_by(&request));
                Answer::Extended { total: given.ok_or(Refusal::AlreadyEnded)?.total }
            }
            LateQuestion::Retry { new_id, request } => {
                return Ok(LateAnswer::Ask(Box::new(Call::RetryArchived { image: Box::new(image), new_id, request })));
            }
            // A dead letter stays in memory until it is replayed or dropped, so one of the archive is none any more.
            LateQuestion::Replay { request, from } => {
                let job = image.replayed_as(&request, from).unwrap_or(Err(Refusal::NotADeadLetter))?;
                Answer::Retried { job }
            }
            LateQuestion::DropDeadLetter => return Err(Refusal::NotADeadLetter),
            LateQuestion::Claim { claim, outcome } => {
                return Err(image.answer(&claim, outcome.as_ref()).err().unwrap_or(Refusal::AlreadyEnded));
            }
        };
        Ok(LateAnswer::Answer(answer))
    }

    /// The same for one of several claims, each of which has an answer of its own.
    pub fn answer_claim(&self, image: Option<&JobImage>) -> Result<(), Refusal> {
        let image = image.ok_or(Refusal::UnknownJob)?;
        match &self.question {
            LateQuestion::Claim { claim, outcome } => image.answer(claim, outcome.as_ref()),
            _ => Err(Refusal::AlreadyEnded),
        }
    }

    /// Whether the question speaks for an attempt.
    pub fn is_claim(&self) -> bool {
        matches!(self.question, LateQuestion::Claim { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_for_a_job_that_is_nowhere_hears_that_it_is_not_known() {
        let job = JobId::from_u128(7);
        let claim = Claim { job, workflow: 0, fence: crate::fence::AttemptFence::NONE };
        let request = Name::new("r").expect("valid");
        let questions = [
            LateQuestion::Cancel,
            LateQuestion::Extend { request: request.clone() },
            LateQuestion::Retry { new_id: job, request: request.clone() },
            LateQuestion::Replay { request, from: ReplayFrom::Failed },
            LateQuestion::DropDeadLetter,
            LateQuestion::Claim { claim, outcome: None },
        ];
        for question in questions {
            let report = LateReport { job, question };
            assert_eq!(report.answer_claim(None), Err(Refusal::UnknownJob));
            let refusal = Refusal::NotInMemory { report: Box::new(report.clone()) };
            assert_eq!(refusal.kind(), Refusal::UnknownJob.kind(), "it counts as one");
            assert_eq!(refusal.to_string(), Refusal::UnknownJob.to_string(), "and reads as one");
            assert_eq!(report.answer(None), Err(Refusal::UnknownJob));
        }
    }
}
