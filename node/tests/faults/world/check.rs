//! What a node says once its disk is whole again, against all that was answered.

use std::collections::BTreeSet;
use std::time::Instant;

use onward_core::ids::{Claim, JobId, Name};
use onward_core::job::JobState;
use onward_core::payload::Payload;
use onward_core::refusal::Refusal;
use onward_core::state::JobImage;
use onward_node::engine::{Engine, ReadView};
use tokio::time::sleep;

use super::facts::{Job, KnownAnswer, Report, is_end_of};
use super::{PATIENCE, SOON, Stop, World, answered, decided, patiently};
use onward_core::message::EndReport;

impl World {
    /// Checks with a disk that is whole again: it serves, and everything is as it was said; also once all was asked again
    /// that was never answered, once all is archived, and after a restart.
    pub async fn check(&self, engine: Option<Engine>) -> Result<(), String> {
        self.disk.heal();
        self.files.faults().heal();
        let engine = match engine {
            Some(engine) => engine,
            None => self.start().await.map_err(|why| format!("it does not open again: {why:?}"))?,
        };
        self.until_it_serves(&engine).await?;
        self.compare(&engine).await?;
        self.ask_again(&engine).await?;
        self.compare(&engine).await?;
        self.until_all_is_archived(&engine).await?;
        self.compare(&engine).await?;
        self.stop(engine).await.map_err(|why| format!("{why:?}"))?;
        let engine = self.start().await.map_err(|why| format!("it does not open again: {why:?}"))?;
        self.until_it_serves(&engine).await?;
        self.compare(&engine).await?;
        self.stop(engine).await.map_err(|why| format!("{why:?}"))
    }

    /// Everybody who was not answered asks the same again, and is answered.
    async fn ask_again(&self, engine: &Engine) -> Result<(), String> {
        let jobs = self.known().jobs.clone();
        let queues = self.known().queues.clone();
        for (id, job) in jobs {
            let wrong = |wrong: String| format!("asked again about job {id}: {wrong}");
            for (fence, attempt) in &job.attempts {
                if let KnownAnswer::Perhaps(report) = &attempt.report {
                    let claim = Claim { job: id, workflow: 0, fence: *fence };
                    patiently(|| self.report(engine, claim, report.clone())).await.map_err(wrong)?;
                }
            }
            for (request, _) in job.extensions.iter().filter(|(_, given)| !given.total.is_sure()) {
                patiently(|| self.extend_again(engine, id, request)).await.map_err(wrong)?;
            }
            if let KnownAnswer::Perhaps(()) = job.cancel {
                patiently(|| self.cancel(engine, id)).await.map_err(wrong)?;
            }
            for (request, _) in job.replays.iter().filter(|(_, replay)| replay.answer.is_none()) {
                patiently(|| self.replay(engine, id, request)).await.map_err(wrong)?;
            }
            if job.is_drop_asked {
                patiently(|| self.drop_dead_letter(engine, id)).await.map_err(wrong)?;
            }
        }
        for (queue, known) in queues {
            if let Some(is_paused) = known.perhaps {
                patiently(|| self.set_paused(engine, &queue, is_paused)).await?;
            }
        }
        Ok(())
    }

