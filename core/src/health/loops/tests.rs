use super::*;
use Iteration::{Idle, Progress, Skipped};
use LoopReason::*;
use LoopState::*;

const FAILED: Iteration = Iteration::Failed { code: "refused" };
const PARTLY: Iteration = Iteration::Degraded { ok: 3, failed: 1 };
const NOT_EVEN_PARTLY: Iteration = Iteration::Degraded { ok: 0, failed: 4 };

fn s(seconds: u64) -> Awake {
    Awake::from_ms(seconds * 1000)
}

/// Freshness 60 s, three in a row, recovery by two, grace 30 s, an iteration may take 40 s.
fn rule() -> LoopRule {
    LoopRule { max_iteration: Duration::from_secs(40), ..LoopRule::default() }
}

#[derive(Clone, Copy, Debug)]
enum In {
    Begin,
    End(Iteration),
    Abandoned,
    Step,
    Beat,
    /// Wait until this second.
    Wait(u64),
    /// Crashed; started again at this second.
    Crash(u64),
    Stop,
    Finish,
    Died,
}
use In::*;

fn play(rule: LoopRule, inputs: &[(u64, In)]) -> LoopHealth {
    let mut health = LoopHealth::started(rule, s(0));
    for &(at, input) in inputs {
        match input {
            Begin => health.begin(s(at)),
            End(iteration) => health.end(s(at), iteration),
            Abandoned => health.abandoned(s(at)),
            Step => health.step(s(at)),
            Beat => health.beat(s(at)),
            Wait(until) => health.waiting(s(at), s(until)),
            Crash(until) => health.restarting(s(at), s(until), "panicked"),
            Stop => health.stopping(s(at)),
            Finish => health.finished(s(at)),
            Died => health.died(s(at)),
        }
    }
    health
}

