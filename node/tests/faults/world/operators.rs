//! Operators of the world: they cancel, retry, extend, replay and drop, and pause queues.

use core::time::Duration;
use std::sync::Arc;

use onward_core::ids::{JobId, Name};
use onward_core::input::ReplayFrom;
use onward_core::refusal::Refusal;
use onward_node::engine::Engine;

use super::facts::{Job, KnownAnswer, KnownExtension};
use super::{Draw, Stop, World, answered, decided};

impl World {
    pub async fn cancel(&self, engine: &Engine, id: JobId) -> Result<(), Stop> {
        self.note(id, |job| job.cancel.ask(()));
        answered(engine.cancel(id)).await?;
        self.note(id, |job| job.cancel = KnownAnswer::Sure(()));
        Ok(())
    }

    /// A new job like one that has ended.
    pub async fn retry(&self, engine: &Engine, id: JobId, request: u64) -> Result<JobId, Stop> {
        let request = Name::new(format!("r{request}")).unwrap();
        let (new, _) = answered(engine.retry(id, request)).await?;
        let payload = self.job(id).payload;
        self.known().jobs.insert(new, Job::repeating(id, payload, true));
        Ok(new)
    }

    /// Asks for more time by hand; the same request asks for the same as before.
    pub async fn extend(&self, engine: &Engine, id: JobId, request: &Name, draw: &mut Draw) -> Result<(), Stop> {
        let (by, reason) = (Duration::from_secs(1 + draw.below(100)), draw.words());
        self.note(id, |job| {
            let new = || KnownExtension { by, reason, total: KnownAnswer::Nothing };
            job.extensions.entry(request.clone()).or_insert_with(new);
        });
        self.extend_again(engine, id, request).await
    }

    pub(super) async fn extend_again(&self, engine: &Engine, id: JobId, request: &Name) -> Result<(), Stop> {
        let asked = self.note(id, |job| {
            let known = job.extensions.get_mut(request).expect("it was asked for");
            known.total.ask(None);
            known.clone()
        });
        let reason: Box<str> = (&*asked.reason).into();
        let answer = decided(engine.extend(id, asked.by, reason, request.clone())).await?;
        let mut known = self.known();
        let job = known.jobs.get_mut(&id).expect("it was submitted");
        let sum = |extensions: &mut dyn Iterator<Item = &KnownExtension>| extensions.map(|given| given.by).sum();
        let most: Duration = sum(&mut job.extensions.values());
        match (&asked.total, answer) {
            (KnownAnswer::Sure(before), Ok(total)) if *before == Some(total) => {}
            (KnownAnswer::Perhaps(_), Ok(total)) if asked.by <= total && total <= most => {
                let given = job.extensions.get_mut(request).expect("it was asked for");
                given.total = KnownAnswer::Sure(Some(total));
            }
            (KnownAnswer::Perhaps(_), Err(Refusal::AlreadyEnded)) if job.may_have_ended() => {
                let given = job.extensions.get_mut(request).expect("it was asked for");
                given.total = KnownAnswer::Sure(None);
            }
            (KnownAnswer::Sure(None), Err(Refusal::AlreadyEnded)) => {}
            (before, answer) => {
                return Err(Stop::Wrong(format!("an extension of job {id}: {answer:?}, and before {before:?}")));
            }
        }
        Ok(())
    }

    /// A dead letter that nobody is known to have replayed or dropped.
    pub fn dead_letter(&self) -> Option<JobId> {
        let known = self.known();
        let mut dead = known.jobs.iter().filter(|(_, job)| job.has_died && !job.is_released);
        dead.next().map(|(id, _)| *id)
    }

    /// Runs a dead letter again.
    pub async fn replay(&self, engine: &Engine, id: JobId, request: &Name) -> Result<(), Stop> {
        let new = engine.new_job_id();
        let before = self.note(id, |job| {
            let replay = job.replays.entry(request.clone()).or_default();
            replay.offered.push(new);
            replay.clone()
        });
        let payload = self.job(id).payload;
        self.known().jobs.insert(new, Job::repeating(id, payload, false));
        let answer = decided(engine.replay_dead_letter(id, new, request.clone(), ReplayFrom::Failed)).await?;
        let mut known = self.known();
        let job = known.jobs.get_mut(&id).expect("it was submitted");
        let replay = job.replays.get_mut(request).expect("it was just noted");
        let offered = replay.offered.clone();
        match answer {
            Ok(made) if before.answer.unwrap_or(made) == made && offered.contains(&made) => {
                (replay.answer, job.is_released) = (Some(made), true);
                for id in offered {
                    let job = known.jobs.get_mut(&id).expect("it was offered");
                    (job.is_sure, job.is_nowhere) = (id == made, id != made);
                }
            }
            Err(Refusal::NotADeadLetter) if before.answer.is_none() && job.may_be_released(Some(request)) => {
                job.is_released |= job.has_died;
                // It made none, and can make none any more.
                for id in offered {
                    known.jobs.get_mut(&id).expect("it was offered").is_nowhere = true;
                }
            }
            answer => return Err(Stop::Wrong(format!("a replay of job {id} was answered with {answer:?}"))),
        }
        Ok(())
    }

    /// Drops a dead letter. Again, there is none to drop.
    pub async fn drop_dead_letter(&self, engine: &Engine, id: JobId) -> Result<(), Stop> {
        let before = self.job(id);
        self.note(id, |job| job.is_drop_asked = true);
        let answer = decided(engine.drop_dead_letter(id)).await?;
        let now = self.job(id);
        let may_be_released = before.may_be_released(None) || !now.replays.is_empty();
        match answer {
            Ok(()) if !before.is_released => {}
            Err(Refusal::NotADeadLetter) if may_be_released => {}
            answer => return Err(Stop::Wrong(format!("dropping job {id} was answered with {answer:?}"))),
        }
        self.note(id, |job| job.is_released |= job.has_died);
        Ok(())
    }

    /// Pauses a queue of one client alone, or lets it go on. In it is a job that is ready.
    pub async fn set_paused(&self, engine: &Engine, queue: &Name, is_paused: bool) -> Result<(), Stop> {
        if !self.known().queues.contains_key(queue) {
            self.submit_to(engine, queue.as_str(), Arc::new(*b"who waits here?")).await?;
        }
        self.known().queues.entry(queue.clone()).or_default().perhaps = Some(is_paused);
        match is_paused {
            true => answered(engine.pause_queue(queue.clone())).await?,
            false => answered(engine.resume_queue(queue.clone())).await?,
        }
        let mut known = self.known();
        let known = known.queues.get_mut(queue).expect("it was just noted");
        (known.is_paused, known.perhaps) = (is_paused, None);
        Ok(())
    }
}
