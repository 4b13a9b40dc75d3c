//! Jobs that have left memory. The machine hands back what it is asked about them; here they are looked for in the
//! archive, and core says what is answered then.

use onward_core::effect::Answer;
use onward_core::ids::{JobId, Name};
use onward_core::input::{Call, ReplayFrom};
use onward_core::late::{LateAnswer, LateReport};
use onward_core::message::{BeatAnswer, SettleAnswer};
use onward_core::payload::Payload;
use onward_core::refusal::{Refusal, RefusalCounts};
use onward_core::state::State;
use onward_log::codec;

use super::content::Contents;
use super::{Engine, EngineRefusal, EngineState};

impl EngineState {
    /// Counts refusals after a look into the archive.
    fn count_late_refusals<'a>(&self, refusals: impl IntoIterator<Item = &'a Refusal>) {
        let mut counts = self.late_refusals.lock().expect("no thread panics while it holds this");
        refusals.into_iter().for_each(|refusal| counts.note(refusal));
    }
}

impl Engine {
    /// Refusals of each kind: by the machine, which counts its own, and after a look into the archive.
    pub fn refusals(&self, by_machine: &RefusalCounts) -> RefusalCounts {
        by_machine.clone().and(&self.0.late_refusals.lock().expect("no thread panics while it holds this"))
    }

    /// The machine's answer, completed by what only the archive knows.
    pub(super) async fn answer_from_archive(
        &self,
        answer: Result<Answer, EngineRefusal>,
    ) -> Result<Answer, EngineRefusal> {
        match answer {
            Ok(Answer::Settled(mut answers)) => {
                self.answer_late_outcomes(&mut answers).await?;
                Ok(Answer::Settled(answers))
            }
            Ok(Answer::Beats(mut answers)) => {
                self.answer_late_beats(&mut answers).await?;
                Ok(Answer::Beats(answers))
            }
            Err(EngineRefusal::ByMachine(Refusal::NotInMemory { report })) => self.look_up(*report).await,
            answer => answer,
        }
    }

    /// The refusal of a call about a job that the machine does not have.
    pub async fn refusal_of(&self, report: LateReport) -> Result<Refusal, EngineRefusal> {
        match self.look_up(report).await {
            Err(EngineRefusal::ByMachine(refusal)) => Ok(refusal),
            Err(refused) => Err(refused),
            Ok(_) => Ok(Refusal::AlreadyEnded),
        }
    }

    async fn look_up(&self, report: LateReport) -> Result<Answer, EngineRefusal> {
        let (is_claim, image) = (report.is_claim(), self.archived(report.job).await?);
        if is_claim && image.is_some() {
            self.0.stats.late_claims_refused.add(1);
        }
        let answer = report.answer(image).inspect_err(|refusal| self.0.count_late_refusals([refusal]));
        match answer.map_err(EngineRefusal::ByMachine)? {
            LateAnswer::Answer(answer) => Ok(answer),
            LateAnswer::Ask(call) => {
                let contents = self.contents_again(&call).await?;
                self.call_with(*call, contents).await
            }
        }
    }

    /// The payloads of an archived job, read back for the job that repeats it.
    async fn contents_again(&self, call: &Call) -> Result<Contents, EngineRefusal> {
        let mut contents = Contents::default();
        if let Call::RetryArchived { image, .. } = call {
            for workflow in image.spec.workflows.iter() {
                contents.add(self.content(image.id, &workflow.payload).await?);
            }
        }
        Ok(contents)
    }

    /// The refusal if none of these dead letters can be replayed for this request, wherever the jobs are kept: the
    /// first that is at fault. One that the request has replayed already is not, unless it asked for something else
    /// then.
    pub async fn replay_fault(
        &self,
        jobs: Vec<JobId>,
        request: Name,
        from: ReplayFrom,
    ) -> Result<Option<(usize, Refusal)>, EngineRefusal> {
        let standing = self.read(move |view| {
            let of = |job: &JobId| view.manager.check_replay(*job, &request, from).err();
            jobs.iter().map(of).collect::<Vec<_>>()
        });
        for (index, refusal) in standing.await?.into_iter().enumerate() {
            let answer = match refusal {
                Some(Refusal::NotInMemory { report }) => self.look_up(*report).await,
                Some(refusal) => Err(EngineRefusal::ByMachine(refusal)),
                None => continue,
            };
            match answer {
                Ok(_) => {}
                Err(EngineRefusal::ByMachine(refusal)) => return Ok(Some((index, refusal))),
                Err(refused) => return Err(refused),
            }
        }
        Ok(None)
    }

