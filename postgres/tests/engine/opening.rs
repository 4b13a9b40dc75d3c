//! What a database must be, and what is refused.

use std::path::Path;
use std::thread;

use base64::Engine as _;
use onward_postgres::{Database, OpenError};
use onward_testkit::{PgBouncer, PostgresServer};

use crate::{append, log_name, patient, psql, seize, shared, shared_url};

#[test]
fn those_who_start_together_make_the_tables_once() {
    let url = shared().database().unwrap();
    thread::scope(|scope| {
        for number in 0..6 {
            let url = &url;
            scope.spawn(move || seize(&mut patient(url).log(&format!("log {number}")).unwrap()).unwrap());
        }
    });
    assert_eq!(psql(&url, "select version from onward.version"), "4");
    assert_eq!(psql(&url, "select count(*) from onward.seat where term > 0"), "6");
}

#[test]
fn tables_of_a_newer_version_are_refused_with_what_is_needed() {
    let url = shared().database().unwrap();
    drop(patient(&url));
    psql(&url, "update onward.version set version = 9, needs = '7.1'");
    let error = Database::open(&url).unwrap_err();
    assert_eq!(error, OpenError::NewerSchema { found: 9, known: 4, needs: "7.1".into() });
    assert!(error.to_string().contains("use onward 7.1 or newer"), "{error}");
}

#[test]
fn a_database_that_does_not_sync_is_refused() {
    let url = PostgresServer::shared().database().unwrap();
    assert_eq!(Database::open(&url).unwrap_err(), OpenError::NotSynced);
}

/// Each of these would make an acknowledgement worth nothing, or a statement end in between.
#[test]
fn what_a_role_or_a_database_sets_is_overruled() {
    let url = shared().database().unwrap();
    let name = url.rsplit_once('/').unwrap().1;
    for setting in [
        "synchronous_commit = off",
        "client_min_messages = error",
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_read_only = on",
        "statement_timeout = 1",
        "lock_timeout = 1",
        "plan_cache_mode = force_custom_plan",
        "search_path = ''",
    ] {
        shared().ask(&format!("alter database {name} set {setting}")).unwrap();
    }
    let mut log = patient(&url).log("dc1").unwrap();
    let term = seize(&mut log).unwrap().term;
    // What is in force while a batch is stored, seen by somebody for whom it is not.
    let free = "-c%20default_transaction_read_only%3Doff%20-c%20statement_timeout%3D0%20-c%20lock_timeout%3D0";
    let url = format!("{url}?options={free}");
    psql(
        &url,
        "create table public.seen (name text, setting text);
         create function public.see() returns trigger language plpgsql as $$ begin
         insert into public.seen select name, setting from pg_catalog.pg_settings; return null; end $$;
         create trigger see after insert on onward.batch for each row execute function public.see()",
    );
    append(&mut log, term, 1).unwrap();
    for (name, setting) in [
        ("synchronous_commit", "on"),
        ("client_min_messages", "warning"),
        ("transaction_isolation", "read committed"),
        ("transaction_read_only", "off"),
        ("statement_timeout", "0"),
        ("lock_timeout", "0"),
    ] {
        assert_eq!(psql(&url, &format!("select setting from public.seen where name = '{name}'")), setting, "{name}");
    }
}

/// PgBouncer ends a connection with an option that it does not know, or ignores it if it is told to.
#[test]
fn a_pooler_by_transaction_is_refused() {
    let url = shared_url();
    for settings in ["", "ignore_startup_parameters = options"] {
        let pooler = PgBouncer::start(shared(), settings).unwrap();
        let behind = url.replace(&format!(":{}/", shared().port()), &format!(":{}/", pooler.port()));
        let error = Database::open(&behind).unwrap_err();
        assert!(matches!(error, OpenError::Pooler(_)), "{settings:?}: {error}");
        assert!(error.to_string().contains("connect to the database itself"), "{error}");
    }
}

#[test]
fn an_address_without_a_database_says_so() {
    let error = Database::open("postgres://onward@127.0.0.1:1/jobs").unwrap_err();
    assert!(matches!(error, OpenError::Unreachable(_)), "{error}");
    let missing = shared().address("nothing_of_this_name");
    let error = Database::open(&missing).unwrap_err();
    assert!(matches!(&error, OpenError::Refused(why) if why.contains("does not exist")), "{error}");
}

#[test]
fn a_connection_is_encrypted_and_the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, other] = ["ours", "other"].map(|name| {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, pem("CERTIFICATE", made.cert.der())).unwrap();
        (path, made)
    });
    let key = pem("PRIVATE KEY", &ours.1.signing_key.serialize_der());
    let server = PostgresServer::options().fsync().tls(pem("CERTIFICATE", ours.1.cert.der()), key).start().unwrap();
    let url = server.database().unwrap().replace("127.0.0.1", "localhost");
    let open =
        |authority: &Path| Database::open(&format!("{url}?sslmode=verify-full&sslrootcert={}", authority.display()));
    let mut log = open(&ours.0).unwrap().log("dc1").unwrap();
    seize(&mut log).unwrap();
    let encrypted = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid)
        where ssl and application_name = 'onward'";
    assert_ne!(psql(&url, encrypted), "0");
    let error = open(&other.0).unwrap_err();
    assert!(matches!(&error, OpenError::Refused(why) if why.contains("certificate")), "{error}");
    assert!(matches!(open(Path::new("/nowhere")).unwrap_err(), OpenError::Address(_)));
}

#[test]
fn a_handle_can_be_made_while_another_works() {
    let (database, name) = (patient(shared_url()), log_name());
    let mut one = database.log(&name).unwrap();
    let term = seize(&mut one).unwrap().term;
    append(&mut one, term, 1).unwrap();
    let mut other = database.log(&name).unwrap();
    append(&mut other, term, 2).unwrap();
    append(&mut one, term, 3).unwrap();
}

fn pem(label: &str, bytes: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
