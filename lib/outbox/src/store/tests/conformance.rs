//! What both databases must do.

use super::*;

const NONE: [i64; 0] = [];

/// Each question as a test of either database.
macro_rules! conformance {
    ($($question:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $question() {
                super::$question(super::World::postgres().await).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $question() {
                super::$question(super::World::sqlite().await).await;
            })*
        }
    };
}

conformance!(
    a_row_comes_as_it_was_written,
    a_claimed_row_is_nobody_elses,
    a_key_has_one_claim_at_a_time_and_its_rows_come_in_order,
    published_rows_are_gone_and_kept_ones_are_elsewhere,
    what_is_given_back_was_not_tried,
    a_refused_row_waits_and_its_key_with_it,
    a_parked_row_holds_its_key_or_is_skipped,
    replayed_rows_have_all_their_attempts_and_dropped_ones_are_gone,
    a_claim_that_was_replaced_settles_nothing,
    a_renewed_claim_does_not_end,
    rows_of_dead_holders_come_back_in_groups_that_shrink,
    rows_of_dead_holders_do_not_overtake_what_was_given_back_or_refused_before_them,
    a_row_that_kills_every_holder_is_parked,
    a_claim_is_bounded_by_bytes_as_well,
    a_look_sees_what_is_left_and_how_old_it_is,
    rows_are_listed_by_what_they_do,
);

async fn a_row_comes_as_it_was_written(mut world: World) {
    let row = Row::new("orders.paid").key("o-17").payload(vec![0, 159, 146, 150]).header("traceparent", "00-ab-cd-01");
    let ids = world.write([row.clone()]).await;
    let claim = world.claim().await;
    let Row { age, .. } = claim.rows[0];
    assert!(age < Duration::from_secs(600), "{age:?}");
    assert_eq!(claim.rows, [Row { id: ids[0], attempts: 1, age, ..row }]);
    // As other languages write it, with the table's own defaults.
    world.run("INSERT INTO onward_outbox (topic, payload) VALUES ('plain', 'x')").await;
    let claim = world.claim().await;
    assert_eq!((claim.rows[0].topic.as_str(), claim.rows[0].payload.as_slice()), ("plain", b"x".as_slice()));
    assert!(!claim.rows[0].dedup.is_nil() && claim.rows[0].headers.is_empty());
}

async fn a_claimed_row_is_nobody_elses(mut world: World) {
    let written = world.write_keys("- a - b -").await;
    let first = world.store.claim(&ClaimRule { rows: 2, ..RULE }).await.unwrap();
    assert_eq!(ids(&first), written[..2]);
    let second = world.claim().await;
    assert_eq!(ids(&second), written[2..]);
    assert_ne!(first.token, second.token);
    assert!(world.claim().await.rows.is_empty());
    assert_eq!(world.publish(&first).await + world.publish(&second).await, 5);
    assert_eq!(world.store.look(true).await.unwrap(), UnpublishedRows::default());
}

async fn a_key_has_one_claim_at_a_time_and_its_rows_come_in_order(mut world: World) {
    let written = world.write_keys("a a b a b").await;
    let first = world.store.claim(&ClaimRule { rows: 2, ..RULE }).await.unwrap();
    assert_eq!(ids(&first), written[..2], "the first two of a");
    let second = world.claim().await;
    assert_eq!(ids(&second), [written[2], written[4]], "a is claimed");
    assert!(world.claim().await.rows.is_empty());
    world.publish(&first).await;
    assert_eq!(ids(&world.claim().await), [written[3]]);
}

async fn published_rows_are_gone_and_kept_ones_are_elsewhere(mut world: World) {
    world.write_keys("a a").await;
    let claim = world.claim().await;
    let published = ids(&claim);
    let what = ClaimSettlement { published, ..ClaimSettlement::default() };
    assert_eq!(world.store.settle(claim.token, &what, true).await.unwrap(), 2);
    assert_eq!(world.store.list(&RowFilter::default(), 10).await.unwrap(), []);
    assert_eq!(world.store.prune(Duration::from_secs(60)).await.unwrap(), 0, "they are kept for a minute");
    world
        .run("UPDATE onward_outbox_published SET published_at = (SELECT min(created_at) FROM onward_outbox_published)")
        .await;
    assert_eq!(world.store.prune(Duration::ZERO).await.unwrap(), 2, "and no longer");
}

