//! Payloads and results on their way in and out. What is large goes to the store and leaves its digest behind.

use std::collections::HashMap;
use std::sync::Arc;

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::JobId;
use onward_core::input::Call;
use onward_core::job::Ending;
use onward_core::manager::JobView;
use onward_core::message::{EndReport, FromWorker, Settlement};
use onward_core::payload::{Digest, Payload};
use onward_core::state::EndedAttempt;
use onward_log::{BlobDigest as RawDigest, OwnedBlob};

use super::{Engine, EngineRefusal};

/// Content that a call brings along, to be stored with the events that name it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(Vec<OwnedBlob>);

impl Contents {
    /// The payload that stands for these bytes. Hashing a megabyte takes a while: not for the machine's thread.
    pub(super) fn add(&mut self, bytes: Arc<[u8]>) -> Payload {
        if bytes.len() <= Payload::INLINE_MAX {
            return Payload::Inline(bytes);
        }
        let digest = Digest::of(&bytes);
        let payload = Payload::stored(digest, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.push(OwnedBlob { digest: digest.0, bytes });
        payload
    }

    /// Takes what is large out of a call, and leaves digests in its place.
    pub(super) fn of_call(call: &mut Call) -> Self {
        let mut contents = Self::default();
        match call {
            Call::Submit(submissions) => {
                let workflows = submissions.iter_mut().flat_map(|submission| &mut submission.draft.workflows);
                workflows.for_each(|workflow| contents.replace(&mut workflow.payload));
            }
            Call::SetSchedule(draft) => {
                draft.job.workflows.iter_mut().for_each(|workflow| contents.replace(&mut workflow.payload));
            }
            Call::Settle(settlements) => contents.of_settlements(settlements),
            _ => {}
        }
        contents
    }

    pub(super) fn of_message(message: &mut FromWorker) -> Self {
        let mut contents = Self::default();
        if let FromWorker::Settle(settlements) = message {
            contents.of_settlements(settlements);
        }
        contents
    }

    fn of_settlements(&mut self, settlements: &mut [Settlement]) {
        for settlement in settlements {
            if let EndReport::Succeed { result } = &mut settlement.report {
                self.replace(result);
            }
        }
    }

    pub(crate) fn replace(&mut self, payload: &mut Payload) {
        if let Payload::Inline(bytes) = payload
            && bytes.len() > Payload::INLINE_MAX
        {
            *payload = self.add(bytes.clone());
        }
    }

    pub(crate) fn append(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }

    pub(crate) fn clear(&mut self) {
        // An outage may have filled a lot of memory.
        self.0 = Vec::new();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Contents that `name` is called for.
    pub(crate) fn named(&self, payloads: impl FnOnce(&mut dyn FnMut(&Payload))) -> Vec<OwnedBlob> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut brought: HashMap<RawDigest, &OwnedBlob> = self.0.iter().map(|blob| (blob.digest, blob)).collect();
        let mut named = Vec::new();
        payloads(&mut |payload| {
            if let Payload::Stored(stored) = payload {
                named.extend(brought.remove(&stored.digest.0).cloned());
            }
        });
        named
    }
}

/// Content of a job that is stored and cannot be read.
#[derive(Clone, PartialEq, Debug)]
pub struct DamagedContent {
    /// The place of the workflow in the job.
    pub workflow: usize,
    pub field: ContentField,
    pub refused: EngineRefusal,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContentField {
    Payload,
    Result,
}

impl Engine {
    /// Puts the bytes of a job's payloads and results into its view: all of one workflow if `only` names it, else so much
    /// as `max_bytes` allow, results first. The rest stays as it is, and so does what is damaged, which is given.
    pub async fn fetch_contents(
        &self,
        view: &mut JobView,
        only: Option<usize>,
        max_bytes: usize,
    ) -> Result<Vec<DamagedContent>, EngineRefusal> {
        let (job, mut room, mut damaged) = (view.id, max_bytes, Vec::new());
        let results = view.workflows.iter_mut().enumerate().flat_map(|(workflow, known)| {
            let ended = known.ended.iter_mut().filter_map(|ended| match &mut ended.ending {
                Ending::Succeeded { result } => Some(result),
                _ => None,
            });
            ended.map(move |result| (workflow, ContentField::Result, result))
        });
        let given = view.spec.workflows.iter_mut().enumerate();
        let payloads = given.map(|(workflow, spec)| (workflow, ContentField::Payload, &mut spec.payload));
        let all: Vec<(usize, ContentField, &mut Payload)> = results.chain(payloads).collect();
        for (workflow, field, payload) in all {
            let bytes = payload.len();
            match only {
                _ if payload.as_stored().is_none() => continue,
                Some(only) if only == workflow => {}
                None if bytes <= room => room -= bytes,
                _ => continue,
            }
            if let Some(refused) = self.fetch_unless_damaged(job, payload).await? {
                damaged.push(DamagedContent { workflow, field, refused });
            }
        }
        Ok(damaged)
    }

