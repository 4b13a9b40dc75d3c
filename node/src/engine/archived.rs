//! What is said about jobs that have left memory: the same as if they had not.

use onward_core::effect::Answer;
use onward_core::ids::{Claim, JobId, Name};
use onward_core::input::Call;
use onward_core::message::{BeatAnswer, Report, SettleAnswer, Settlement};
use onward_core::refusal::Refusal;
use onward_core::state::{JobImage, LedgerFact};

use super::{Engine, Refused};

/// A call that is answered from the archive where the machine does not know the job any more.
pub(super) enum Asked {
    Cancel(JobId),
    Extend { job: JobId, request: Name },
    Settle(Vec<Settlement>),
    Beat,
    Extension(Vec<Claim>),
}

impl Asked {
    pub(super) fn of(call: &Call) -> Option<Self> {
        match call {
            Call::Cancel { job, .. } => Some(Self::Cancel(*job)),
            Call::Extend { job, request, .. } => Some(Self::Extend { job: *job, request: request.clone() }),
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
        asked: Asked,
        answer: Result<Answer, Refused>,
    ) -> Result<Answer, Refused> {
        const UNKNOWN: Result<Answer, Refused> = Err(Refused::ByMachine(Refusal::UnknownJob));
        match (asked, answer) {
            (Asked::Settle(settlements), Ok(Answer::Settled(mut answers))) => {
                for (settlement, answer) in settlements.into_iter().zip(&mut answers) {
                    self.settle_again(settlement, answer).await?;
                }
                Ok(Answer::Settled(answers))
            }
            (Asked::Beat, Ok(Answer::Beats(mut answers))) => {
                for BeatAnswer { claim, answer } in &mut answers {
                    if *answer == Err(Refusal::UnknownJob)
                        && let Some(image) = self.archived(claim.job).await?
                    {
                        *answer = Err(over(&image, claim));
                        self.0.stats.late_claims_refused.add(1);
                    }
                }
                Ok(Answer::Beats(answers))
            }
            (Asked::Extension(claims), answer) if answer == UNKNOWN => match claims.first() {
                Some(claim) => match self.archived(claim.job).await? {
                    Some(image) => {
                        self.0.stats.late_claims_refused.add(1);
                        Err(Refused::ByMachine(over(&image, claim)))
                    }
                    None => answer,
                },
                None => answer,
            },
            (Asked::Cancel(job), answer) if answer == UNKNOWN => match self.archived(job).await? {
                Some(_) => Ok(Answer::Done),
                None => answer,
            },
            (Asked::Extend { job, request }, answer) if answer == UNKNOWN => match self.archived(job).await? {
                Some(image) => extended(&image, &request).ok_or(Refused::ByMachine(Refusal::AlreadyEnded)),
                None => answer,
            },
            (_, answer) => answer,
        }
    }

    async fn settle_again(&self, settlement: Settlement, answer: &mut SettleAnswer) -> Result<(), Refused> {
        let Settlement { claim, report } = settlement;
        if answer.answer == Err(Refusal::UnknownJob)
            && let Some(image) = self.archived(claim.job).await?
        {
            answer.answer = image.answer(&claim, Some(report));
            if answer.answer.is_err() {
                self.0.stats.late_claims_refused.add(1);
            }
        }
        Ok(())
    }
}

/// What is said to somebody who speaks for an attempt of a job that has ended.
fn over(image: &JobImage, claim: &Claim) -> Refusal {
    image.answer(claim, None::<Report>).err().unwrap_or(Refusal::AlreadyEnded)
}

/// The same request was heard while the job ran.
fn extended(image: &JobImage, request: &Name) -> Option<Answer> {
    let more = image.more.as_ref()?;
    let heard =
        |fact: &LedgerFact| matches!(fact, LedgerFact::ExtendedByHand { request: earlier, .. } if earlier == request);
    let total = more.extensions;
    more.ledger.entries.iter().any(|entry| heard(&entry.what)).then_some(Answer::Extended { total })
}