async fn what_is_given_back_was_not_tried(mut world: World) {
    let given_back = world.write_keys("a - a").await;
    for _ in 0..5 {
        let claim = world.claim().await;
        assert_eq!(ids(&claim), given_back);
        assert!(claim.rows.iter().all(|row| row.attempts == 1));
        let what = ClaimSettlement { given_back: given_back.clone(), ..ClaimSettlement::default() };
        assert_eq!(world.store.settle(claim.token, &what, false).await.unwrap(), 3);
        assert_eq!(world.attempts().await, [0, 0, 0]);
    }
}

async fn a_refused_row_waits_and_its_key_with_it(mut world: World) {
    let written = world.write_keys("a a").await;
    assert_eq!(world.refuse_first(&world.claim().await, false).await, 2);
    let more = world.write_keys("a b").await;
    let claim = world.claim().await;
    assert_eq!(ids(&claim), [more[1]], "a waits, b does not");
    world.publish(&claim).await;
    let backlog = world.store.look(true).await.unwrap();
    assert!(backlog.waiting && backlog.oldest.is_some() && backlog.parked == 0, "{backlog:?}");
    world.end_waits().await;
    let claim = world.claim().await;
    assert_eq!(ids(&claim), [written[0], written[1], more[0]], "in order");
    assert_eq!(claim.rows.iter().map(|row| row.attempts).collect::<Vec<_>>(), [2, 1, 1]);
}

async fn a_parked_row_holds_its_key_or_is_skipped(mut world: World) {
    let written = world.write_keys("a a b").await;
    assert_eq!(world.refuse_first(&world.claim().await, true).await, 3);
    world.end_waits().await;
    let claim = world.claim().await;
    assert_eq!(ids(&claim), [written[2]], "a is held");
    world.publish(&claim).await;
    let held = world.store.look(true).await.unwrap();
    assert_eq!(held, UnpublishedRows { depth: 1, parked: 1, oldest: None, waiting: false, claimed: false });
    let skipping = world.store.look(false).await.unwrap();
    assert!(skipping.waiting && skipping.oldest.is_some(), "{skipping:?}");
    let claim = world.store.claim(&ClaimRule { hold: false, ..RULE }).await.unwrap();
    assert_eq!(ids(&claim), [written[1]], "a is not held");
}

async fn replayed_rows_have_all_their_attempts_and_dropped_ones_are_gone(mut world: World) {
    let written = world.write_keys("a a").await;
    world.refuse_first(&world.claim().await, true).await;
    assert_eq!(world.store.replay(&RowFilter::ids(vec![written[1]])).await.unwrap(), NONE, "it is not parked");
    assert_eq!(world.store.drop_parked(&RowFilter::ids(vec![written[1]])).await.unwrap(), NONE);
    assert_eq!(world.store.replay(&RowFilter::default().topic("other")).await.unwrap(), NONE);
    assert_eq!(world.store.replay(&RowFilter::default().key("a")).await.unwrap(), [written[0]]);
    let claim = world.claim().await;
    assert_eq!(ids(&claim), written);
    assert_eq!(claim.rows[0].attempts, 1);
    world.refuse_first(&claim, true).await;
    assert_eq!(world.store.drop_parked(&RowFilter::default().topic("topic")).await.unwrap(), [written[0]]);
    assert_eq!(ids(&world.claim().await), [written[1]]);
}

async fn a_claim_that_was_replaced_settles_nothing(mut world: World) {
    world.write_keys("a").await;
    let late = world.claim().await;
    world.end_leases().await;
    let current = world.claim().await;
    assert_eq!((ids(&late), current.rows[0].attempts), (ids(&current), 2));
    assert_eq!(world.publish(&late).await, 0);
    assert_eq!(world.refuse_first(&late, true).await, 0);
    assert_eq!(world.store.renew(late.token, RULE.lease).await.unwrap(), NONE);
    assert_eq!(world.publish(&current).await, 1);
}

