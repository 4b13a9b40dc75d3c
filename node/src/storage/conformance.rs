//! What secrets, tokens and outputs promise, asked of each engine in the same words. Logs and archives have suites of
//! their own, in the crate that they are in.

use core::time::Duration;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use onward_postgres::{Database, DatabaseOptions};
use onward_testkit::PostgresServer;
use tempfile::{TempDir, tempdir};

use super::postgres::OutputTable;
use crate::auth::{Scope, Scopes, SecretFolder, SecretTable, Secrets, TokenFile, TokenTable, Tokens};
use crate::outputs::{
    CUT_BYTES, KEEP_BYTES, OutputFolder, OutputRules, OutputStats, OutputStore, OutputTail, UnwrittenOutput,
};

/// An engine under test: what it keeps, opened anew each time, as by another process.
trait Bed {
    fn new() -> Self;
    fn secrets(&self) -> Box<dyn Secrets>;
    fn tokens(&self) -> Box<dyn Tokens>;
    fn outputs(&self, rules: OutputRules) -> Box<dyn OutputStore>;
    /// Adds a token, and gives its text.
    fn add_token(&self, name: &str, scope: Scope) -> String;
    fn revoke_token(&self, name: &str);
}

struct EmbeddedBed(TempDir);

impl Bed for EmbeddedBed {
    fn new() -> Self {
        Self(tempdir().unwrap())
    }
    fn secrets(&self) -> Box<dyn Secrets> {
        Box::new(SecretFolder(self.0.path().to_owned()))
    }
    fn tokens(&self) -> Box<dyn Tokens> {
        Box::new(TokenFile::open(self.0.path()).unwrap())
    }
    fn outputs(&self, rules: OutputRules) -> Box<dyn OutputStore> {
        Box::new(OutputFolder::new(self.0.path().join("output"), rules))
    }
    fn add_token(&self, name: &str, scope: Scope) -> String {
        TokenFile::add(self.0.path(), name, [scope]).unwrap().text
    }
    fn revoke_token(&self, name: &str) {
        assert!(TokenFile::revoke(self.0.path(), name).unwrap());
    }
}

/// A log of its own in a database that all share; what is opened anew is opened by another connection.
struct OnPostgres {
    database: Database,
    log: String,
}

/// The URL of one cluster for all, which syncs what it stores: nothing else is taken.
fn url() -> &'static str {
    static URL: OnceLock<(PostgresServer, String)> = OnceLock::new();
    let start = || {
        let server = PostgresServer::options().fsync().start().expect("PostgreSQL starts");
        let url = server.database().expect("a database is made");
        (server, url)
    };
    &URL.get_or_init(start).1
}

impl Bed for OnPostgres {
    fn new() -> Self {
        static LOGS: AtomicU32 = AtomicU32::new(0);
        // What is asked may take as long as it takes, on a busy computer too.
        let database = DatabaseOptions::default().answered_within(Duration::from_secs(120)).open(url()).unwrap();
        Self { database, log: format!("log {}", LOGS.fetch_add(1, Ordering::Relaxed)) }
    }
    fn secrets(&self) -> Box<dyn Secrets> {
        Box::new(SecretTable(self.database.secrets(&self.log)))
    }
    fn tokens(&self) -> Box<dyn Tokens> {
        Box::new(self.table())
    }
    fn outputs(&self, rules: OutputRules) -> Box<dyn OutputStore> {
        Box::new(OutputTable::new(self.database.outputs(&self.log, KEEP_BYTES).unwrap(), rules))
    }
    fn add_token(&self, name: &str, scope: Scope) -> String {
        self.table().add(name, [scope]).unwrap().text
    }
    fn revoke_token(&self, name: &str) {
        assert!(self.table().revoke(name).unwrap());
    }
}

impl OnPostgres {
    fn table(&self) -> TokenTable {
        TokenTable::open(self.database.tokens(&self.log).unwrap()).unwrap()
    }
}

