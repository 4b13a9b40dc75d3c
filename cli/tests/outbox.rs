//! `onward outbox` from outside: what it prints, what it refuses, and a row that becomes a job.

mod support;

use std::path::Path;
use std::process::{Child, Output};

use onward_testkit::PostgresServer;
use serde_json::Value;
use support::process::until;
use support::{Node, PATIENCE, end, onward};
use tokio_postgres::{Client, NoTls};

fn outbox(database: &str, args: &[&str]) -> Output {
    let mut command = onward(&["outbox", args[0], "--database", database]);
    command.args(&args[1..]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn database() -> (String, Client) {
    let url = PostgresServer::shared().database().unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = onward(&["outbox", "schema", "--notify"]).output().unwrap();
    client.batch_execute(&text(&schema.stdout)).await.unwrap();
    (url, client)
}

/// Two rows that are parked, and one that waits behind the first.
const ROWS: &str = "
    INSERT INTO onward_outbox (topic, key, payload, attempts, parked_at, last_error)
    VALUES ('orders.paid', 'a', 'x', 8, now(), E'no\\nway'), ('orders.sent', 'b', 'y', 8, now(), 'never');
    INSERT INTO onward_outbox (topic, key, payload) VALUES ('orders.paid', 'a', 'z');";

#[tokio::test(flavor = "multi_thread")]
async fn parked_rows_are_listed_replayed_and_dropped() {
    let (url, client) = database().await;
    client.batch_execute(ROWS).await.unwrap();
    let listed = outbox(&url, &["list"]);
    let lines = text(&listed.stdout);
    let lines: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["ID", "STATE", "TOPIC", "KEY", "ATTEMPTS", "AGE", "BYTES", "ERROR"]);
    assert_eq!(lines[1][..5], ["1", "parked", "orders.paid", "a", "8"]);
    assert_eq!((lines[1][7], lines.len()), ("no\\nway", 4), "what somebody wrote steers no terminal");
    let found = json(&outbox(&url, &["list", "--parked", "--limit", "1", "--json"]));
    assert_eq!((&found["rows"][0]["id"], &found["next_cursor"]), (&1.into(), &"1".into()));
    let found = json(&outbox(&url, &["list", "--parked", "--cursor", "1", "--json"]));
    assert_eq!((&found["rows"][0]["last_error"], found["rows"][1].is_null()), (&"never".into(), true));

    let refused = outbox(&url, &["replay", "--topic", "orders.paid"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("1 row would be replayed\n  try: say --yes"), "{}", text(&refused.stderr));
    assert_eq!(json(&outbox(&url, &["replay", "--all", "--dry-run", "--json"]))["rows"], serde_json::json!([1, 2]));
    assert_eq!(text(&outbox(&url, &["replay", "--topic", "orders.paid", "--yes"]).stdout), "1 row replayed\n");
    assert_eq!(text(&outbox(&url, &["drop", "2"]).stdout), "1 row dropped\n");
    let missing = outbox(&url, &["drop", "3", "77"]);
    assert_eq!((missing.status.code(), text(&missing.stdout)), (Some(1), "0 rows dropped\n".into()));
    assert!(text(&missing.stderr).contains("2 rows not dropped: 3, 77"), "{}", text(&missing.stderr));
    let left = json(&outbox(&url, &["list", "--json"]));
    let states: Vec<_> = left["rows"].as_array().unwrap().iter().map(|row| (&row["id"], &row["state"])).collect();
    assert_eq!(states, [(&1.into(), &"waiting".into()), (&3.into(), &"waiting".into())]);
}

#[test]
fn what_cannot_be_done_is_said_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", folder.path().join("shop.db").display());
    for (args, database, code, said) in [
        (&["list"][..], "mysql://secret@db/shop", 2, "`mysql:…` is no database that an outbox can be in"),
        (&["list"], "postgres://nobody@127.0.0.1:1/shop", 1, "no connection to the database"),
        (&["replay"], &file, 2, "which rows to replay was not said"),
        (&["drop", "1", "--all"], &file, 2, "either name rows"),
        (&["run", "--to", "kafka:x"], &file, 2, "write nats:127.0.0.1:4222 or onward:http://127.0.0.1:7400"),
        (&["run", "--to", "onward:http://127.0.0.1:7400", "--max-backoff", "2m"], &file, 2, "backoff"),
        (&["run", "--to", "onward:http://127.0.0.1:7400", "--lease", "0s"], &file, 2, "shorter than 1s"),
        (&["run", "--to", "onward:http://127.0.0.1:7400", "--poll", "0s"], &file, 2, "shorter than 1ms"),
        (&["run", "--to", "nats:not a host"], &file, 2, "write it like nats:127.0.0.1:4222"),
        (&["run", "--to", "nats:127.0.0.1:1", "--probes", "nonsense"], &file, 1, "give --probes an address"),
        (&["list"], "postgres://app:secret@127.0.0.1:port/shop", 2, "invalid value for option `port`"),
        (&["list"], "sqlite:", 2, "`sqlite:` is no database that an outbox can be in"),
        (&["list"], "sqlite:/proc/none/shop.db", 1, "there is no file /proc/none/shop.db; nothing was made"),
        (&["drop", "--all"], "sqlite:/proc/none/shop.db", 1, "the database that your program writes to"),
        (&["run", "--to", "nats:127.0.0.1:1"], "sqlite:/proc/none/shop.db", 1, "see that the folder is there"),
    ] {
        let output = outbox(database, args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(said) && !stderr.contains("secret"), "{args:?}: {stderr}");
    }
    let output = onward(&["outbox", "schema", "sqlite", "--notify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// The page's own SQL, statement by statement, in the placeholders of each language.
#[tokio::test(flavor = "multi_thread")]
async fn the_statements_of_the_page_write_rows() {
    let page = include_str!("../../docs/outbox.md");
    let (url, client) = database().await;
    client
        .batch_execute("CREATE TABLE orders (id bigint PRIMARY KEY, paid bool); INSERT INTO orders VALUES (17)")
        .await
        .unwrap();
    let blocks = |language: &str| -> Vec<&str> {
        let fence = format!("```{language}\n");
        let blocks = page.split(&fence).skip(1);
        blocks.map(|rest| rest.split("\n```").next().unwrap()).collect()
    };
    for block in blocks("sql") {
        client.batch_execute(block).await.unwrap();
    }
    let insert = |block: &str| {
        let statement = block.split('"').find(|text| text.starts_with("INSERT INTO")).expect("it inserts");
        statement.replace("%s, %s, %s", "$1, $2, $3")
    };
    let (topic, key, json) = ("orders.paid", "17", r#"{"order": 17}"#);
    client.execute(&insert(blocks("python")[0]), &[&topic, &key, &json.as_bytes()]).await.unwrap();
    client.execute(&insert(blocks("ruby")[0]), &[&topic, &key, &json]).await.unwrap();
    client.execute(&insert(blocks("go")[0]), &[&topic, &key, &json.as_bytes()]).await.unwrap();
    let rows = client.query("SELECT topic, key, payload FROM onward_outbox", &[]).await.unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let found: (&str, &str, &[u8]) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(found, (topic, key, json.as_bytes()));
    }
    let paid: bool = client.query_one("SELECT paid FROM orders", &[]).await.unwrap().get(0);
    assert!(paid);
    assert_eq!(json_rows(&url), 4);
}

fn json_rows(url: &str) -> usize {
    json(&outbox(url, &["list", "--json"]))["rows"].as_array().unwrap().len()
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

fn jobs(node: &Node, data: &Path) -> Vec<Value> {
    let listed = json(&node.call(data, &["list", "--json"]));
    listed["jobs"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_become_jobs_of_a_node_and_a_row_that_it_refuses_is_parked() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let node = Node::start(&data);
    let database = format!("sqlite:{}", folder.path().join("shop.db").display());
    let missing = outbox(&database, &["list"]);
    assert_eq!(
        (missing.status.code(), folder.path().join("shop.db").exists()),
        (Some(1), false),
        "a look makes nothing"
    );
    let shop = rusqlite::Connection::open(folder.path().join("shop.db")).unwrap();
    shop.execute_batch(&text(&onward(&["outbox", "schema", "sqlite"]).output().unwrap().stdout)).unwrap();
    assert_eq!(json_rows(&database), 0);
    shop.execute_batch(
        r#"INSERT INTO onward_outbox (topic, key, payload, headers) VALUES
             ('orders.paid', '17', '{"order": 17}', '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'),
             ('orders.paid', '17', x'ff00', '{}'),
             (printf('%.*c', 5000, 'x'), NULL, '1', '{}');
           CREATE TABLE first AS SELECT * FROM onward_outbox WHERE id = 1"#,
    )
    .unwrap();
    let to = format!("onward:{}", node.url);
    let mut command = onward(&["outbox", "run", "--database", &database, "--to", &to, "--max-attempts", "1"]);
    let mut poller = Running(command.env("ONWARD_LOG", "error").spawn().unwrap());
    let one_is_left = async || {
        let rows = json(&outbox(&database, &["list", "--json"]));
        let rows = rows["rows"].as_array().unwrap();
        (rows.len() == 1 && rows[0]["state"] == "parked").then_some(())
    };
    until("both are jobs, and one is parked", PATIENCE, one_is_left).await;
    let published = jobs(&node, &data);
    assert_eq!(published.iter().filter(|job| job["kind"] == "orders.paid").count(), 2, "{published:?}");
    let shown = json(&node.call(&data, &["show", published[1]["id"].as_str().unwrap(), "--json"]));
    assert_eq!(shown["workflows"][0]["payload"], serde_json::json!({"order": 17}));
    assert_eq!(shown["limits"], serde_json::json!([{"key": "17", "max": 1, "ordered": true}]), "{shown}");
    assert!(shown.to_string().contains("4bf92f3577b34da6a3ce929d0e0e4736"), "{shown}");

    // As after a crash between the publication and its record.
    shop.execute_batch(
        "INSERT INTO onward_outbox (dedup, topic, key, payload, headers)
         SELECT dedup, topic, key, payload, headers FROM first",
    )
    .unwrap();
    until("the row is published once more", PATIENCE, one_is_left).await;
    assert_eq!(jobs(&node, &data).len(), published.len(), "a row that is published twice is one job");

    shop.execute_batch(
        "CREATE TABLE given_back (id INTEGER);
         CREATE TRIGGER note_given_back AFTER UPDATE OF attempts ON onward_outbox WHEN NEW.attempts < OLD.attempts
         BEGIN INSERT INTO given_back VALUES (NEW.id); END",
    )
    .unwrap();
    node.kill();
    shop.execute_batch("INSERT INTO onward_outbox (topic, payload) VALUES ('orders.sent', '1')").unwrap();
    let count = |what: &str| shop.query_one(&format!("SELECT count(*) FROM {what}"), [], |row| row.get::<_, u32>(0));
    until("the row is given back, or parked", PATIENCE, async || {
        let parked = count("onward_outbox WHERE parked_at IS NOT NULL").unwrap() - 1;
        (parked + count("given_back").unwrap() > 0).then_some(())
    })
    .await;
    support::process::signal(poller.0.id(), rustix::process::Signal::TERM);
    assert_eq!(support::process::ended(&mut poller.0, PATIENCE).await, Some(0));
    let waiting = "onward_outbox WHERE topic = 'orders.sent' AND parked_at IS NULL AND attempts = 0";
    assert_eq!(count(waiting), Ok(1), "it is not the row's fault that the node is away");
}