/// The reports; then the state at each second, its reason, and its beginning.
type Row = (&'static str, &'static [(u64, In)], &'static [(u64, LoopState, LoopReason, u64)]);

const OK: In = End(Progress(1));

const TABLE: &[Row] = &[
    (
        "a loop that never turns has its grace, and stalls",
        &[],
        &[
            (29, Starting, NoSuccessYet, 0),
            (30, Failing, NeverSucceeded, 30),
            (59, Failing, NeverSucceeded, 30),
            (60, Stalled, NotTurning, 60),
        ],
    ),
    ("a success ends the start", &[(5, OK)], &[(5, Healthy, WithinBudgetAndFresh, 5)]),
    ("so does an empty source that was asked", &[(5, End(Idle))], &[(5, Healthy, WithinBudgetAndFresh, 5)]),
    ("but not one that was skipped", &[(5, End(Skipped))], &[(5, Starting, NoSuccessYet, 0)]),
    ("nor progress by nothing", &[(5, End(Progress(0)))], &[(5, Starting, NoSuccessYet, 0)]),
    (
        "failures inside the grace spend nothing",
        &[(1, End(FAILED)), (2, End(FAILED)), (3, End(FAILED)), (4, End(FAILED)), (5, OK)],
        &[(5, Healthy, WithinBudgetAndFresh, 5)],
    ),
    (
        "failures after the first success do, inside the grace too",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, End(FAILED))],
        &[(4, Failing, BudgetSpent, 4)],
    ),
    (
        "two of three failures are tolerated",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED))],
        &[(3, Healthy, WithinBudgetAndFresh, 1)],
    ),
    (
        "a success in between starts the count again",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, OK), (5, End(FAILED)), (6, End(FAILED))],
        &[(6, Healthy, WithinBudgetAndFresh, 1)],
    ),
    (
        "partial failures spend the budget as well",
        &[(1, OK), (2, End(PARTLY)), (3, End(PARTLY)), (4, End(PARTLY))],
        &[(4, Degraded, BudgetSpent, 4)],
    ),
    (
        "partial with nothing done is failing",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, End(NOT_EVEN_PARTLY))],
        &[(4, Failing, BudgetSpent, 4)],
    ),
    (
        "partial failures refresh nothing",
        &[(1, OK), (50, End(PARTLY)), (55, End(PARTLY))],
        &[(60, Healthy, WithinBudgetAndFresh, 1), (61, Degraded, NotFresh, 61)],
    ),
    (
        "skipping refreshes nothing, and spends nothing",
        &[(1, OK), (20, End(Skipped)), (30, End(Skipped)), (40, End(Skipped)), (60, End(Skipped))],
        &[(60, Healthy, WithinBudgetAndFresh, 1), (61, Failing, NotFresh, 61), (120, Stalled, NotTurning, 120)],
    ),
    (
        "one success after a spent budget is not enough, two are",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, End(FAILED)), (5, OK)],
        &[(5, Degraded, Recovering, 4)],
    ),
    (
        "two in a row are",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, End(FAILED)), (5, OK), (6, End(Idle))],
        &[(6, Healthy, WithinBudgetAndFresh, 6)],
    ),
    (
        "two not in a row are not",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, End(FAILED)), (5, OK), (6, End(FAILED)), (7, OK)],
        &[(7, Degraded, Recovering, 4)],
    ),
    (
        "an iteration that hangs",
        &[(1, OK), (10, Begin)],
        &[(49, Healthy, WithinBudgetAndFresh, 1), (50, Stalled, IterationTooLong, 50)],
    ),
    (
        "one that hangs at the start has the grace",
        &[(1, Begin)],
        &[(29, Starting, NoSuccessYet, 0), (30, Failing, NeverSucceeded, 30), (41, Stalled, IterationTooLong, 41)],
    ),
    (
        "a long iteration outlives freshness and does not stall",
        &[(1, OK), (30, Begin)],
        &[(61, Degraded, NotFresh, 61), (69, Degraded, NotFresh, 61)],
    ),
    (
        "no iteration comes",
        &[(1, OK), (2, End(FAILED))],
        &[(60, Healthy, WithinBudgetAndFresh, 1), (61, Failing, NotFresh, 61), (62, Stalled, NotTurning, 62)],
    ),
    ("fresh again with the next success", &[(1, OK), (70, OK)], &[(70, Healthy, WithinBudgetAndFresh, 70)]),
    (
        "beginning the next without a report fails the one before",
        &[(1, OK), (2, Begin), (3, Begin), (4, Begin), (5, Begin), (6, End(FAILED))],
        &[(6, Failing, BudgetSpent, 5)],
    ),
    (
        "dropping and crashing are failures",
        &[(1, OK), (2, Begin), (3, Abandoned), (4, Begin), (5, Crash(5)), (6, Crash(6)), (7, Begin)],
        &[(7, Failing, BudgetSpent, 6)],
    ),
    (
        "dropping what was reported is not",
        &[(1, OK), (2, Begin), (3, End(Idle)), (3, Abandoned), (4, Abandoned), (5, Abandoned), (6, Abandoned)],
        &[(6, Healthy, WithinBudgetAndFresh, 1)],
    ),
    (
        "stopping covers what else there is, and begins once",
        &[(1, OK), (2, Begin), (3, Stop), (9, Stop)],
        &[(9, Stopping, ToldToStop, 3), (41, Stopping, ToldToStop, 3)],
    ),
    (
        "but an iteration that hangs all the same",
        &[(1, OK), (2, Begin), (3, Stop)],
        &[(41, Stopping, ToldToStop, 3), (42, Stalled, IterationTooLong, 42)],
    ),
    ("and none has to come", &[(1, OK), (3, Stop)], &[(900, Stopping, ToldToStop, 3)]),
    (
        "a step refreshes, and a long iteration that steps does not hang",
        &[(1, OK), (10, Begin), (45, Step), (80, Step), (115, Step)],
        &[(154, Healthy, WithinBudgetAndFresh, 1), (155, Stalled, IterationTooLong, 155)],
    ),
    (
        "the first iteration steps, and that is success enough",
        &[(1, Begin), (25, Step)],
        &[(25, Healthy, WithinBudgetAndFresh, 25), (64, Healthy, WithinBudgetAndFresh, 25)],
    ),
    (
        "an iteration that beats does not hang, and is not fresh by it",
        &[(1, OK), (10, Begin), (45, Beat), (80, Beat), (115, Beat)],
        &[(115, Degraded, NotFresh, 61), (154, Degraded, NotFresh, 61), (155, Stalled, IterationTooLong, 155)],
    ),
    (
        "steps refill no budget",
        &[(1, OK), (2, End(FAILED)), (3, End(FAILED)), (4, Begin), (5, Step), (6, End(FAILED))],
        &[(6, Failing, BudgetSpent, 6)],
    ),
    (
        "steps between iterations count where several are under way at a time",
        &[(1, OK), (50, Step)],
        &[(109, Healthy, WithinBudgetAndFresh, 1), (110, Stalled, NotTurning, 110)],
    ),
    (
        "a chosen wait is no stall, and refreshes nothing",
        &[(1, OK), (2, Wait(200))],
        &[(60, Healthy, WithinBudgetAndFresh, 1), (61, Degraded, NotFresh, 61), (239, Degraded, NotFresh, 61)],
    ),
    (
        "a wait that has ended without a turn is",
        &[(1, OK), (2, Wait(7))],
        &[(46, Healthy, WithinBudgetAndFresh, 1), (47, Stalled, NotTurning, 47)],
    ),
    (
        "waiting without a report fails the iteration before",
        &[(1, OK), (2, Begin), (3, Wait(4)), (5, Begin), (6, Wait(7)), (8, Begin), (9, Wait(10))],
        &[(9, Failing, BudgetSpent, 9)],
    ),
    (
        "a crash is seen at once, and until something succeeds",
        &[(1, OK), (2, Crash(5)), (5, Begin), (6, End(Skipped))],
        &[(6, Restarting, Crashed, 2), (60, Restarting, Crashed, 2)],
    ),
    (
        "also inside the grace",
        &[(2, Crash(5))],
        &[(2, Restarting, Crashed, 2), (4, Restarting, Crashed, 2), (44, Restarting, Crashed, 2)],
    ),
    (
        "a restart that does not come is a stall",
        &[(1, OK), (2, Crash(5))],
        &[(44, Restarting, Crashed, 2), (45, Stalled, NotTurning, 45)],
    ),
    ("a success ends it", &[(1, OK), (2, Crash(5)), (5, Begin), (6, OK)], &[(6, Healthy, WithinBudgetAndFresh, 6)]),
    ("and so does a step", &[(1, OK), (2, Crash(5)), (5, Begin), (6, Step)], &[(6, Healthy, WithinBudgetAndFresh, 6)]),
    (
        "crashes spend the budget",
        &[(1, OK), (2, Crash(3)), (4, Crash(5)), (6, Crash(7)), (7, Begin)],
        &[(7, Failing, BudgetSpent, 6)],
    ),
    (
        "finished is healthy for ever",
        &[(1, OK), (2, Finish)],
        &[(2, Finished, AllDone, 2), (900, Finished, AllDone, 2)],
    ),
    ("and does not die of it", &[(1, OK), (2, Finish), (3, Died)], &[(9, Finished, AllDone, 2)]),
    ("ending after a stop is stopping", &[(1, OK), (2, Stop), (3, Finish)], &[(9, Stopping, ToldToStop, 2)]),
    ("dead is dead", &[(1, OK), (3, Stop), (8, Died), (9, OK)], &[(9, Dead, Gone, 8)]),
];