macro_rules! conformance {
    ($($name:ident)*) => {
        mod embedded {
            $(#[test] fn $name() { super::$name::<super::EmbeddedBed>(); })*
        }

        /// All checks in one test, since each process that runs tests would start a cluster of its own.
        #[test]
        fn a_database_promises_all_of_it_too() {
            $($name::<OnPostgres>();)*
        }
    };
}

conformance! {
    a_key_is_made_once_and_each_name_has_its_own
    a_token_gives_its_scope_until_it_is_revoked
    what_is_open_with_a_token_ends_with_it
    output_is_found_again_and_added_to
    the_end_of_a_long_output_is_kept
    output_that_comes_in_many_parts_is_read_in_order
    the_oldest_output_goes_first
}

fn a_key_is_made_once_and_each_name_has_its_own<B: Bed>() {
    let bed = B::new();
    let (one, other) = (bed.secrets().key("one").unwrap(), bed.secrets().key("other").unwrap());
    assert_ne!(one, other);
    assert_eq!((bed.secrets().key("one").unwrap(), bed.secrets().key("other").unwrap()), (one, other));
}

fn a_token_gives_its_scope_until_it_is_revoked<B: Bed>() {
    let bed = B::new();
    assert!(bed.tokens().find("onw_none").is_none());
    let (read, work) = (bed.add_token("read", Scope::Read), bed.add_token("work", Scope::Work));
    let scopes = |text: &str| bed.tokens().find(text).map(|shown| shown.scopes);
    assert_eq!(scopes(&read), Some(Scopes::from_iter([Scope::Read])));
    assert_eq!(scopes(&work), Some(Scopes::from_iter([Scope::Work])));
    assert_eq!(scopes(&read[..read.len() - 1]), None);
    bed.revoke_token("read");
    assert_eq!((scopes(&read), scopes(&work).is_some()), (None, true));
}

fn what_is_open_with_a_token_ends_with_it<B: Bed>() {
    let bed = B::new();
    let (gone, stays) = (bed.add_token("gone", Scope::Read), bed.add_token("stays", Scope::Read));
    let tokens = bed.tokens();
    let [gone, stays] = [gone, stays].map(|text| tokens.find(&text).unwrap().validity);
    bed.revoke_token("gone");
    tokens.look_for_open();
    assert_eq!((gone.has_ended(), stays.has_ended()), (true, false));
}

/// A long output keeps its last bytes, each once and in order, whatever else happens to it.
fn output_that_comes_in_many_parts_is_read_in_order<B: Bed>() {
    let bed = B::new();
    let (mut store, _) = scanned(&bed, &OutputRules::default());
    let mut all = Vec::new();
    for part in 0..60_usize {
        let data: Vec<u8> = (0..1 + part * 97 % 5_000).map(|at| ((at * 31 + part) % 251) as u8).collect();
        store.write(&claim(1), &printed(0, &data), 1).unwrap();
        all.extend(data);
        let kept = store.read(&claim(1)).unwrap().unwrap();
        assert_eq!(kept.skipped as usize, all.len().saturating_sub(KEEP_BYTES), "after part {part}");
        assert!(kept.data == all[kept.skipped as usize..], "after part {part}");
    }
    assert!(all.len() > KEEP_BYTES + CUT_BYTES / 2, "it was cut");
}

fn claim(job: u128) -> Claim {
    Claim { job: JobId::from_u128(job), workflow: 1, fence: AttemptFence::from_raw(1 << 20 | 3) }
}

fn printed(skipped: u64, data: &[u8]) -> UnwrittenOutput {
    UnwrittenOutput { skipped, data: data.to_vec() }
}

/// The output store as a process finds it that has just begun.
fn scanned(bed: &impl Bed, rules: &OutputRules) -> (Box<dyn OutputStore>, OutputStats) {
    let (mut store, stats) = (bed.outputs(rules.clone()), OutputStats::default());
    store.scan(&stats).unwrap();
    (store, stats)
}

fn output_is_found_again_and_added_to<B: Bed>() {
    let (bed, rules) = (B::new(), OutputRules::default());
    let (mut store, _) = scanned(&bed, &rules);
    assert_eq!(store.read(&claim(1)).unwrap(), None);
    store.write(&claim(1), &printed(0, b"one "), 1).unwrap();
    store.write(&claim(2), &printed(0, b"other"), 1).unwrap();
    drop(store);
    let (mut store, stats) = scanned(&bed, &rules);
    assert_eq!(stats.kept_files.get(), 2);
    store.write(&claim(1), &printed(0, b"two"), 2).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), Some(OutputTail { skipped: 0, data: b"one two".to_vec() }));
    // What is kept has no hole: what came before one goes.
    store.write(&claim(1), &printed(5, b"three"), 3).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), Some(OutputTail { skipped: 12, data: b"three".to_vec() }));
    assert_eq!(store.read(&claim(2)).unwrap(), Some(OutputTail { skipped: 0, data: b"other".to_vec() }));
}

fn the_end_of_a_long_output_is_kept<B: Bed>() {
    let bed = B::new();
    let (mut store, _) = scanned(&bed, &OutputRules::default());
    for part in 0..10_u8 {
        store.write(&claim(1), &printed(0, &[part; 20_000]), 1).unwrap();
    }
    let kept = store.read(&claim(1)).unwrap().unwrap();
    assert_eq!(kept.skipped + kept.data.len() as u64, 200_000);
    assert!(kept.data.len() >= crate::outputs::KEEP_BYTES && kept.data.ends_with(&[9; 20_000]));
}

fn the_oldest_output_goes_first<B: Bed>() {
    let (bed, rules) = (B::new(), OutputRules { max_bytes: 3 * 4_096, ..OutputRules::default() });
    let (mut store, stats) = scanned(&bed, &rules);
    for job in 1..=4 {
        store.write(&claim(job), &printed(0, b"x"), 10 + job as u64).unwrap();
    }
    store.sweep(20, &stats).unwrap();
    let left = |store: &dyn OutputStore| (1..=4).filter(|job| store.read(&claim(*job)).unwrap().is_some()).collect();
    let found: Vec<u128> = left(&*store);
    assert_eq!((found, stats.removed.get(), stats.kept_files.get()), (vec![2, 3, 4], 1, 3));
    let all_old = 20 + rules.retain.as_millis() as u64;
    store.sweep(all_old, &stats).unwrap();
    let found: Vec<u128> = left(&*store);
    assert_eq!((found, stats.kept_files.get()), (vec![], 0));
}