async fn a_renewed_claim_does_not_end(mut world: World) {
    let written = world.write_keys("a -").await;
    let claim = world.claim().await;
    world.end_leases().await;
    let mut renewed = world.store.renew(claim.token, RULE.lease).await.unwrap();
    renewed.sort_unstable();
    assert_eq!(renewed, written);
    assert!(world.claim().await.rows.is_empty());
}

async fn rows_of_dead_holders_come_back_in_groups_that_shrink(mut world: World) {
    let first = world.write_keys(&"a - ".repeat(32)).await;
    let rule = ClaimRule { rows: 64, ..RULE };
    assert_eq!(ids(&world.store.claim(&rule).await.unwrap()), first);
    world.end_leases().await;
    let fresh = world.write_keys("- a b").await;
    let again = world.store.claim(&rule).await.unwrap();
    assert_eq!(ids(&again), first[..8], "an eighth of them, before all others, the rest of them later");
    assert_eq!(again.rows[0].attempts, 2);
    let rest = world.store.claim(&rule).await.unwrap();
    let unkeyed: Vec<i64> = first[8..].iter().copied().filter(|id| (id - first[0]) % 2 == 1).take(8).collect();
    assert_eq!(ids(&rest), unkeyed, "a is claimed");
    world.publish(&again).await;
    world.publish(&rest).await;
    world.end_leases().await;
    let mut left = 48;
    while left > 0 {
        let claim = world.store.claim(&rule).await.unwrap();
        assert!(claim.rows.len() <= 8 && claim.rows.iter().all(|row| row.id < fresh[0]), "{:?}", ids(&claim));
        left -= world.publish(&claim).await;
    }
    assert_eq!(ids(&world.store.claim(&rule).await.unwrap()), fresh);
}

async fn a_row_that_kills_every_holder_is_parked(mut world: World) {
    let written = world.write_keys("a a b").await;
    let alone = ClaimRule { rows: 1, ..RULE };
    for attempt in 1..=3 {
        let claim = world.store.claim(&alone).await.unwrap();
        assert_eq!((ids(&claim), claim.rows[0].attempts, claim.parked), (vec![written[0]], attempt, 0));
        world.end_leases().await;
    }
    let claim = world.store.claim(&RULE).await.unwrap();
    assert_eq!((ids(&claim), claim.parked), (vec![written[2]], 1), "its key is held");
    let row = &world.store.list(&RowFilter::default().parked(), 10).await.unwrap()[0];
    assert_eq!((row.id, row.state, row.attempts), (written[0], RowState::Parked, 3));
    assert!(row.last_error.as_ref().unwrap().starts_with("claimed 3 times"), "{row:?}");
}

async fn a_claim_is_bounded_by_bytes_as_well(mut world: World) {
    let large = |key: &str| Row::new("topic").key(key).payload(vec![7; 400]);
    let written = world.write([large("a"), large("a"), large("b"), large("b")]).await;
    let claim = world.store.claim(&ClaimRule { bytes: 500, ..RULE }).await.unwrap();
    assert_eq!(ids(&claim), written[..2], "the second is begun before there is too much");
    let claim = world.store.claim(&ClaimRule { bytes: 1, ..RULE }).await.unwrap();
    assert_eq!(ids(&claim), written[2..3], "one is always taken");
}