    /// And whatever else was handed to the archive: it takes one batch after the other, so with a job that ends now all
    /// that came before is done.
    async fn until_all_is_archived(&self, engine: &Engine) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let last = self.until_it_serves(engine).await?;
            match self.cancel(engine, last).await {
                Ok(()) => break,
                Err(Stop::Wrong(wrong)) => return Err(wrong),
                Err(Stop::Refused) if began.elapsed() > PATIENCE => return Err("it ends no job".to_owned()),
                Err(Stop::Refused) => {}
            }
        }
        let all: Vec<JobId> = self.known().jobs.keys().copied().collect();
        loop {
            let asked = all.clone();
            let find = move |view: &ReadView<'_>| {
                asked.into_iter().find(|id| {
                    let leaves = |state| matches!(state, JobState::Succeeded | JobState::Cancelled | JobState::Failed);
                    view.manager.job(*id).is_some_and(|job| leaves(job.state) && !job.dead_letter)
                })
            };
            let left = engine.read(find).await;
            if left == Ok(None) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("ended jobs do not leave memory: {left:?}"));
            }
            sleep(SOON).await;
        }
    }

    pub(super) async fn compare(&self, engine: &Engine) -> Result<(), String> {
        let jobs = self.known().jobs.clone();
        for (id, job) in jobs {
            let is_right = patiently(|| self.compare_job(engine, id, &job));
            is_right.await.map_err(|wrong| format!("job {id}: {wrong}"))?;
        }
        patiently(|| self.compare_lists(engine)).await?;
        self.files.compare().await
    }

    async fn compare_job(&self, engine: &Engine, id: JobId, job: &Job) -> Result<(), Stop> {
        let Some((image, is_listed)) = find(engine, id).await? else {
            let gone = || Stop::Wrong("it was acknowledged, and is gone".to_owned());
            return if job.is_sure { Err(gone()) } else { Ok(()) };
        };
        job.compare(&image, is_listed)?;
        compare_content(engine, id, &image.spec.workflows[0].payload, &job.payload).await?;
        self.compare_attempts(engine, job, &image).await?;
        self.compare_again(engine, id, job).await
    }

    /// Each attempt ended as its holder said, and none that is known to have ended is forgotten.
    async fn compare_attempts(&self, engine: &Engine, job: &Job, image: &JobImage) -> Result<(), Stop> {
        let ended = || image.workflows[0].past.iter().flat_map(|past| &past.attempts);
        for found in ended() {
            let known = job.attempts.get(&found.fence).and_then(|attempt| attempt.report.maybe());
            let Some(report) = known.filter(|report| is_end_of(&found.ending, &report.end)) else {
                // Nobody heard of it, or its holder said nothing.
                if found.ending.is_reported() || known.is_some() {
                    return Err(Stop::Wrong(format!("an attempt is said to have ended by {:?}", found.ending)));
                }
                continue;
            };
            if let (Some(result), EndReport::Succeed { result: expected }) = (found.result(), &report.end) {
                let expected = expected.as_inline().expect("it is as the worker gave it");
                compare_content(engine, image.id, result, expected).await?;
            }
        }
        let is_there = |fence| ended().any(|found| found.fence == fence);
        let mut sure = job.attempts.iter().filter(|(_, attempt)| attempt.report.is_sure());
        match sure.find(|(fence, _)| !is_there(**fence)) {
            None => Ok(()),
            Some((_, lost)) => Err(Stop::Wrong(format!("nothing is known of an attempt's end: {:?}", lost.report))),
        }
    }

    /// Asks the same as before: the answer is the same, and nothing changes.
    async fn compare_again(&self, engine: &Engine, id: JobId, job: &Job) -> Result<(), Stop> {
        for (fence, attempt) in &job.attempts {
            if let KnownAnswer::Sure(Report { end, checkpoint }) = &attempt.report {
                let (end, checkpoint) = (end.clone(), checkpoint.clone());
                self.report(engine, Claim { job: id, workflow: 0, fence: *fence }, Report { end, checkpoint }).await?;
            }
        }
        for (request, _) in job.extensions.iter().filter(|(_, given)| given.total.is_sure()) {
            self.extend_again(engine, id, request).await?;
        }
        for (request, replay) in &job.replays {
            let Some(made) = replay.answer else { continue };
            let (new, from) = (engine.new_job_id(), onward_core::input::ReplayFrom::Failed);
            let again = decided(engine.replay_dead_letter(id, new, request.clone(), from)).await?;
            if again != Ok(made) {
                return Err(Stop::Wrong(format!("replayed again it is {again:?}, not {made}")));
            }
        }
        if job.is_released {
            let again = decided(engine.drop_dead_letter(id)).await?;
            if again != Err(Refusal::NotADeadLetter) {
                return Err(Stop::Wrong(format!("it is no dead letter any more, and dropped: {again:?}")));
            }
        }
        Ok(())
    }

    /// The dead letters and the paused queues are those that are known; in a paused one nobody gets anything.
    async fn compare_lists(&self, engine: &Engine) -> Result<(), Stop> {
        let read = engine.read(|view: &ReadView<'_>| {
            let state = view.manager.state();
            let dead: Vec<JobId> = state.dead_letters().map(|key| state.job(key).id).collect();
            (dead, state.paused().clone())
        });
        let (dead, paused): (Vec<JobId>, BTreeSet<Name>) = answered(read).await?;
        if let Some(id) = dead.iter().find(|id| !self.known().jobs.contains_key(id)) {
            return Err(Stop::Wrong(format!("nobody knows of the dead letter {id}")));
        }
        let queues = self.known().queues.clone();
        if let Some(queue) = paused.iter().find(|queue| !queues.contains_key(*queue)) {
            return Err(Stop::Wrong(format!("nobody has paused {queue}")));
        }
        for (queue, known) in queues {
            let is_paused = paused.contains(&queue);
            if is_paused != known.is_paused && Some(is_paused) != known.perhaps {
                return Err(Stop::Wrong(format!("queue {queue} is paused: {is_paused}, and it was said: {known:?}")));
            }
            if is_paused && let Some(claim) = self.lease_of(engine, &queue).await? {
                return Err(Stop::Wrong(format!("queue {queue} is paused, and job {} was handed out", claim.job)));
            }
        }
        Ok(())
    }
}

/// The job as it is in memory or in the archive, and whether it is among the dead letters.
async fn find(engine: &Engine, id: JobId) -> Result<Option<(JobImage, bool)>, Stop> {
    let find = move |view: &ReadView<'_>| {
        let state = view.manager.state();
        let is_listed = state.dead_letters().any(|key| state.job(key).id == id);
        view.manager.image(id).map(|image| (image, is_listed))
    };
    let in_memory = answered(engine.read(find)).await?;
    match in_memory {
        None => Ok(answered(engine.archived(id)).await?.map(|image| (image, false))),
        found => Ok(found),
    }
}

async fn compare_content(engine: &Engine, id: JobId, payload: &Payload, expected: &[u8]) -> Result<(), Stop> {
    let found = answered(engine.content(id, payload)).await?;
    if *found == *expected { Ok(()) } else { Err(Stop::Wrong("its content is another".to_owned())) }
}