    /// Puts the bytes of a job's results into its view, if all of them together are not more than `max_bytes`. Gives what
    /// is damaged.
    pub async fn fetch_results(
        &self,
        view: &mut JobView,
        max_bytes: usize,
    ) -> Result<Vec<DamagedContent>, EngineRefusal> {
        let (job, mut damaged) = (view.id, Vec::new());
        let all = view.workflows.iter().flat_map(|workflow| &workflow.ended).filter_map(EndedAttempt::result);
        if all.map(Payload::len).sum::<usize>() > max_bytes {
            return Ok(damaged);
        }
        for (workflow, known) in view.workflows.iter_mut().enumerate() {
            for ended in &mut known.ended {
                if let Ending::Succeeded { result } = &mut ended.ending
                    && let Some(refused) = self.fetch_unless_damaged(job, result).await?
                {
                    damaged.push(DamagedContent { workflow, field: ContentField::Result, refused });
                }
            }
        }
        Ok(damaged)
    }

    /// Gives why it never can be read, where that is so.
    async fn fetch_unless_damaged(
        &self,
        job: JobId,
        payload: &mut Payload,
    ) -> Result<Option<EngineRefusal>, EngineRefusal> {
        match self.fetch(job, payload).await {
            Err(refused) if refused.is_for_good() => Ok(Some(refused)),
            fetched => fetched.map(|()| None),
        }
    }

    pub(super) async fn fetch(&self, job: JobId, payload: &mut Payload) -> Result<(), EngineRefusal> {
        if let Payload::Stored(_) = payload {
            *payload = Payload::Inline(self.content(job, payload).await?);
        }
        Ok(())
    }

    /// The bytes of a payload or result of this job, wherever they lie.
    pub async fn content(&self, job: JobId, payload: &Payload) -> Result<Arc<[u8]>, EngineRefusal> {
        let digest = match payload {
            Payload::Inline(bytes) => return Ok(bytes.clone()),
            Payload::Stored(stored) => stored.digest.0,
        };
        let shared = self.0.clone();
        let Some(reader) = shared.blob_reader() else { return Err(shared.unavailable()) };
        let archive = shared.archive_to_read()?;
        let read = move || {
            let here = reader.blob(&digest)?;
            match (here, archive) {
                // The content moved with its job.
                (None, Some(archive)) => archive.blob(job.as_u128(), &digest),
                (here, _) => Ok(here),
            }
        };
        match self.0.read_disk(read).await? {
            Some(bytes) => Ok(bytes.into()),
            None => Err(self.missing(job).await),
        }
    }
}

/// Contents that an event names, which alone are stored: the rest was refused, or is kept for later.
pub(super) fn named_by(events: &[StampedEvent], contents: &Contents) -> Vec<OwnedBlob> {
    contents.named(|name| {
        for stamped in events {
            match &stamped.event {
                Event::JobSubmitted(submitted) => {
                    submitted.spec.workflows.iter().for_each(|workflow| name(&workflow.payload));
                }
                Event::ScheduleSet(set) => set.plan.job.workflows.iter().for_each(|workflow| name(&workflow.payload)),
                Event::AttemptEnded { ending: Ending::Succeeded { result }, .. } => name(result),
                _ => {}
            }
        }
    })
}
