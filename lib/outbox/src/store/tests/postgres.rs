//! What only PostgreSQL can do to us: transactions side by side.

use std::collections::HashSet;

use super::*;

fn url(world: &World) -> &str {
    match &world.writer {
        Writer::Postgres { url, .. } => url,
        Writer::Sqlite { .. } => unreachable!("these tests are PostgreSQL's"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_commits_late_under_a_low_id_is_found() {
    let mut world = World::postgres().await;
    let mut slow = client(url(&world)).await;
    let transaction = slow.transaction().await.unwrap();
    let low = enqueue(&transaction, Row::new("topic").key("a")).await.unwrap();
    let high = world.write_keys("a").await[0];
    assert!(low < high);
    let claim = world.claim().await;
    assert_eq!(ids(&claim), [high]);
    transaction.commit().await.unwrap();
    assert!(world.claim().await.rows.is_empty(), "its key is claimed");
    world.publish(&claim).await;
    assert_eq!(ids(&world.claim().await), [low]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_of_a_rolled_back_transaction_is_never_seen() {
    let mut world = World::postgres().await;
    let mut other = client(url(&world)).await;
    let transaction = other.transaction().await.unwrap();
    enqueue(&transaction, Row::new("topic")).await.unwrap();
    assert!(world.claim().await.rows.is_empty());
    transaction.rollback().await.unwrap();
    let written = world.write_keys("-").await;
    assert_eq!(ids(&world.claim().await), written);
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_somebody_has_locked_are_passed_over_and_their_key_with_them() {
    let mut world = World::postgres().await;
    let written = world.write_keys("a a b").await;
    let mut other = client(url(&world)).await;
    let transaction = other.transaction().await.unwrap();
    transaction.execute("SELECT id FROM onward_outbox WHERE id = $1 FOR UPDATE", &[&written[0]]).await.unwrap();
    let claim = world.claim().await;
    assert_eq!(ids(&claim), [written[2]], "nothing of a, and nobody waits for the lock");
    transaction.rollback().await.unwrap();
    assert_eq!(ids(&world.claim().await), written[..2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pollers_side_by_side_share_the_rows_and_keep_keys_apart() {
    let mut world = World::postgres().await;
    let keys: Vec<String> = (0..600).map(|row| format!("k{}", row % 20)).collect();
    world.write_keys(&keys.join(" ")).await;
    let mut pollers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = world.again().await;
        pollers.spawn(async move {
            let mut claims = Vec::new();
            for _ in 0..10 {
                claims.push(store.claim(&ClaimRule { rows: 50, ..RULE }).await.unwrap());
            }
            claims
        });
    }
    let claims: Vec<Claim> =
        pollers.join_all().await.into_iter().flatten().filter(|one| !one.rows.is_empty()).collect();
    let mut rows = HashSet::new();
    let mut keys = HashSet::new();
    for claim in &claims {
        let own: HashSet<&String> = claim.rows.iter().filter_map(|row| row.key.as_ref()).collect();
        assert!(own.iter().all(|key| keys.insert((*key).clone())), "a key is in two claims");
        assert!(claim.rows.iter().all(|row| rows.insert(row.id)), "a row is in two claims");
    }
    assert_eq!(keys.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_shape_is_refused_when_the_outbox_is_opened() {
    let url = Server::shared().database().unwrap();
    client(&url).await.batch_execute("CREATE TABLE onward_outbox (id bigint)").await.unwrap();
    let error = Postgres::open(&url).await.unwrap_err();
    assert!(matches!(&error, OutboxError::Table(why) if why.contains("dedup")), "{error}");
    let gone = url.replace("/test_", "/gone_");
    let error = Postgres::open(&gone).await.unwrap_err();
    assert!(matches!(&error, OutboxError::Unreachable(why) if why.contains("does not exist")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_starts_many_times_at_once_makes_one_table() {
    let url = Server::shared().database().unwrap();
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        starts.spawn(async move { Postgres::open(&url).await.map(drop) });
    }
    assert!(starts.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_listens_is_woken_by_a_commit() {
    let mut world = World::postgres().await;
    world.run(POSTGRES_NOTIFY).await;
    let (woken, mut wakes) = tokio::sync::mpsc::unbounded_channel();
    let listener = Listener::open(url(&world), move || _ = woken.send(())).await.unwrap();
    listener.check().await.unwrap();
    assert!(wakes.is_empty());
    world.write_keys("a").await;
    wakes.recv().await.expect("it listens");
}

/// What a turn costs must not depend on how many rows were published before it: they are gone from every index.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_as_much_after_many_published_rows_as_after_none() {
    let mut world = World::postgres().await;
    let round = async |world: &mut World| {
        world.write_keys(&"a b - ".repeat(30)).await;
        let claim = world.claim().await;
        assert_eq!(world.publish(&claim).await, 90);
    };
    round(&mut world).await;
    world.run("VACUUM ANALYZE onward_outbox").await;
    let pages = async |world: &World| {
        let Writer::Postgres { client, .. } = &world.writer else { unreachable!("PostgreSQL's") };
        let sizes = "SELECT sum(pg_relation_size(oid))::bigint FROM pg_class WHERE relname LIKE 'onward_outbox%'
                     AND relname NOT LIKE '%published%'";
        client.query_one(sizes, &[]).await.unwrap().get::<_, i64>(0)
    };
    let before = pages(&world).await;
    for _ in 0..40 {
        round(&mut world).await;
        world.run("VACUUM onward_outbox").await;
    }
    let after = pages(&world).await;
    assert!(after <= 2 * before, "the table and its indexes went from {before} to {after} bytes");
    assert_eq!(world.store.look(true).await.unwrap(), Backlog::default());
}
