//! A poller on a real table, with a publisher that does as it is told.

use std::collections::VecDeque;
use std::sync::Mutex;

use onward_core::health::Iteration;

use super::*;
use crate::publisher::{PublishError, Publisher};
use crate::row::Row;
use crate::store::tests::World;
use crate::store::{RowFilter, RowState};

/// Answers by topic, and remembers what it was given.
#[derive(Clone, Default)]
struct ScriptedPublisher {
    calls: Arc<Mutex<Vec<Vec<i64>>>>,
    /// Answers that it gives before it goes by topics.
    script: Arc<Mutex<VecDeque<Step>>>,
    keeps_order: bool,
}

#[derive(Clone, Copy)]
enum Step {
    Outage,
    TooFewAnswers,
    Hang,
}

impl ScriptedPublisher {
    fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        let script = Arc::new(Mutex::new(steps.into_iter().collect()));
        Self { script, ..Self::default() }
    }

    fn calls(&self) -> Vec<Vec<i64>> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Publisher for ScriptedPublisher {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        self.calls.lock().unwrap().push(rows.iter().map(|row| row.id).collect());
        let step = self.script.lock().unwrap().pop_front();
        let answer = |row: &Row| match row.topic.as_str() {
            "poison" => Err(PublishError::Refused("poison".into())),
            _ => Ok(()),
        };
        match step {
            None if rows.iter().any(|row| row.topic == "bomb") => panic!("a bomb"),
            None => rows.iter().map(answer).collect(),
            Some(Step::Outage) => vec![Err(PublishError::Unavailable("outage".into())); rows.len()],
            Some(Step::TooFewAnswers) => vec![Ok(()); rows.len() - 1],
            Some(Step::Hang) => core::future::pending().await,
        }
    }

    fn keeps_order(&self) -> bool {
        self.keeps_order
    }
}

struct Alone;

impl Watcher for Alone {
    fn published(&self, _: u64) {}
    fn beat(&self) {}
    fn seen(&self, _: UnpublishedRows) {}
    fn is_stopping(&self) -> bool {
        false
    }
}

async fn rig(publisher: &ScriptedPublisher) -> (World, Poller) {
    let world = World::sqlite().await;
    let outbox = Outbox { store: Arc::new(world.again().await) };
    // Long waits: what was refused must not be due again while a turn goes on, however slow the computer is.
    let day = Duration::from_secs(86_400);
    (world, outbox.publish_to(publisher.clone()).retry(day, day))
}

async fn turn(poller: &Poller) -> Iteration {
    poller.turn(&Alone).await.unwrap().iteration()
}

fn poison(key: &str) -> Row {
    Row::new("poison").key(key)
}

#[tokio::test]
async fn rows_of_a_key_are_in_calls_one_after_the_other() {
    let publisher = ScriptedPublisher::default();
    let (mut world, poller) = rig(&publisher).await;
    let ids = world.write_keys("a a - b a").await;
    assert_eq!(turn(&poller).await, Iteration::Progress(5));
    assert_eq!(publisher.calls(), [vec![ids[0], ids[2], ids[3]], vec![ids[1]], vec![ids[4]]]);
    assert_eq!(turn(&poller).await, Iteration::Idle);
    let whole = ScriptedPublisher { keeps_order: true, ..ScriptedPublisher::default() };
    let (mut world, poller) = rig(&whole).await;
    let ids = world.write_keys("a a - b a").await;
    assert_eq!(turn(&poller).await, Iteration::Progress(5));
    assert_eq!(whole.calls(), [ids]);
}

/// The false green: an outage in which all rows wait read as idle, and one that counts attempts parks them all.
#[tokio::test]
async fn an_outage_parks_no_row_however_long_it_is() {
    let publisher = ScriptedPublisher::of(vec![Step::Outage; 50]);
    let (mut world, poller) = rig(&publisher).await;
    let poller = poller.max_attempts(3);
    world.write_keys("a - a").await;
    for _ in 0..50 {
        assert_eq!(turn(&poller).await, Iteration::Failed { code: "publisher_unavailable" });
        assert_eq!(publisher.calls().len(), 1, "the first failure ends the turn");
    }
    assert_eq!(world.attempts().await, [0, 0, 0]);
    assert_eq!(turn(&poller).await, Iteration::Progress(3));
}

