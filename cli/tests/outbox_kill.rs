//! Two pollers that are killed again and again publish every committed row, each key in order, and nothing else.
//!
//! `ONWARD_SOAK_CASES` sets the number of kills, up to 100; `ONWARD_KILL_SEED` the seed.

mod support;

use std::collections::{HashMap, HashSet};
use std::process::{Child, Stdio};
use std::time::Duration;

use async_nats::jetstream;
use onward_testkit::{NatsServer, PostgresServer};
use support::process::until;
use support::{Dice, PATIENCE, end, onward};
use tokio_postgres::{Client, NoTls};

const KILLS: u64 = 10;
const MOST_KILLS: u64 = 100;
const ROWS: u64 = 10_000;
const KEYS: u64 = 40;

/// Rows without a key are on this subject, and have nothing but themselves to be held by.
const KEYLESS: &str = "-";

/// The database itself sees to it that no row, and no key, has two holders: a row that is claimed by another token while
/// the lease of the one before goes on is held twice, whether or not it has a key.
const WATCH: &str = "
    CREATE TABLE violations (what text, row_id bigint);
    CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      IF NEW.claimed_by IS NOT NULL AND NEW.claimed_by IS DISTINCT FROM OLD.claimed_by THEN
        IF OLD.claimed_by IS NOT NULL AND OLD.claimed_until > clock_timestamp() THEN
          INSERT INTO violations VALUES ('row', NEW.id);
        END IF;
        IF EXISTS (SELECT FROM onward_outbox WHERE claimed_by IS NOT NULL AND claimed_by <> NEW.claimed_by
                   AND claimed_until > clock_timestamp() AND key = NEW.key) THEN
          INSERT INTO violations VALUES ('key', NEW.id);
        END IF;
      END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER watch BEFORE UPDATE ON onward_outbox FOR EACH ROW EXECUTE FUNCTION watch();";

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

struct Poller(Child);

impl Poller {
    fn start(database: &str, nats: &str) -> Self {
        let to = format!("nats:{}", nats.trim_start_matches("nats://"));
        let quick = ["--lease", "1s", "--poll", "20ms", "--batch", "200", "--freshness", "60s"];
        let mut command = onward(&["outbox", "run", "--database", database, "--to", &to]);
        command.args(quick).env("ONWARD_LOG", "error").stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

/// Writes rows until there are so many, in transactions of which some are rolled back. Rows of a key are numbered; so are
/// those without one.
async fn write(client: &mut Client, dice: &mut Dice, numbers: &mut HashMap<String, u64>, total: u64) {
    while numbers.values().sum::<u64>() < total {
        let transaction = client.transaction().await.unwrap();
        let is_doomed = dice.one_in(6);
        let mut next = numbers.clone();
        let (mut keys, mut payloads) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let key = if dice.one_in(4) { KEYLESS.to_owned() } else { format!("k{}", dice.below(KEYS)) };
            let number = next.entry(key.clone()).or_default();
            payloads.push(if is_doomed { "doomed".to_owned() } else { number.to_string() });
            keys.push(key);
            *number += 1;
        }
        let insert = "INSERT INTO onward_outbox (topic, key, payload)
            SELECT 'rows.' || one.key, nullif(one.key, '-'), convert_to(one.payload, 'UTF8')
            FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS one (key, payload, place) ORDER BY place";
        transaction.execute(insert, &[&keys, &payloads]).await.unwrap();
        if is_doomed {
            transaction.rollback().await.unwrap();
        } else {
            transaction.commit().await.unwrap();
            *numbers = next;
        }
    }
}

async fn count(client: &Client, what: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM {what}"), &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_row_is_published_in_the_order_of_its_key_whoever_is_killed() {
    let kills = number("ONWARD_SOAK_CASES").map_or(KILLS, |cases| cases.clamp(KILLS, MOST_KILLS));
    let mut dice = Dice::new(number("ONWARD_KILL_SEED").unwrap_or(1));
    let nats = NatsServer::start().unwrap();
    let database = PostgresServer::shared().database().unwrap();
    let (mut client, connection) = tokio_postgres::connect(&database, NoTls).await.unwrap();
    tokio::spawn(connection);
    let schema = onward(&["outbox", "schema", "--notify"]).output().unwrap().stdout;
    client.batch_execute(&String::from_utf8(schema).unwrap()).await.unwrap();
    client.batch_execute(WATCH).await.unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config =
        jetstream::stream::Config { name: "ROWS".into(), subjects: vec!["rows.>".into()], ..Default::default() };
    let stream = context.create_stream(config).await.unwrap();

    let mut numbers = HashMap::new();
    let mut pollers = [0, 1].map(|_| Poller::start(&database, &nats.url()));
    let mut cut_off = 0;
    for kill in 1..=kills {
        write(&mut client, &mut dice, &mut numbers, ROWS * kill / (kills + 1)).await;
        tokio::time::sleep(Duration::from_micros(dice.below(150_000))).await;
        let which = dice.below(2) as usize;
        end(&mut pollers[which].0);
        cut_off += i64::from(count(&client, "onward_outbox WHERE claimed_by IS NOT NULL").await > 0);
        pollers[which] = Poller::start(&database, &nats.url());
    }
    write(&mut client, &mut dice, &mut numbers, ROWS).await;
    until("all is published", PATIENCE, async || (count(&client, "onward_outbox").await == 0).then_some(())).await;
    assert!(cut_off > 0, "no kill hit a poller that held rows");
    assert_eq!(count(&client, "violations").await, 0, "a row or a key had two holders");
    drop(pollers);

    let committed: u64 = numbers.values().sum();
    let state = stream.get_info().await.unwrap().state;
    assert_eq!(state.messages, committed, "what is published twice has the same identity, and is one message");
    let mut found: HashMap<String, u64> = HashMap::new();
    let mut keyless = HashSet::new();
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let key = message.subject.strip_prefix("rows.").unwrap().to_owned();
        let payload = String::from_utf8_lossy(&message.payload).into_owned();
        let expected = found.entry(key.clone()).or_default();
        if key == KEYLESS {
            assert!(keyless.insert(payload.parse::<u64>().unwrap()), "{payload} is there twice");
        } else {
            assert_eq!(payload, expected.to_string(), "{key} at {sequence}");
        }
        *expected += 1;
    }
    assert_eq!(found, numbers);
    assert!(
        keyless.len() > 1_000 && (0..numbers[KEYLESS]).all(|number| keyless.contains(&number)),
        "{}",
        keyless.len()
    );
}
