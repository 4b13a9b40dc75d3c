//! What a client wrote, and the check that turns it into a [`JobSpec`] or says what is wrong.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::carried::CarriedFields;
use crate::ids::{MAX_NAME_BYTES, Name};
use crate::limits::{Limit, LimitMet, Limits};
use crate::payload::Payload;
use crate::time::Wall;

use super::spec::{
    ConcurrencyLimit, Extras, Headers, JobSpec, Keys, OnStuck, Outline, Policy, Retry, Start, TimeoutPolicy,
    WorkflowSpec, Workflows,
};

pub const DEFAULT_QUEUE: &str = "default";
pub const MAX_SPAN: Duration = Duration::from_secs(366 * 24 * 3600);
pub const MAX_ATTEMPTS: u32 = 1_000;
pub const PRIORITIES: core::ops::RangeInclusive<i32> = -100..=100;

/// A submission as written: everything that may be left out is optional.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Draft {
    pub queue: Option<Arc<str>>,
    pub workflows: Vec<WorkflowDraft>,
    pub priority: i32,
    pub timeout: Option<Duration>,
    pub stuck_after: Option<Duration>,
    pub max_extension: Option<Duration>,
    pub on_stuck: OnStuck,
    pub require_progress: bool,
    pub delay: Option<Duration>,
    pub run_at: Option<Wall>,
    pub retry: Option<Retry>,
    pub limits: Vec<LimitDraft>,
    pub unique_key: Option<Arc<str>>,
    pub idempotency_key: Option<Arc<str>>,
    pub tags: Vec<Arc<str>>,
    pub headers: Vec<(Arc<str>, Box<str>)>,
    pub retain: Option<Duration>,
    pub datacenters: Vec<Arc<str>>,
    pub timeout_policy: TimeoutPolicy,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkflowDraft {
    /// May be left out where the job has one workflow.
    pub name: Option<Arc<str>>,
    pub kind: Arc<str>,
    pub payload: Payload,
    pub content_type: Option<Arc<str>>,
    pub after: Vec<Arc<str>>,
}

/// A concurrency limit as written.
#[derive(Clone, PartialEq, Debug)]
pub struct LimitDraft {
    pub key: Arc<str>,
    pub max: u32,
    pub ordered: bool,
}

impl LimitDraft {
    pub fn new(key: &str, max: u32) -> Self {
        Self { key: key.into(), max, ordered: false }
    }

    /// A limit of one at a time, where none overtakes one that has begun.
    pub fn ordered(key: &str) -> Self {
        Self { ordered: true, ..Self::new(key, 1) }
    }
}

impl Draft {
    /// The shortest useful job: one workflow of `kind`.
    pub fn of_kind(kind: &str, payload: impl Into<Payload>) -> Self {
        let workflow = WorkflowDraft { kind: kind.into(), payload: payload.into(), ..WorkflowDraft::default() };
        Self { workflows: vec![workflow], ..Self::default() }
    }
}

