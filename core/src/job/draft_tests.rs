use super::*;

fn accept(draft: Draft) -> JobSpec {
    check(draft, &Limits::default(), &JobDefaults::default()).unwrap()
}

fn refuse(draft: Draft) -> String {
    check(draft, &Limits::default(), &JobDefaults::default()).unwrap_err().to_string()
}

fn one() -> Draft {
    Draft::of_kind("resize", *b"{}")
}

fn dag(edges: &[(&str, &[&str])]) -> Draft {
    let workflow = |(name, after): &(&str, &[&str])| WorkflowDraft {
        name: Some((*name).into()),
        kind: "k".into(),
        after: after.iter().map(|before| (*before).into()).collect(),
        ..WorkflowDraft::default()
    };
    Draft { workflows: edges.iter().map(workflow).collect(), ..Draft::default() }
}

#[test]
fn the_defaults_are_those_of_the_rules() {
    let spec = accept(one());
    assert_eq!(spec.queue.as_str(), "default");
    assert_eq!(spec.priority, 0);
    assert_eq!(spec.timeout, Duration::from_secs(86_400));
    assert_eq!(spec.max_extension, spec.timeout, "extensions are capped by the job's own timeout");
    assert_eq!(spec.stuck_after, Duration::from_secs(120));
    assert_eq!(spec.retry.max_attempts, 5);
    assert_eq!(spec.on_stuck, OnStuck::Retry);
    assert!(!spec.require_progress);
    assert_eq!(spec.start, Start::AtOnce);
}

#[test]
fn what_is_wrong_is_named_with_its_range() {
    let year = MAX_SPAN + Duration::from_secs(1);
    let table: Vec<(Draft, &str)> = vec![
        (Draft::default(), "`workflows` is empty; a job has at least one workflow"),
        (Draft { priority: 101, ..one() }, "`priority` is 101; it must be from -100 to 100"),
        (Draft { priority: -101, ..one() }, "`priority` is -101; it must be from -100 to 100"),
        (Draft { timeout: Some(Duration::ZERO), ..one() }, "`timeout_s` is 0s; it must be from 0.001s to 31622400s"),
        (Draft { delay: Some(year), ..one() }, "`delay_s` is 31622401s; it must be from 0s to 31622400s"),
        (
            Draft { delay: Some(ONE_MS), run_at: Some(Wall::ZERO), ..one() },
            "`delay_s` and `run_at` exclude each other; give one of them",
        ),
        (Draft { queue: Some("".into()), ..one() }, "`queue` must be 1 to 128 bytes without control characters"),
        (
            Draft { retry: Some(Retry { max_attempts: 0, ..Retry::default() }), ..one() },
            "`retry.max_attempts` is 0; it must be from 1 to 1000",
        ),
        (
            Draft { limits: vec![LimitDraft::new("db", 0)], ..one() },
            "`limits.max` is 0; it must be from 1 to 4294967295",
        ),
        (
            Draft { limits: vec![LimitDraft::new("db", 1), LimitDraft::new("db", 2)], ..one() },
            "`limits` names the key `db` twice",
        ),
        (
            Draft { limits: vec![LimitDraft { max: 3, ..LimitDraft::ordered("db") }], ..one() },
            "`limits.ordered` needs a `max` of 1, and it is 3; workflows that run side by side have no order",
        ),
        (
            Draft { datacenters: vec!["a".into(), "b".into(), "a".into()], ..one() },
            "`datacenters` names `a` twice; a job runs once in each of them",
        ),
        (Draft { tags: vec!["t".into(); 17], ..one() }, "`tags` is too much: at most 16 tags of one job"),
        (Draft::of_kind("k", vec![0; (1 << 20) + 1]), "`payload` is too much: at most 1048576 bytes of one payload"),
        (
            dag(&[("a", &[]), ("a", &[])]),
            "`workflows.name` `a` is given to two workflows; names are unique within a job",
        ),
        (dag(&[("a", &["z"])]), "`after` names `z`, and no workflow of this job is called that"),
    ];
    for (draft, message) in table {
        assert_eq!(refuse(draft), message);
    }
}

#[test]
fn cycles_are_refused_by_a_name_on_the_cycle() {
    assert_eq!(
        refuse(dag(&[("a", &["a"])])),
        "`after` leads from `a` back to itself; dependencies cannot form a cycle"
    );
    let behind = refuse(dag(&[("end", &["b"]), ("a", &["b"]), ("b", &["a"])]));
    assert!(behind.contains("`a`") || behind.contains("`b`"), "{behind}");
    let diamond = accept(dag(&[("top", &[]), ("l", &["top"]), ("r", &["top", "top"]), ("end", &["r", "l"])]));
    assert_eq!(&*diamond.workflows[3].after, &[1, 2]);
    assert_eq!(&*diamond.workflows[2].after, &[0], "a dependency that is named twice counts once");
}

#[test]
fn several_workflows_need_names() {
    let mut draft = one();
    draft.workflows.push(draft.workflows[0].clone());
    assert_eq!(refuse(draft), "`workflows.name` must be given for every workflow of a job that has several");
}

#[test]
fn a_very_long_workflow_list_is_refused_before_it_is_read() {
    let draft = Draft { workflows: vec![WorkflowDraft::default(); 100_000], ..Draft::default() };
    assert_eq!(refuse(draft), "`workflows` is too much: at most 1000 workflows in one job");
}