#[tokio::test]
async fn a_refused_row_stops_its_key_and_nothing_else() {
    let publisher = ScriptedPublisher::default();
    let (mut world, poller) = rig(&publisher).await;
    let poller = poller.max_attempts(2);
    let row = |key: &str| Row::new("topic").key(key);
    let ids = world.write([poison("a"), row("a"), row("b"), row("a")]).await;
    assert_eq!(turn(&poller).await, Iteration::Degraded { ok: 1, failed: 1 });
    assert_eq!(publisher.calls(), [[ids[0], ids[2]]], "the others of a were not published");
    assert_eq!(world.attempts().await, [1, 0, 0], "and not tried");
    assert_eq!(turn(&poller).await, Iteration::Skipped, "it waits for its retry");
    world.end_waits().await;
    assert_eq!(turn(&poller).await, Iteration::Failed { code: "nothing_published" });
    let parked = world.store.list(&RowFilter::default().parked(), 9).await.unwrap();
    assert_eq!((parked.len(), parked[0].id, parked[0].last_error.as_deref()), (1, ids[0], Some("poison")));
    assert_eq!(turn(&poller).await, Iteration::Idle, "what is held by a parked row waits for a person");
    world.write_keys("c").await;
    assert_eq!(turn(&poller).await, Iteration::Progress(1), "and others move");
    let poller = poller.on_poison(OnPoison::Skip);
    assert_eq!(turn(&poller).await, Iteration::Progress(2));
}

#[tokio::test]
async fn a_row_behind_a_refused_one_in_one_call_is_not_to_blame() {
    let publisher = ScriptedPublisher { keeps_order: true, ..ScriptedPublisher::default() };
    let (mut world, poller) = rig(&publisher).await;
    world.write([poison("a"), poison("a"), Row::new("topic")]).await;
    assert_eq!(turn(&poller).await, Iteration::Degraded { ok: 1, failed: 1 });
    assert_eq!(world.attempts().await, [1, 0]);
}