/// The reason why a draft was refused: the field, and what it must be. Nothing was stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invalid {
    pub field: &'static str,
    pub problem: DraftProblem,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DraftProblem {
    NotAName,
    OutOfRange {
        value: i64,
        min: i64,
        max: i64,
    },
    SpanOutOfRange {
        value: Duration,
        min: Duration,
        max: Duration,
    },
    NoWorkflows,
    NameMissing,
    NameTwice(Name),
    UnknownName(Box<str>),
    Cycle(Name),
    Both(&'static str),
    TooMany(LimitMet),
    KeyTwice(Name),
    NamedTwice(Name),
    OrderedOverOne(u32),
    /// The field is not for the job of a schedule.
    NotInSchedule,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ", self.field)?;
        match &self.problem {
            DraftProblem::NotAName => write!(f, "must be 1 to {MAX_NAME_BYTES} bytes without control characters"),
            DraftProblem::OutOfRange { value, min, max } => write!(f, "is {value}; it must be from {min} to {max}"),
            DraftProblem::SpanOutOfRange { value, min, max } => {
                write!(
                    f,
                    "is {}s; it must be from {}s to {}s",
                    value.as_secs_f64(),
                    min.as_secs_f64(),
                    max.as_secs_f64()
                )
            }
            DraftProblem::NoWorkflows => write!(f, "is empty; a job has at least one workflow"),
            DraftProblem::NameMissing => write!(f, "must be given for every workflow of a job that has several"),
            DraftProblem::NameTwice(name) => {
                write!(f, "`{name}` is given to two workflows; names are unique within a job")
            }
            DraftProblem::UnknownName(name) => write!(f, "names `{name}`, and no workflow of this job is called that"),
            DraftProblem::Cycle(name) => {
                write!(f, "leads from `{name}` back to itself; dependencies cannot form a cycle")
            }
            DraftProblem::Both(other) => write!(f, "and `{other}` exclude each other; give one of them"),
            DraftProblem::TooMany(met) => write!(f, "is too much: {met}"),
            DraftProblem::KeyTwice(key) => write!(f, "names the key `{key}` twice"),
            DraftProblem::NamedTwice(name) => write!(f, "names `{name}` twice; a job runs once in each of them"),
            DraftProblem::NotInSchedule => {
                write!(f, "cannot be given to the job of a schedule: every due instant starts a job of its own")
            }
            DraftProblem::OrderedOverOne(max) => {
                write!(f, "needs a `max` of 1, and it is {max}; workflows that run side by side have no order")
            }
        }
    }
}

/// Defaults that a draft is completed with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobDefaults {
    pub queue: Name,
    pub timeout: Duration,
    pub stuck_after: Duration,
    pub retry: Retry,
}

impl Default for JobDefaults {
    fn default() -> Self {
        Self {
            queue: Name::new(DEFAULT_QUEUE).expect("a valid name"),
            timeout: Duration::from_secs(24 * 3600),
            stuck_after: Duration::from_secs(120),
            retry: Retry::default(),
        }
    }
}

/// Checks a draft and completes it. Changes nothing anywhere.
pub fn check(draft: Draft, limits: &Limits, defaults: &JobDefaults) -> Result<JobSpec, Invalid> {
    let retry = check_retry(draft.retry.unwrap_or(defaults.retry))?;
    let timeout = span("timeout_s", draft.timeout.unwrap_or(defaults.timeout), ONE_MS)?;
    let stuck_after = span("stuck_after_s", draft.stuck_after.unwrap_or(defaults.stuck_after), ONE_MS)?;
    let max_extension = span("max_extension_s", draft.max_extension.unwrap_or(timeout), Duration::ZERO)?;
    let start = match (draft.delay, draft.run_at) {
        (Some(_), Some(_)) => return Err(Invalid { field: "delay_s", problem: DraftProblem::Both("run_at") }),
        (Some(delay), None) if delay.is_zero() => Start::AtOnce,
        (Some(delay), None) => Start::After(span("delay_s", delay, Duration::ZERO)?),
        (None, Some(at)) => Start::At(at),
        (None, None) => Start::AtOnce,
    };
    if !PRIORITIES.contains(&draft.priority) {
        let (min, max) = (i64::from(*PRIORITIES.start()), i64::from(*PRIORITIES.end()));
        return Err(Invalid {
            field: "priority",
            problem: DraftProblem::OutOfRange { value: i64::from(draft.priority), min, max },
        });
    }
    let keys = Keys {
        unique: draft.unique_key.map(|key| name("unique_key", key)).transpose()?,
        idempotency: draft.idempotency_key.map(|key| name("idempotency_key", key)).transpose()?,
    };
    let extras = Extras {
        tags: check_names("tags", draft.tags, Limit::TagsPerJob, limits)?,
        headers: check_headers(draft.headers, limits)?,
        retain: draft.retain.map(|retain| span("retain_s", retain, Duration::ZERO)).transpose()?,
        datacenters: check_datacenters(draft.datacenters, limits)?,
        timeout_policy: draft.timeout_policy,
        carried: CarriedFields::default(),
    };
    let policy = Policy {
        queue: match draft.queue {
            Some(queue) => name("queue", queue)?,
            None => defaults.queue.clone(),
        },
        limits: check_limits(draft.limits, limits)?,
        timeout,
        stuck_after,
        max_extension,
        start,
        retry,
        priority: draft.priority as i8,
        on_stuck: draft.on_stuck,
        require_progress: draft.require_progress,
    };
    Ok(JobSpec {
        workflows: check_workflows(draft.workflows, limits)?,
        policy: Arc::new(policy),
        keys: (keys != Keys::default()).then(|| Box::new(keys)),
        extras: (extras != Extras::default()).then(|| Box::new(extras)),
    })
}