async fn a_look_sees_what_is_left_and_how_old_it_is(mut world: World) {
    assert_eq!(world.store.look(true).await.unwrap(), UnpublishedRows::default());
    world.write_keys("a a b").await;
    let aged = match world.writer {
        Writer::Postgres { .. } => {
            "UPDATE onward_outbox SET created_at = created_at - interval '1 hour' WHERE key = 'a'"
        }
        Writer::Sqlite { .. } => "UPDATE onward_outbox SET created_at = created_at - 3600000 WHERE key = 'a'",
    };
    world.run(aged).await;
    let hour = Duration::from_secs(3_600);
    let backlog = world.store.look(true).await.unwrap();
    assert!((backlog.depth, backlog.parked, backlog.waiting) == (3, 0, true), "{backlog:?}");
    assert!(!backlog.claimed);
    assert!(backlog.oldest.is_some_and(|age| (hour..2 * hour).contains(&age)), "{backlog:?}");
    let claim = world.store.claim(&ClaimRule { rows: 1, ..RULE }).await.unwrap();
    let waiting = world.store.look(true).await.unwrap();
    assert!(
        waiting.waiting && waiting.oldest >= Some(hour),
        "b waits, and what is claimed is not published: {waiting:?}"
    );
    world.publish(&world.claim().await).await;
    let busy = world.store.look(true).await.unwrap();
    assert!(!busy.waiting && busy.claimed && busy.depth == 2, "the second of a is behind a claim: {busy:?}");
    world.end_leases().await;
    let ended = world.store.look(true).await.unwrap();
    assert!(ended.waiting && !ended.claimed, "nobody holds it any more: {ended:?}");
    world.publish(&claim).await;
    let left = world.store.look(true).await.unwrap();
    assert!(left.waiting && !left.claimed, "{left:?}");
}

async fn rows_are_listed_by_what_they_do(mut world: World) {
    let written = world.write_keys("a b c d").await;
    let mut claim = world.claim().await;
    claim.rows.truncate(2);
    world.refuse_first(&claim, false).await;
    let refusal = RowRefusal { id: written[2], error: "never".into(), retry_after: Duration::ZERO, park: true };
    let what = ClaimSettlement { refused: vec![refusal], ..ClaimSettlement::default() };
    world.store.settle(claim.token, &what, false).await.unwrap();
    let all = world.store.list(&RowFilter::default(), 10).await.unwrap();
    let found: Vec<_> = all.iter().map(|row| (row.id, row.state.code(), row.last_error.clone())).collect();
    let refused = all[0].last_error.clone().unwrap();
    assert!(refused.starts_with("no") && refused.ends_with("pe"), "{refused:?}");
    let expected = [
        (written[0], "refused", Some(refused)),
        (written[1], "waiting", None),
        (written[2], "parked", Some("never".into())),
        (written[3], "claimed", None),
    ];
    assert_eq!(found, expected);
    let list = async |filter: RowFilter, limit| {
        world.store.list(&filter, limit).await.unwrap().iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(list(RowFilter::default(), 2).await, written[..2]);
    assert_eq!(list(RowFilter::default().after(written[1]), 10).await, written[2..]);
    assert_eq!(list(RowFilter::default().parked(), 10).await, [written[2]]);
    assert_eq!(list(RowFilter::default().key("b"), 10).await, [written[1]]);
    assert_eq!(list(RowFilter::default().topic("other"), 10).await, [0_i64; 0]);
    assert_eq!(list(RowFilter::ids([written[3], 99]), 10).await, [written[3]]);
}

async fn rows_of_dead_holders_do_not_overtake_what_was_given_back_or_refused_before_them(mut world: World) {
    let written = world.write_keys("z z z z").await;
    let rule = ClaimRule { max_attempts: 100, ..RULE };
    // Two holders die; the third claims the first row alone.
    for _ in 0..2 {
        assert_eq!(ids(&world.store.claim(&rule).await.unwrap()), written);
        world.end_leases().await;
    }
    for _ in 0..3 {
        let alone = world.store.claim(&rule).await.unwrap();
        assert_eq!(ids(&alone), written[..1]);
        assert!(world.store.claim(&rule).await.unwrap().rows.is_empty(), "its key is claimed");
        let what = ClaimSettlement { given_back: ids(&alone), ..ClaimSettlement::default() };
        assert_eq!(world.store.settle(alone.token, &what, false).await.unwrap(), 1);
    }
    let alone = world.store.claim(&rule).await.unwrap();
    assert_eq!(world.refuse_first(&alone, false).await, 1);
    assert!(world.store.claim(&rule).await.unwrap().rows.is_empty(), "its key waits with it");
    let newer = world.write_keys("z").await;
    world.end_waits().await;
    let mut order = Vec::new();
    loop {
        let claim = world.store.claim(&rule).await.unwrap();
        if claim.rows.is_empty() {
            break;
        }
        order.extend(ids(&claim));
        world.publish(&claim).await;
    }
    assert_eq!(order, [written, newer].concat());
}