#[tokio::test]
async fn answers_that_are_missing_publish_nothing_for_good() {
    let publisher = ScriptedPublisher::of([Step::TooFewAnswers]);
    let (mut world, poller) = rig(&publisher).await;
    world.write_keys("a b c").await;
    assert_eq!(turn(&poller).await, Iteration::Degraded { ok: 2, failed: 1 });
    assert_eq!(world.attempts().await, [0]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_before_its_lease_does() {
    let publisher = ScriptedPublisher::of([Step::Hang]);
    let (mut world, poller) = rig(&publisher).await;
    world.write_keys("a").await;
    let began = Instant::now();
    assert_eq!(turn(&poller).await, Iteration::Failed { code: "publisher_unavailable" });
    assert!(began.elapsed() > Duration::from_secs(20) && began.elapsed() < poller.rule.lease, "{:?}", began.elapsed());
    assert_eq!(world.store.list(&RowFilter::default(), 9).await.unwrap()[0].state, RowState::Waiting);
}

#[tokio::test]
async fn a_claim_that_has_been_going_on_for_long_is_renewed_or_given_up() {
    let publisher = ScriptedPublisher::default();
    let (mut world, poller) = rig(&publisher).await;
    let ids = world.write_keys("a a").await;
    let claim = world.claim().await;
    world.end_leases().await;
    // Whoever claims it now has taken it from the first.
    let other = world.claim().await;
    assert_eq!(other.rows.len(), 2);
    let long_ago = Instant::now() - poller.rule.lease.mul_f64(0.6);
    let done = Publishing::new(&poller, claim.token, claim.rows, long_ago, false).run(&Alone).await;
    assert_eq!((done.settlement.len(), done.unavailable.is_none()), (0, true));
    assert!(publisher.calls().is_empty(), "rows of another are not published");
    let done = Publishing::new(&poller, other.token, other.rows, long_ago, false).run(&Alone).await;
    assert_eq!(done.settlement.published, ids);
}

/// The row that the publisher panics with is found out, like one that kills its process, and nobody else pays for it.
#[tokio::test]
async fn a_row_that_the_publisher_panics_with_is_parked_alone() {
    let publisher = ScriptedPublisher::default();
    let (mut world, poller) = rig(&publisher).await;
    let ids = world.write([Row::new("topic").key("a"), Row::new("bomb").key("b"), Row::new("topic").key("c")]).await;
    let mut panics = 0;
    while turn(&poller).await == (Iteration::Failed { code: "publisher_panicked" }) {
        panics += 1;
        assert!(panics <= 2 * poller.rule.max_attempts, "it goes on for ever");
        assert_eq!(turn(&poller).await, Iteration::Skipped, "its rows are left to their lease");
        world.end_leases().await;
    }
    while turn(&poller).await != Iteration::Idle {
        world.end_leases().await;
    }
    let left = world.store.list(&RowFilter::default(), 9).await.unwrap();
    assert_eq!(left.iter().map(|row| (row.id, row.state)).collect::<Vec<_>>(), [(ids[1], RowState::Parked)]);
    assert_eq!(poller.counts.published.load(Relaxed), 2);
}

/// What others hold, and cannot publish either, is no empty outbox.
#[tokio::test]
async fn rows_in_other_hands_are_no_empty_outbox() {
    let (mut world, poller) = rig(&ScriptedPublisher::default()).await;
    world.write_keys("a a").await;
    let claim = world.claim().await;
    let seen = poller.turn(&Alone).await.unwrap();
    assert_eq!((seen.iteration(), seen.is_all_claimed()), (Iteration::Skipped, true));
    world.publish(&claim).await;
    assert_eq!(turn(&poller).await, Iteration::Idle);
}

/// Steps are counted, and the process may be told to stop after so many.
#[derive(Default)]
struct Steps {
    seen: Mutex<Vec<u64>>,
    stop_after: Option<usize>,
}

impl Watcher for Steps {
    fn published(&self, rows: u64) {
        self.seen.lock().unwrap().push(rows);
    }
    fn beat(&self) {}
    fn seen(&self, _: UnpublishedRows) {}
    fn is_stopping(&self) -> bool {
        self.stop_after.is_some_and(|after| self.seen.lock().unwrap().len() >= after)
    }
}

#[tokio::test]
async fn each_round_is_a_step_until_a_row_fails() {
    let (mut world, poller) = rig(&ScriptedPublisher::default()).await;
    world.write([Row::new("topic").key("a"), Row::new("topic").key("a"), Row::new("topic").key("b")]).await;
    let steps = Steps::default();
    assert_eq!(poller.turn(&steps).await.unwrap().iteration(), Iteration::Progress(3));
    assert_eq!(*steps.seen.lock().unwrap(), [2, 1]);
    world.write([Row::new("topic").key("a"), Row::new("topic").key("a"), poison("b")]).await;
    let steps = Steps::default();
    assert_eq!(poller.turn(&steps).await.unwrap().iteration(), Iteration::Degraded { ok: 2, failed: 1 });
    assert!(steps.seen.lock().unwrap().is_empty(), "a turn that is degraded refreshes nothing");
}

#[tokio::test]
async fn a_stop_in_the_middle_of_a_claim_gives_back_what_is_left() {
    let publisher = ScriptedPublisher::default();
    let (mut world, poller) = rig(&publisher).await;
    let ids = world.write_keys("a a a a a").await;
    let steps = Steps { stop_after: Some(2), ..Steps::default() };
    assert_eq!(poller.turn(&steps).await.unwrap().iteration(), Iteration::Progress(2));
    assert_eq!(publisher.calls(), [[ids[0]], [ids[1]]]);
    assert_eq!(world.attempts().await, [0, 0, 0], "the others have not been tried");
    assert_eq!(turn(&poller).await, Iteration::Progress(3));
    assert_eq!(publisher.calls(), [[ids[2]], [ids[3]], [ids[4]]], "and nothing is published twice");
}