const ONE_MS: Duration = Duration::from_millis(1);

fn name(field: &'static str, text: Arc<str>) -> Result<Name, Invalid> {
    Name::new(text).ok_or(Invalid { field, problem: DraftProblem::NotAName })
}

fn span(field: &'static str, value: Duration, min: Duration) -> Result<Duration, Invalid> {
    if value < min || value > MAX_SPAN {
        return Err(Invalid { field, problem: DraftProblem::SpanOutOfRange { value, min, max: MAX_SPAN } });
    }
    Ok(value)
}

fn within(field: &'static str, limits: &Limits, limit: Limit, count: usize) -> Result<(), Invalid> {
    limits.check(limit, count).map_err(|met| Invalid { field, problem: DraftProblem::TooMany(met) })
}

fn check_retry(retry: Retry) -> Result<Retry, Invalid> {
    if retry.max_attempts == 0 || retry.max_attempts > MAX_ATTEMPTS {
        let value = i64::from(retry.max_attempts);
        let problem = DraftProblem::OutOfRange { value, min: 1, max: i64::from(MAX_ATTEMPTS) };
        return Err(Invalid { field: "retry.max_attempts", problem });
    }
    span("retry.base_s", retry.base, Duration::ZERO)?;
    span("retry.max_s", retry.max, retry.base)?;
    Ok(retry)
}

fn check_names(
    field: &'static str,
    texts: Vec<Arc<str>>,
    limit: Limit,
    limits: &Limits,
) -> Result<Box<[Name]>, Invalid> {
    within(field, limits, limit, texts.len())?;
    texts.into_iter().map(|text| name(field, text)).collect()
}

/// A job that named a datacenter twice would wait for ever for the second end there.
fn check_datacenters(texts: Vec<Arc<str>>, limits: &Limits) -> Result<Box<[Name]>, Invalid> {
    let names = check_names("datacenters", texts, Limit::DatacentersPerJob, limits)?;
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(*name)) {
        Some((_, twice)) => Err(Invalid { field: "datacenters", problem: DraftProblem::NamedTwice(twice.clone()) }),
        None => Ok(names),
    }
}

fn check_headers(headers: Vec<(Arc<str>, Box<str>)>, limits: &Limits) -> Result<Headers, Invalid> {
    within("headers", limits, Limit::HeadersPerJob, headers.len())?;
    within("headers", limits, Limit::HeaderBytes, headers.iter().map(|(key, value)| key.len() + value.len()).sum())?;
    headers.into_iter().map(|(key, value)| Ok((name("headers", key)?, value))).collect()
}

fn check_limits(drafts: Vec<LimitDraft>, limits: &Limits) -> Result<Arc<[ConcurrencyLimit]>, Invalid> {
    within("limits", limits, Limit::LimitsPerJob, drafts.len())?;
    if drafts.is_empty() {
        return Ok(Arc::default());
    }
    let mut checked: Vec<ConcurrencyLimit> = Vec::with_capacity(drafts.len());
    for LimitDraft { key, max, ordered } in drafts {
        let key = name("limits.key", key)?;
        if max == 0 {
            let problem = DraftProblem::OutOfRange { value: 0, min: 1, max: i64::from(u32::MAX) };
            return Err(Invalid { field: "limits.max", problem });
        }
        if ordered && max > 1 {
            return Err(Invalid { field: "limits.ordered", problem: DraftProblem::OrderedOverOne(max) });
        }
        if checked.iter().any(|limit| limit.key == key) {
            return Err(Invalid { field: "limits", problem: DraftProblem::KeyTwice(key) });
        }
        checked.push(ConcurrencyLimit { key, max, ordered });
    }
    Ok(checked.into())
}

