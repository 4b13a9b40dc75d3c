//! A checked job as a draft again: what a datacenter is sent.

use core::time::Duration;
use std::sync::Arc;

use crate::ids::Name;
use crate::job::{Draft, JobSpec, LimitDraft, Start, WorkflowDraft};

/// A draft that writes out the whole specification, so that no default of the datacenter comes into it. Keys are left
/// out, since they are held at the gate. `delay` is what is left of it.
pub fn draft_for(spec: &JobSpec, targets: &[Name], delay: Duration) -> Draft {
    let text = |name: &Name| Arc::<str>::from(name.as_str());
    let workflows: Vec<WorkflowDraft> = spec
        .workflows
        .iter()
        .map(|workflow| WorkflowDraft {
            name: Some(text(&workflow.name)),
            kind: text(&workflow.kind),
            payload: workflow.payload.clone(),
            content_type: workflow.content_type.as_ref().map(text),
            after: workflow.after.iter().map(|index| text(&spec.workflows[usize::from(*index)].name)).collect(),
        })
        .collect();
    let extras = spec.extras.as_deref();
    let headers = spec.headers();
    Draft {
        queue: Some(text(&spec.queue)),
        workflows,
        priority: spec.priority.into(),
        timeout: Some(spec.timeout),
        stuck_after: Some(spec.stuck_after),
        max_extension: Some(spec.max_extension),
        on_stuck: spec.on_stuck,
        require_progress: spec.require_progress,
        delay: matches!(spec.start, Start::After(_)).then_some(delay).filter(|delay| !delay.is_zero()),
        run_at: match spec.start {
            Start::At(wall) => Some(wall),
            Start::AtOnce | Start::After(_) => None,
        },
        retry: Some(spec.retry),
        limits: spec
            .limits
            .iter()
            .map(|limit| LimitDraft { key: text(&limit.key), max: limit.max, ordered: limit.ordered })
            .collect(),
        unique_key: None,
        idempotency_key: None,
        tags: spec.tags().iter().map(text).collect(),
        headers: headers.iter().map(|(name, value)| (text(name), value.clone())).collect(),
        retain: extras.and_then(|extras| extras.retain),
        datacenters: targets.iter().map(text).collect(),
        timeout_policy: extras.map_or_else(Default::default, |extras| extras.timeout_policy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::draft::check;
    use crate::job::{OnStuck, Retry, TimeoutPolicy};
    use crate::settings::Rules;

    #[test]
    fn a_draft_of_a_specification_is_checked_into_the_same() {
        let rules = Rules::default();
        let secs = Duration::from_secs;
        let workflow = |name: &str, after: &[&str]| WorkflowDraft {
            name: Some(name.into()),
            kind: "k".into(),
            payload: (*b"{}").into(),
            content_type: Some("text/plain".into()),
            after: after.iter().map(|text| (*text).into()).collect(),
        };
        let draft = Draft {
            queue: Some("q".into()),
            workflows: vec![workflow("one", &[]), workflow("two", &["one"])],
            priority: -7,
            timeout: Some(secs(60)),
            stuck_after: Some(secs(5)),
            max_extension: Some(secs(9)),
            on_stuck: OnStuck::TimeOut,
            require_progress: true,
            delay: Some(secs(30)),
            retry: Some(Retry { max_attempts: 2, ..Retry::default() }),
            limits: vec![LimitDraft::ordered("key")],
            tags: vec!["tag".into()],
            headers: vec![("h".into(), "v".into())],
            retain: Some(secs(3)),
            datacenters: vec!["dc-a".into(), "dc-b".into()],
            timeout_policy: TimeoutPolicy::Majority,
            ..Draft::default()
        };
        let spec = check(draft.clone(), &rules.limits, &rules.job).expect("valid");
        let targets = spec.extras.as_ref().expect("it has targets").datacenters.clone();
        assert_eq!(draft_for(&spec, &targets, secs(30)), draft);
        assert_eq!(draft_for(&spec, &targets, Duration::ZERO).delay, None, "the delay is over");
        let short = check(Draft::of_kind("k", *b"{}"), &rules.limits, &rules.job).expect("valid");
        let again = check(draft_for(&short, &[], Duration::ZERO), &rules.limits, &rules.job).expect("valid");
        assert_eq!(again, short);
    }
}
