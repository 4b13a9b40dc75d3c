//! What is said about a job to all who follow it: made once, and shared.
//!
//! ```text
//!   bell, clock ──▶ feed of a job ──▶ the newest text ──┬──▶ follower
//!                                                       └──▶ follower
//! ```
//!
//! A feed keeps the newest text and nothing else. A follower has one text in hand at a time: whoever reads slowly gets
//! what is newest when they come back, and not what was in between. So a thousand followers of one job hold a text or
//! two, and each text is counted from the moment it is made until nobody holds it any more. A gate's jobs are followed by
//! the same means: [`Source`] is what a feed needs of the one and of the other.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use onward_api::job::Job;
use onward_core::health::overload::{LoadClass, OverloadLevel, sheds};
use onward_core::ids::JobId;
use onward_core::refusal::Refusal;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use super::super::App;
use super::super::problem::ProblemResponse;
use super::read::without_contents;
use super::shape::{Detail, job_with_damage};
use crate::engine::{Counter, ManagerJobWatch};

/// The interval at which a running job is looked at, if there is time: soft changes (beats, progress, clocks) ring no
/// bell.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The interval at which a job is looked at that does not run.
const LOOK_SELDOM: Duration = Duration::from_secs(15);
/// Bytes of all results together; larger ones are asked for by themselves.
pub(crate) const MAX_RESULT_BYTES: usize = 2 << 20;
/// Bytes of all texts of all jobs. While there are more, no new ones are made: those who do not read are cut off
/// meanwhile.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Jobs as a feed sees them.
pub(crate) trait Source: Clone + Send + Sync + 'static {
    type Bell: Send + Sync;

    /// A view of the job as it is now, without contents; with results, if they are few, once it has ended.
    fn look(&self, job: JobId, looks: &Arc<AtomicU64>) -> impl Future<Output = Result<Look, ProblemResponse>> + Send;
    /// A bell that rings when something about this job has changed, durably.
    fn bell(&self, job: JobId) -> Self::Bell;
    fn rung(bell: &Self::Bell) -> impl Future<Output = ()> + Send;
    /// The bytes of all texts that somebody holds.
    fn held_bytes(&self) -> &Counter;
    fn load(&self) -> OverloadLevel;
    /// Resolves when nobody is told anything any more.
    fn drained(&self) -> impl Future<Output = ()> + Send;
}

/// The finding of one look at a job.
pub(crate) struct Look {
    /// The number of the look. It was counted where one look comes after another.
    pub(crate) number: u64,
    pub(crate) shown: Job,
    pub(crate) is_terminal: bool,
    /// Whether more may change than rings a bell.
    pub(crate) is_running: bool,
}

/// News of a job.
#[derive(Clone, Debug)]
pub(super) enum FeedItem {
    /// The job, as JSON.
    Job(Bytes),
    /// The job for the last time.
    Ended(Bytes),
    /// The end of the news, with its reason: the name of an event, and a problem.
    Over(&'static str, Bytes),
}

/// All feeds, by job.
#[derive(Clone, Debug, Default)]
pub(super) struct Feeds(Arc<Mutex<HashMap<JobId, Weak<Feed>>>>);

impl Feeds {
    /// The feed of this job, and the job as it is now. The first who follows it starts it.
    pub(super) async fn follow(&self, source: &impl Source, job: JobId) -> Result<Arc<Feed>, ProblemResponse> {
        let (feed, left) = {
            let mut feeds = self.0.lock().expect("no thread panics while it holds this");
            match feeds.get(&job).and_then(Weak::upgrade).filter(|feed| !feed.is_broken()) {
                Some(feed) => (feed, None),
                None => {
                    let (feed, left) = Feed::of(job);
                    feeds.insert(job, Arc::downgrade(&feed));
                    (feed, Some(left))
                }
            }
        };
        if let Some(left) = left {
            let (feeds, source, feed) = (self.clone(), source.clone(), Arc::downgrade(&feed));
            tokio::spawn(async move {
                run(&source, job, &feed, left).await;
                feeds.forget(job);
            });
        }
        if source.held_bytes().get() > MAX_TEXT_BYTES {
            let detail =
                "too much waits for those who follow jobs and do not read; ask again later, or without following";
            return Err(ProblemResponse::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail));
        }
        feed.look(source).await?;
        Ok(feed)
    }

    /// Unless somebody has begun to follow it again.
    fn forget(&self, job: JobId) {
        let mut feeds = self.0.lock().expect("no thread panics while it holds this");
        if feeds.get(&job).is_some_and(|feed| feed.strong_count() == 0) {
            feeds.remove(&job);
        }
    }
}

#[derive(Debug)]
pub(super) struct Feed {
    job: JobId,
    /// The number of looks at the job, so that an earlier one never replaces a later one.
    looks: Arc<AtomicU64>,
    newest: watch::Sender<Option<Newest>>,
    /// Dropped with the last who follows.
    _followed: oneshot::Sender<()>,
}

/// The finding of the last look.
#[derive(Clone, Debug)]
pub(super) struct Newest {
    look: u64,
    pub(super) news: FeedItem,
    is_running: bool,
}

impl Feed {
    /// The feed of a job, and a receiver that resolves when nobody follows any more.
    fn of(job: JobId) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (followed, left) = oneshot::channel();
        let newest = watch::Sender::new(None);
        (Arc::new(Self { job, looks: Arc::default(), newest, _followed: followed }), left)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<Newest>> {
        let mut newest = self.newest.subscribe();
        newest.mark_changed();
        newest
    }