fn check_workflows(drafts: Vec<WorkflowDraft>, limits: &Limits) -> Result<Workflows, Invalid> {
    if drafts.is_empty() {
        return Err(Invalid { field: "workflows", problem: DraftProblem::NoWorkflows });
    }
    within("workflows", limits, Limit::WorkflowsPerJob, drafts.len().min(limits.workflows_per_job + 1))?;
    within("after", limits, Limit::DependenciesPerJob, drafts.iter().map(|draft| draft.after.len()).sum())?;
    let alone = drafts.len() == 1;
    let mut index_of: BTreeMap<Arc<str>, u16> = BTreeMap::new();
    if !alone || !drafts[0].after.is_empty() {
        for (index, draft) in drafts.iter().enumerate() {
            let Some(text) = &draft.name else {
                return Err(Invalid { field: "workflows.name", problem: DraftProblem::NameMissing });
            };
            if index_of.insert(text.clone(), index as u16).is_some() {
                let twice = name("workflows.name", text.clone())?;
                return Err(Invalid { field: "workflows.name", problem: DraftProblem::NameTwice(twice) });
            }
        }
    }
    if alone && drafts[0].after.is_empty() {
        let only = drafts.into_iter().next().expect("there is one");
        return Ok(Workflows::One([check_workflow(only, &index_of, limits)?]));
    }
    let checked: Vec<WorkflowSpec> =
        drafts.into_iter().map(|draft| check_workflow(draft, &index_of, limits)).collect::<Result<_, _>>()?;
    if checked.iter().any(|workflow| !workflow.after.is_empty()) {
        refuse_cycles(&checked)?;
    }
    Ok(Workflows::new(checked))
}

fn check_workflow(
    draft: WorkflowDraft,
    index_of: &BTreeMap<Arc<str>, u16>,
    limits: &Limits,
) -> Result<WorkflowSpec, Invalid> {
    within("payload", limits, Limit::PayloadBytes, draft.payload.len())?;
    let kind = name("kind", draft.kind)?;
    let mut after: Vec<u16> = Vec::with_capacity(draft.after.len());
    for text in draft.after {
        match index_of.get(&text) {
            Some(index) => after.push(*index),
            None => return Err(Invalid { field: "after", problem: DraftProblem::UnknownName((&*text).into()) }),
        }
    }
    after.sort_unstable();
    after.dedup();
    let outline = Outline {
        name: match draft.name {
            Some(text) => name("workflows.name", text)?,
            None => kind.clone(),
        },
        kind,
        content_type: draft.content_type.map(|text| name("content_type", text)).transpose()?,
        after: if after.is_empty() { Arc::default() } else { after.into() },
    };
    Ok(WorkflowSpec { outline: Arc::new(outline), payload: draft.payload })
}

/// Takes away workflows without open predecessors until none is left; what cannot be taken away is on a cycle or behind one.
fn refuse_cycles(workflows: &[WorkflowSpec]) -> Result<(), Invalid> {
    let mut open: Vec<usize> = workflows.iter().map(|workflow| workflow.after.len()).collect();
    let mut dependents: Vec<Vec<u16>> = vec![Vec::new(); workflows.len()];
    for (index, workflow) in workflows.iter().enumerate() {
        for before in workflow.after.iter() {
            dependents[usize::from(*before)].push(index as u16);
        }
    }
    let mut free: Vec<usize> = (0..workflows.len()).filter(|index| open[*index] == 0).collect();
    while let Some(index) = free.pop() {
        for dependent in &dependents[index] {
            let left = &mut open[usize::from(*dependent)];
            *left -= 1;
            if *left == 0 {
                free.push(usize::from(*dependent));
            }
        }
    }
    let Some(mut at) = open.iter().position(|left| *left > 0) else { return Ok(()) };
    // From a workflow that is behind a cycle, walking back along open predecessors arrives on the cycle.
    for _ in 0..workflows.len() {
        let before = workflows[at].after.iter().find(|before| open[usize::from(**before)] > 0);
        at = usize::from(*before.expect("a workflow with open predecessors has one that is open itself"));
    }
    Err(Invalid { field: "after", problem: DraftProblem::Cycle(workflows[at].name.clone()) })
}

#[cfg(test)]
#[path = "draft_tests.rs"]
mod tests;