#[test]
fn state_table() {
    for (name, inputs, expected) in TABLE {
        let health = play(rule(), inputs);
        for &(at, state, reason, since) in *expected {
            assert_eq!(health.state(s(at)), LoopStatus { state, reason, since: s(since) }, "{name}: at {at} s");
        }
    }
}

#[test]
fn next_change_is_exact() {
    for (name, inputs, _) in TABLE {
        let health = play(rule(), inputs);
        let last = inputs.last().map_or(0, |(at, _)| *at);
        for from in last..200 {
            let now = health.state(s(from));
            let first = (from..300).find(|at| health.state(s(*at)) != now).map(s);
            assert_eq!(health.next_change(s(from)), first, "{name}: from {from} s");
        }
    }
}

#[test]
fn budgets() {
    let window = FailureBudget::Window { n: 3, within: Duration::from_secs(24) };
    let ratio = FailureBudget::Ratio { ratio: 0.5, min_sample: 4, within: Duration::from_secs(24) };
    const X: bool = false;
    const O: bool = true;
    // one iteration every 4 s, o is good -> is it inside its budget after the last
    let table: [(FailureBudget, &[bool], bool); 11] = [
        (FailureBudget::Consecutive(2), &[O, X], true),
        (FailureBudget::Consecutive(2), &[O, X, X], false),
        (FailureBudget::Consecutive(2), &[O, X, O, X, O, X], true),
        (window, &[O, X, O, X], true),
        (window, &[O, X, O, X, O, X], false),
        (window, &[O, X, O, O, X, O, O, X], true),
        (ratio, &[O, X, X], true),
        (ratio, &[O, X, O, X], false),
        (ratio, &[O, O, O, X, X], true),
        (ratio, &[O, O, O, X, X, X], false),
        (ratio, &[O, X, O, X, O, O, O, O, O, O, O, X], false),
    ];
    for (budget, iterations, inside) in table {
        let mut health = LoopHealth::started(LoopRule { budget, recovery: 99, ..rule() }, s(0));
        for (n, good) in iterations.iter().enumerate() {
            health.end(s(4 * n as u64), if *good { Progress(1) } else { FAILED });
        }
        let status = health.state(s(4 * (iterations.len() as u64 - 1)));
        assert_eq!(status.state == Healthy, inside, "{budget:?} {iterations:?}: {status:?}");
    }
}

