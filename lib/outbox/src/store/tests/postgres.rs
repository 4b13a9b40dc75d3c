//! What only PostgreSQL can do to us: transactions side by side.

use std::collections::HashSet;

use tokio_postgres::types::{FromSql, ToSql, Type};

use super::*;
use crate::store::postgres::{CLAIM, LOOK, PLANNING};

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
    let claims: Vec<RowClaim> =
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

/// A handle and its clones share a connection, and a transaction is several statements.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn those_who_share_a_handle_do_not_mix_their_transactions() {
    let world = World::postgres().await;
    let store = std::sync::Arc::new(world.again().await);
    let mut users = tokio::task::JoinSet::new();
    for user in 0..8 {
        let store = store.clone();
        users.spawn(async move {
            for _ in 0..1_000 {
                match user % 2 {
                    0 => drop(store.claim(&RULE).await?),
                    _ => drop(store.look(true).await?),
                }
            }
            Ok::<(), OutboxError>(())
        });
    }
    while let Some(done) = users.join_next().await {
        assert_eq!(done.unwrap(), Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_another_shape_is_refused_when_the_outbox_is_opened() {
    let url = Server::shared().database().unwrap();
    client(&url).await.batch_execute("CREATE TABLE onward_outbox (id bigint)").await.unwrap();
    let error = PostgresRows::open(&url, Missing::Make).await.unwrap_err();
    assert!(matches!(&error, OutboxError::Table(why) if why.contains("dedup")), "{error}");
    let gone = url.replace("/test_", "/gone_");
    let error = PostgresRows::open(&gone, Missing::Make).await.unwrap_err();
    assert!(matches!(&error, OutboxError::Unreachable(why) if why.contains("does not exist")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_starts_many_times_at_once_makes_one_table() {
    let url = Server::shared().database().unwrap();
    let mut starts = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = url.clone();
        starts.spawn(async move { PostgresRows::open(&url, Missing::Make).await.map(drop) });
    }
    assert!(starts.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_listens_is_woken_by_a_commit() {
    let mut world = World::postgres().await;
    world.run(POSTGRES_NOTIFY).await;
    let (woken, mut wakes) = tokio::sync::mpsc::unbounded_channel();
    let listener = NotifyListener::open(url(&world), move || _ = woken.send(())).await.unwrap();
    listener.check().await.unwrap();
    assert!(wakes.is_empty());
    world.write_keys("a").await;
    let woken = tokio::time::timeout(Duration::from_secs(60), wakes.recv()).await;
    woken.expect("nobody is woken").expect("it listens");
}

/// Pages that a claim of a hundred rows touches, of which it takes none.
async fn cost_of_a_claim(world: &World) -> i64 {
    let token = crate::row::random_uuid();
    let params: [Param<'_>; 5] = [
        (&token, Type::UUID),
        (&1_000_i64, Type::INT8),
        (&100_i32, Type::INT4),
        (&i64::MAX, Type::INT8),
        (&true, Type::BOOL),
    ];
    cost(world, CLAIM, &params, 100).await
}

/// Pages that a look at the oldest of a hundred rows touches, and at how many there are.
async fn cost_of_a_look(world: &World) -> i64 {
    cost(world, LOOK, &[(&true, Type::BOOL), (&1_000_i64, Type::INT8)], 1).await
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Pages that a statement touches which answers with so many rows, where a hundred wait.
async fn cost(world: &World, statement: &str, params: &[Param<'_>], answers: u64) -> i64 {
    let Writer::Postgres { client, .. } = &world.writer else { unreachable!("these tests are PostgreSQL's") };
    world
        .run("INSERT INTO onward_outbox (topic, key, payload) SELECT 't', n, 'x' FROM generate_series(1, 100) n")
        .await;
    client.batch_execute(&format!("BEGIN; {PLANNING}")).await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}");
    let explained = client.query_typed(&explain, params).await.unwrap();
    client.batch_execute("ROLLBACK; DELETE FROM onward_outbox").await.unwrap();
    let explained: serde_json::Value = serde_json::from_str(&explained[0].get::<_, Json>(0).0).unwrap();
    let plan = &explained[0]["Plan"];
    assert_eq!(plan["Actual Rows"], answers, "{plan}");
    plan["Shared Hit Blocks"].as_i64().unwrap() + plan["Shared Read Blocks"].as_i64().unwrap()
}

/// The text of a column of JSON.
struct Json(String);

impl<'a> FromSql<'a> for Json {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(String::from_utf8(raw.to_vec())?))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::JSON
    }
}

/// The cost of a turn, and so the age of a row, must not depend on how many rows were published before it. Here
/// nobody vacuums: the entries of what was deleted are passed by, and the rows behind them are not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn claims_and_looks_cost_as_much_after_many_published_rows_as_after_none() {
    // A server of its own: a transaction that is open anywhere on it keeps entries from being marked.
    let server = Server::options().start().unwrap();
    let world = World::on(&server).await;
    world.run("ALTER TABLE onward_outbox SET (autovacuum_enabled = off)").await;
    let fill = |rows: u64| {
        let payload = "convert_to(repeat('x', 400), 'UTF8')";
        let rows = format!("SELECT 't', n % 500, {payload} FROM generate_series(1, {rows}) n");
        format!("INSERT INTO onward_outbox (topic, key, payload) {rows}")
    };
    let publish = async |rows: u64| {
        world.run(&fill(rows)).await;
        let mut published = 0;
        while published < rows {
            let claim = world.store.claim(&ClaimRule { rows: 1_000, ..RULE }).await.unwrap();
            published += world.publish(&claim).await;
        }
        // Whoever comes first after a deletion marks what it finds.
        assert!(world.claim().await.rows.is_empty());
        cost_of_a_claim(&world).await;
        cost_of_a_look(&world).await;
        (cost_of_a_claim(&world).await, cost_of_a_look(&world).await)
    };
    // After these an index is as deep as it will be for long.
    let (claim_before, look_before) = publish(1_000).await;
    let (after, look_after) = publish(12_000).await;
    // A look passes three times by the entries of what was deleted, of which a page of the index holds hundreds.
    for (what, before, after, tenths) in [("claim", claim_before, after, 13), ("look", look_before, look_after, 25)] {
        assert!(
            10 * after <= tenths * before,
            "a {what} touched {before} pages before, and {after} after 12,000 published rows"
        );
    }
    assert_eq!(world.store.to_vacuum().unwrap().vacuum(Duration::from_secs(60)).await, Ok(true));
    let vacuumed = cost_of_a_claim(&world).await;
    assert!(vacuumed < after, "{vacuumed} pages after it was vacuumed, and {after} before");
}