    /// Looks at the job now. Problems are for whoever asks, and change nothing.
    async fn look<S: Source>(&self, source: &S) -> Result<(), ProblemResponse> {
        let Look { number: look, shown, is_terminal, is_running } = source.look(self.job, &self.looks).await?;
        let text = text_of(&shown);
        drop(shown);
        self.newest.send_if_modified(|newest| {
            let is_later = newest.as_ref().is_none_or(|newest| newest.look < look);
            let is_new = is_later && newest.as_ref().is_none_or(|newest| !newest.says(&text));
            if is_new {
                let text = CountedText::bytes(source.clone(), text);
                let news = if is_terminal { FeedItem::Ended(text) } else { FeedItem::Job(text) };
                *newest = Some(Newest { look, news, is_running });
            } else if let Some(newest) = newest
                && is_later
            {
                newest.look = look;
            }
            is_new
        });
        Ok(())
    }

    fn end(&self, news: FeedItem) {
        self.newest.send_replace(Some(Newest { look: u64::MAX, news, is_running: false }));
    }

    fn is_over(&self) -> bool {
        self.newest.borrow().as_ref().is_some_and(|newest| !matches!(newest.news, FeedItem::Job(_)))
    }

    /// Whether the feed ended without the job having ended: the next follower gets another feed.
    fn is_broken(&self) -> bool {
        self.newest.borrow().as_ref().is_some_and(|newest| matches!(newest.news, FeedItem::Over(..)))
    }
}

/// Looks again when the bell rings and now and then, as long as somebody follows and there is something to come.
async fn run<S: Source>(source: &S, job: JobId, feed: &Weak<Feed>, mut left: oneshot::Receiver<()>) {
    let bell = source.bell(job);
    loop {
        let is_running = match feed.upgrade() {
            Some(feed) if !feed.is_over() => feed.newest.borrow().as_ref().is_some_and(|newest| newest.is_running),
            _ => return,
        };
        let look = is_running && !sheds(source.load(), LoadClass::Telemetry);
        tokio::select! {
            () = S::rung(&bell) => {}
            () = sleep(if look { LOOK_EVERY } else { LOOK_SELDOM }) => {}
            _ = &mut left => return,
            () = source.drained() => return,
        }
        while source.held_bytes().get() > MAX_TEXT_BYTES {
            sleep(LOOK_EVERY).await;
        }
        let Some(feed) = feed.upgrade() else { return };
        if let Err(problem) = feed.look(source).await {
            // The job may have been removed from the archive, or this node does not serve: both end the feed.
            let name = if problem.code == Refusal::UnknownJob.kind().code() { "end" } else { "error" };
            let data = serde_json::to_vec(&problem).expect("a problem is plain data");
            feed.end(FeedItem::Over(name, data.into()));
        }
    }
}

fn text_of(shown: &Job) -> String {
    let json = serde_json::to_string(shown).expect("a job is plain data");
    // A result is shown as it was written, line breaks included; inside JSON those are mere space.
    json.replace(['\r', '\n'], " ")
}

impl Source for App {
    type Bell = ManagerJobWatch;

    async fn look(&self, job: JobId, looks: &Arc<AtomicU64>) -> Result<Look, ProblemResponse> {
        let (engine, looks) = (&self.engine, looks.clone());
        let read = engine.read(move |view| (looks.fetch_add(1, Ordering::Relaxed) + 1, view.manager.job(job)));
        let (number, mut view) = match read.await? {
            (number, Some(view)) => (number, view),
            // The job has left memory, and does not change any more.
            (_, None) => (u64::MAX, without_contents(engine, job).await?),
        };
        let is_terminal = view.state.is_terminal();
        let damaged = match is_terminal {
            true => engine.fetch_results(&mut view, MAX_RESULT_BYTES).await?,
            false => Vec::new(),
        };
        let is_running = view.workflows.iter().any(|workflow| workflow.state.is_held());
        Ok(Look { number, shown: job_with_damage(&view, Detail::Brief, &damaged), is_terminal, is_running })
    }

    fn bell(&self, job: JobId) -> ManagerJobWatch {
        self.engine.watch(job)
    }

    async fn rung(bell: &ManagerJobWatch) {
        bell.changed().await;
    }

    fn held_bytes(&self) -> &Counter {
        &self.engine.stats().followed_bytes
    }

    fn load(&self) -> OverloadLevel {
        self.engine.load()
    }

    async fn drained(&self) {
        Self::drained(self).await;
    }
}

impl Newest {
    fn says(&self, text: &str) -> bool {
        match &self.news {
            FeedItem::Job(known) | FeedItem::Ended(known) => known == text.as_bytes(),
            FeedItem::Over(..) => false,
        }
    }
}

/// A text that is counted for as long as somebody holds it.
struct CountedText<S: Source> {
    text: String,
    source: S,
}

impl<S: Source> CountedText<S> {
    fn bytes(source: S, text: String) -> Bytes {
        source.held_bytes().add(text.len() as u64);
        Bytes::from_owner(Self { text, source })
    }
}

impl<S: Source> AsRef<[u8]> for CountedText<S> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl<S: Source> Drop for CountedText<S> {
    fn drop(&mut self) {
        self.source.held_bytes().sub(self.text.len() as u64);
    }
}
