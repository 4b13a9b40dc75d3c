//! Queues: what is in them, and whether they are paused. And how the manager is doing.

use core::time::Duration;
use std::collections::BTreeMap;

use axum::extract::State;
use onward_api::command::Nothing;
use onward_api::queue::{PauseAnswer, Queue, QueueList, StatsShown};
use onward_api::word::Word;
use onward_core::ids::Name;
use onward_core::job::JobState;
use serde::Deserialize;
use utoipa::IntoParams;

use super::super::App;
use super::super::json::Json;
use super::super::may::{May, Operate, Read};
use super::super::params::{Params, QueuePath, bad_queue_name};
use super::super::problem::ProblemResponse;
use super::nodes::health;
use crate::engine::ReadView;

/// More queues than this are not listed.
const MAX_QUEUES: usize = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Which {
    /// This queue alone. It is shown even if nothing is known of it, so that the answer has the same shape always.
    name: Option<String>,
}

#[derive(Default)]
struct QueueTotals {
    paused: bool,
    ready: u64,
    oldest: Option<Duration>,
    by_state: BTreeMap<Word, u64>,
}

/// List queues.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", params(Which), responses((status = 200, body = QueueList)))]
pub async fn list(
    _: May<Read>,
    State(app): State<App>,
    Params(which): Params<Which>,
) -> Result<Json<QueueList>, ProblemResponse> {
    let only = which.name.map(|name| Name::new(name).ok_or_else(bad_queue_name)).transpose()?;
    let mut queues = app.engine.read(known).await?;
    if let Some(name) = only {
        let counted = queues.remove(&name).unwrap_or_default();
        queues = BTreeMap::from([(name, counted)]);
    }
    let shown = |(name, counted): (Name, QueueTotals)| Queue {
        name: name.to_string(),
        paused: counted.paused,
        ready_workflows: counted.ready,
        demand: counted.ready + counted.by_state.get(JobState::Running.word()).unwrap_or(&0),
        oldest_waiting_s: counted.oldest.unwrap_or_default().as_secs_f64(),
        counts: counted.by_state,
        approximate: false,
    };
    Ok(Json(QueueList { queues: queues.into_iter().map(shown).collect(), next_cursor: None }))
}

/// Nothing here looks at jobs: it costs as much as there are queues, kinds and priorities.
fn known(view: &ReadView<'_>) -> BTreeMap<Name, QueueTotals> {
    let mut queues: BTreeMap<Name, QueueTotals> = BTreeMap::new();
    let mut change = |name: &Name, change: &mut dyn FnMut(&mut QueueTotals)| {
        if queues.len() < MAX_QUEUES || queues.contains_key(name) {
            change(queues.entry(name.clone()).or_default());
        }
    };
    for queue in view.manager.state().paused() {
        change(queue, &mut |known| known.paused = true);
    }
    for demand in view.manager.demand_by_kind() {
        change(demand.queue, &mut |known| known.ready += demand.ready);
    }
    for (queue, waited) in view.manager.longest_waits() {
        change(queue, &mut |known| known.oldest = known.oldest.max(Some(waited)));
    }
    for (_, queue, counts) in view.manager.counts().queues() {
        for state in JobState::ALL.into_iter().filter(|state| counts.jobs[*state as usize] > 0) {
            change(queue, &mut |known| {
                known.by_state.insert(state.word().into(), counts.jobs[state as usize]);
            });
        }
    }
    queues
}

/// Hand out nothing of a queue.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = PauseAnswer),
        (status = 429, description = "limited", body = ProblemResponse, content_type = "application/problem+json")))]
pub async fn pause(
    _: May<Operate>,
    State(app): State<App>,
    QueuePath(queue): QueuePath,
    _: Json<Nothing>,
) -> Result<Json<PauseAnswer>, ProblemResponse> {
    app.engine.pause_queue(queue.clone()).await?;
    Ok(Json(PauseAnswer { name: queue.to_string(), paused: true }))
}

/// Hand out what is in a queue again.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues", params(("name" = String, Path)),
    request_body = Nothing, responses((status = 200, body = PauseAnswer)))]
pub async fn resume(
    _: May<Operate>,
    State(app): State<App>,
    QueuePath(queue): QueuePath,
    _: Json<Nothing>,
) -> Result<Json<PauseAnswer>, ProblemResponse> {
    app.engine.resume_queue(queue.clone()).await?;
    Ok(Json(PauseAnswer { name: queue.to_string(), paused: false }))
}

/// How the manager is doing.
#[utoipa::path(get, path = "/v1/stats", tag = "nodes", responses((status = 200, body = StatsShown)))]
pub async fn stats(_: May<Read>, State(app): State<App>) -> Result<Json<StatsShown>, ProblemResponse> {
    let (view, term) = app.engine.read(|view| (view.manager.view(), view.manager.state().term())).await?;
    Ok(Json(StatsShown {
        seat: view.seat.code().into(),
        term: term.get(),
        health: health(&view.judgement),
        jobs: view.jobs,
        open_jobs: view.open_jobs,
        archived_jobs: app.engine.archived_count().await?,
        dead_letters: view.dead_letters,
        workers: view.workers,
        refusals: app
            .engine
            .refusals(&view.refusals)
            .listed()
            .map(|(kind, count)| (kind.code().into(), count))
            .collect(),
        engine: app.engine.stats().listed().map(|(name, count)| (name.into(), count)).collect(),
    }))
}
