//! Clients and workers of an engine, for tests of what a disk does to it.

use core::time::Duration;
use std::sync::Arc;

use onward_core::effect::Answer;
use onward_core::ids::{ClientId, Incarnation, JobId, Name, WorkerId};
use onward_core::input::{Call, Poll, Submission};
use onward_core::job::{Draft, JobState, WorkflowDraft};
use onward_core::message::{EndReport, Settlement, Subscription};
use onward_core::settings::{Rules, Settings};
use onward_log::{Archive, EmbeddedArchive, Error, Log};
use onward_node::engine::{Engine, EngineRefusal, EngineStart};

/// Rules without gaps and questions about the seat: on a busy computer they would come in between.
pub fn rules() -> Rules {
    let long = Duration::from_secs(600);
    Settings { seat_ttl: 2 * long, gap_after: long, ..Settings::default() }.check().unwrap()
}

pub fn start_of<L: Log + Clone + 'static>(log: L, archive: Option<EmbeddedArchive>) -> EngineStart {
    let mut start = EngineStart::new(rules(), move || Ok(Box::new(log.clone()) as Box<dyn Log>));
    start.archive = archive.map(|archive| Arc::new(archive) as Arc<dyn Archive>);
    start
}

pub fn start<L: Log + Clone + 'static>(log: L, archive: Option<EmbeddedArchive>) -> Result<Engine, Error> {
    Engine::start(start_of(log, archive))
}

pub async fn submit(engine: &Engine, payload: &[u8]) -> Result<JobId, EngineRefusal> {
    let id = engine.new_job_id();
    let draft = Draft::of_kind("resize", payload);
    let answer = engine.call(Call::Submit(vec![Submission { id, draft }])).await?;
    assert!(matches!(&answer, Answer::Submitted(accepted) if accepted[0].id == id), "{answer:?}");
    Ok(id)
}

/// A job of so many workflows of the kind that [`poll`] asks for.
pub async fn submit_workflows(engine: &Engine, count: usize) -> Result<JobId, EngineRefusal> {
    let id = engine.new_job_id();
    let mut draft = Draft::of_kind("resize", *b"small");
    let only = draft.workflows.pop().expect("it has one");
    let named = (0..count).map(|n| WorkflowDraft { name: Some(format!("w{n}").into()), ..only.clone() });
    draft.workflows.extend(named);
    engine.call(Call::Submit(vec![Submission { id, draft }])).await?;
    Ok(id)
}

pub fn poll() -> Poll {
    let name = |name| Name::new(name).unwrap();
    Poll {
        worker: WorkerId::new("w").unwrap(),
        incarnation: Incarnation::new("1").unwrap(),
        subscription: Subscription { queues: vec![name("default")], kinds: vec![name("resize")] },
        max: 1,
        wait: Duration::from_secs(60),
        lease: Duration::from_secs(3_600),
        id: None,
        client: ClientId::default(),
    }
}

pub fn cancel(job: JobId) -> Call {
    Call::Cancel { job, epoch: None }
}

/// Leases one job and reports its success.
pub async fn succeed_one(engine: &Engine, result: &[u8]) -> Result<JobId, EngineRefusal> {
    let (leases, mut delivery) = engine.poll(poll()).await?;
    delivery.done();
    let claim = leases[0].claim;
    let report = EndReport::Succeed { result: Arc::<[u8]>::from(result).into() };
    let answer = engine.call(Call::Settle(vec![Settlement::new(claim, report)])).await?;
    assert!(matches!(&answer, Answer::Settled(answers) if answers[0].answer == Ok(())), "{answer:?}");
    Ok(claim.job)
}

/// The payload and the result of an archived job that has succeeded.
pub async fn archived_content(engine: &Engine, job: JobId) -> Result<(Arc<[u8]>, Arc<[u8]>), EngineRefusal> {
    let image = engine.archived(job).await?.expect("it is in the archive");
    assert_eq!(image.state(), JobState::Succeeded);
    let attempts = &image.workflows[0].past.as_ref().expect("it was attempted").attempts;
    let result = attempts.iter().find_map(|ended| ended.result()).expect("it succeeded");
    let payload = engine.content(job, &image.spec.workflows[0].payload).await?;
    Ok((payload, engine.content(job, result).await?))
}

/// A term that serves hands over to the archive what the log says to have ended, at the end of a turn of the machine. A
/// read is part of a turn, so with the third one the first turn is over.
pub async fn until_handed_over(engine: &Engine) {
    for _ in 0..3 {
        // On a busy computer it may have lost its seat for a moment; a turn it was.
        let _ = engine.read(|_| ()).await;
    }
}