#[test]
fn recovery_refills_the_whole_budget() {
    let budget = FailureBudget::Window { n: 2, within: Duration::from_secs(600) };
    let mut health = LoopHealth::started(LoopRule { budget, ..rule() }, s(0));
    for (at, iteration) in [(1, Idle), (2, FAILED), (3, FAILED), (4, Idle), (5, Idle), (6, FAILED)] {
        health.end(s(at), iteration);
    }
    assert_eq!(health.state(s(6)).state, Healthy);
    health.end(s(7), FAILED);
    assert_eq!(health.state(s(7)).state, Failing);
}

#[test]
fn what_is_restored_leaves_nothing_of_an_earlier_budget() {
    let within = Duration::from_secs(600);
    let budgets = [
        FailureBudget::Consecutive(3),
        FailureBudget::Window { n: 3, within },
        FailureBudget::Ratio { ratio: 0.5, min_sample: 3, within },
    ];
    for budget in budgets {
        let rule = LoopRule { budget, ..rule() };
        for failures in [2, 3] {
            let mut health = play(rule, &[(1, OK)]);
            (2..2 + failures).for_each(|at| health.end(s(at), FAILED));
            health.restore(s(10), s(9));
            let healthy = LoopStatus { state: Healthy, reason: WithinBudgetAndFresh, since: s(10) };
            for at in [11, 12] {
                assert_eq!(health.state(s(at)), healthy, "{budget:?}, {failures} failures before");
                health.end(s(at), FAILED);
            }
            assert_eq!(health.state(s(12)), healthy, "{budget:?}, {failures} failures before");
            health.end(s(13), FAILED);
            assert_eq!(health.state(s(13)).reason, BudgetSpent, "{budget:?}, {failures} failures before");
        }
    }
}

#[test]
fn the_last_failure_is_kept_with_its_code() {
    type Row = (&'static [(u64, In)], Option<&'static str>);
    // reported -> code
    let table: [Row; 5] = [
        (&[(1, OK)], None),
        (&[(1, OK), (2, End(FAILED)), (3, OK)], Some("refused")),
        (&[(2, End(PARTLY))], Some("degraded")),
        (&[(1, Begin), (2, Begin)], Some("not_reported")),
        (&[(2, Crash(3))], Some("panicked")),
    ];
    for (inputs, code) in table {
        let failure = play(rule(), inputs).last_failure();
        assert_eq!(failure, code.map(|code| LoopFailure { at: s(2), code }), "{inputs:?}");
    }
}