    /// The first result that replaying these dead letters from the failed workflow on would take over, and that cannot be
    /// read.
    pub async fn result_fault(&self, jobs: &[JobId]) -> Result<Option<ResultFault>, EngineRefusal> {
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
    pub async fn first_unknown(&self, jobs: Vec<JobId>) -> Result<Option<usize>, EngineRefusal> {
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

    /// Puts the right answers where the machine handed an outcome back.
    pub(super) async fn answer_late_outcomes(&self, answers: &mut [SettleAnswer]) -> Result<(), EngineRefusal> {
        let (places, reports) = handed_back(answers.iter().map(|settled| &settled.answer));
        for (at, answer) in places.into_iter().zip(self.late(reports).await?) {
            answers[at].answer = answer;
            self.0.count_late_refusals(answers[at].answer.as_ref().err());
        }
        Ok(())
    }

    /// The same for beats: none of a job that has ended is accepted.
    pub(super) async fn answer_late_beats(&self, answers: &mut [BeatAnswer]) -> Result<(), EngineRefusal> {
        let (places, reports) = handed_back(answers.iter().map(|beat| &beat.answer));
        for (at, answer) in places.into_iter().zip(self.late(reports).await?) {
            let refusal = answer.err().unwrap_or(Refusal::AlreadyEnded);
            self.0.count_late_refusals([&refusal]);
            answers[at].answer = Err(refusal);
        }
        Ok(())
    }

    /// The answers to these claims, all of them by one read of the archive.
    async fn late(&self, reports: Vec<LateReport>) -> Result<Vec<Result<(), Refusal>>, EngineRefusal> {
        if reports.is_empty() {
            return Ok(Vec::new());
        }
        let Some(archive) = self.0.archive_to_read()? else {
            return Ok(reports.iter().map(|report| report.answer_claim(None)).collect());
        };
        let read = move || {
            let mut answers = Vec::with_capacity(reports.len());
            let mut refused = 0;
            for report in reports {
                let row = archive.get(report.job.as_u128())?;
                let image = row.map(|row| codec::decode_image(&row)).transpose()?;
                let answer = report.answer_claim(image.as_ref());
                refused += u64::from(image.is_some() && answer.is_err());
                answers.push(answer);
            }
            Ok((answers, refused))
        };
        let (answers, refused) = self.0.read_disk(read).await?;
        self.0.stats.late_claims_refused.add(refused);
        Ok(answers)
    }
}

/// The questions among these answers that the machine handed back, and where they are.
fn handed_back<'a, T: 'a>(answers: impl Iterator<Item = &'a Result<T, Refusal>>) -> (Vec<usize>, Vec<LateReport>) {
    let report = |answer: &Result<T, Refusal>| match answer {
        Err(Refusal::NotInMemory { report }) => Some((**report).clone()),
        _ => None,
    };
    answers.enumerate().filter_map(|(at, answer)| Some((at, report(answer)?))).unzip()
}

/// A result that cannot be read: of which job in the list, of which workflow, and why.
#[derive(Debug)]
pub struct ResultFault {
    pub index: usize,
    pub workflow: Name,
    pub refused: EngineRefusal,
}

/// Results of a dead letter that lie in the store, by the names of their workflows.
fn large_results(state: &State, job: JobId) -> Vec<(Name, Payload)> {
    let Some(key) = state.find(job).filter(|key| state.job(*key).dead) else { return Vec::new() };
    let job = state.job(key);
    let named = state.workflows_of(job).map(|(key, workflow)| (&job.spec.workflows[usize::from(workflow.index)], key));
    let results = named.filter_map(|(spec, key)| Some((spec.name.clone(), state.result(key)?.clone())));
    results.filter(|(_, result)| result.as_stored().is_some()).collect()
}
