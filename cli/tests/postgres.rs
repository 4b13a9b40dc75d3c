//! A node on a real PostgreSQL, from outside: what it takes, what it says, and what it does while the database is away.

mod support;

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use onward_testkit::{FaultProxy, PostgresServer};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::http::{Client, Reply};
use support::process::{ended as ended_with, signal, until};
use support::{Node, PATIENCE, a_moment, onward, own_loopback};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn start(data: &Path, storage: &str) -> Node {
    Node::start_with(data, &own_loopback(), &["--storage", storage])
}

/// The words of a node that does not start.
fn refused(data: &Path, storage: &str) -> String {
    let mut command = onward(&["up", "--slots", "0", "--listen", &own_loopback(), "--data"]);
    command.arg(data).env("ONWARD_STORAGE", storage).env("ONWARD_LOG", "off");
    let output = ended(command);
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

/// The output of a command that ends by itself. One that does not is killed.
fn ended(mut command: Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (pid, (said, hear)) = (child.id(), channel());
    std::thread::spawn(move || said.send(child.wait_with_output()));
    match hear.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(pid, Signal::KILL);
            panic!("it goes on after {PATIENCE:?}");
        }
    }
}

/// The command line, with this database.
fn call(data: &Path, storage: &str, args: &[&str]) -> Output {
    onward(args).env("ONWARD_STORAGE", storage).env("ONWARD_DATA", data).output().unwrap()
}

async fn submitted(client: &mut Client, payload: &Value) -> String {
    let reply = client.post("/v1/jobs", &json!({ "kind": "k", "payload": payload })).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// One of each: submitted, leased, beaten for, printed for, and ended with a result.
async fn worked(client: &mut Client, id: &str, result: &Value) {
    let poll = json!({ "worker_id": "w", "incarnation": "1", "kinds": ["k"], "max": 1, "wait_s": 10, "lease_s": 60 });
    let lease = client.post("/v1/leases", &poll).await.json()["leases"][0].clone();
    assert_eq!(lease["job_id"], id);
    let path = |verb: &str| format!("/v1/leases/{}/{verb}", lease["receipt"].as_str().unwrap());
    assert_eq!(client.post(&path("beat"), &json!({ "watermark": 1, "checkpoint": { "at": 1 } })).await.status, 200);
    assert!(client.post(&path("output"), &json!({ "text": "half way\n" })).await.status < 300);
    assert_eq!(client.post(&path("succeed"), &json!({ "result": result })).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_on_a_database_does_all_that_one_with_files_does() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let url = server.database().unwrap();
    let (with_password, data) = (url.replace("onward@", "onward:secret@"), folder.path().join("data"));
    let node = start(&data, &with_password);
    let mut client = Client::new(node.address);
    let large = json!({ "pad": "x".repeat(20_000) });
    let id = submitted(&mut client, &large).await;
    worked(&mut client, &id, &large).await;
    let open = submitted(&mut client, &json!(1)).await;
    until("the job is archived", PATIENCE, async || {
        let status = client.get("/status").await.json();
        (status["manager"]["archived_jobs"] == 1).then_some(())
    })
    .await;

    let status = client.get("/status").await;
    assert!(!status.text().contains("secret"), "{}", status.text());
    let shown = status.json();
    assert_eq!(shown["storage"], url.replace("onward@", "onward:…@"));
    assert_eq!(shown["synchronous_standbys"], "");
    let told = call(&data, &with_password, &["status", "--server", &node.url]);
    assert!(text(&told.stdout).contains("storage   postgresql://onward:…@"), "{}", text(&told.stdout));
    let told = call(&data, &with_password, &["config", "--changed"]);
    assert!(text(&told.stdout).contains("storage") && !text(&told.stdout).contains("secret"), "{}", text(&told.stdout));
    let told = call(&data, &with_password, &["backup", "/tmp/never.backup", "--server", &node.url]);
    assert!(text(&told.stderr).contains("pg_basebackup"), "{}", text(&told.stderr));

    // A token of the database, made while the node runs.
    let made = call(&data, &with_password, &["token", "new", "--scope", "read", "--name", "ci", "--json"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let token: Value = serde_json::from_slice(&made.stdout).unwrap();
    let listed = text(&call(&data, &with_password, &["token", "list"]).stdout);
    assert!(listed.contains("ci") && listed.contains("local-"), "{listed}");
    let token = format!("Bearer {}", token["token"].as_str().unwrap());
    until("the token is known", PATIENCE, async || {
        (with_token(node.address, &token).await.status == 200).then_some(())
    })
    .await;
    assert!(call(&data, &with_password, &["token", "revoke", "ci"]).status.success());
    until("it is no longer known", PATIENCE, async || {
        (with_token(node.address, &token).await.status == 401).then_some(())
    })
    .await;

    // Another folder, as on another computer: it follows, and leads when the first has gone.
    let other = start(&folder.path().join("other"), &url);
    let before = documents(&mut client, &[&id, &open]).await;
    node.kill();
    let mut client = Client::new(other.address);
    until("the other leads", PATIENCE, async || {
        let status = client.get("/status").await.json();
        (status["manager"]["seat"] == "serving").then_some(())
    })
    .await;
    for (now, before) in documents(&mut client, &[&id, &open]).await.iter().zip(&before) {
        assert!(now == before, "all of it is in the database, and not: {now:.400}\nbefore: {before:.400}");
    }
    worked(&mut client, &open, &json!("done")).await;
}

async fn with_token(address: SocketAddr, token: &str) -> Reply {
    let request =
        format!("GET /v1/stats HTTP/1.1\r\nhost: {address}\r\nauthorization: {token}\r\ncontent-length: 0\r\n\r\n");
    Client::new(address).exchange(request.as_bytes()).await.unwrap()
}

/// Everything that can be read of these jobs.
async fn documents(client: &mut Client, jobs: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for id in jobs {
        for more in ["", "/ledger", "/attempts/1/output"] {
            found.push(client.get(&format!("/v1/jobs/{id}{more}")).await.lasting());
        }
    }
    found
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for_and_a_node_that_waits_can_be_stopped() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let proxy = FaultProxy::start(server.port()).unwrap();
    let url = server.database().unwrap().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let listen = own_loopback().replace(":0", ":7400");
    let begin = || {
        let mut command = onward(&["up", "--slots", "0", "--listen", &listen, "--data"]);
        command.arg(folder.path().join("data")).env("ONWARD_STORAGE", &url).env("ONWARD_LOG", "warn");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let first = lines.next().expect("it says what it waits for").unwrap();
        (child, first, lines)
    };
    let address: SocketAddr = listen.parse().unwrap();
    let probe = async |path: &str| Client::new(address).try_call("GET", path, "").await.ok().map(|reply| reply.status);
    proxy.refuse(true);
    let (mut child, said, _lines) = begin();
    assert!(said.contains("waits for its database") && said.contains("cannot be reached"), "{said}");
    assert_eq!((probe("/livez").await, probe("/readyz").await), (Some(200), Some(503)));
    signal(child.id(), Signal::TERM);
    assert_eq!(ended_with(&mut child, PATIENCE).await, Some(0));

    let (mut child, _, _lines) = begin();
    proxy.refuse(false);
    until("it serves", PATIENCE, async || (probe("/readyz").await == Some(200)).then_some(())).await;
    signal(child.id(), Signal::TERM);
    assert_eq!(ended_with(&mut child, PATIENCE).await, Some(0));
}

#[test]
fn a_database_that_cannot_be_used_is_refused_with_what_to_do() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let (url, data) = (server.database().unwrap(), folder.path().join("data"));
    for (storage, said) in [
        (server.address("nothing_of_this_name"), "does not exist"),
        (format!("{url}?sslmode=require"), "does not support TLS"),
        (format!("{url}?sslmode=require&sslrootcert=/nowhere"), "sslrootcert /nowhere"),
    ] {
        let told = refused(&data, &storage);
        assert!(told.contains("the node did not start") && told.contains(said), "{storage}: {told}");
        assert!(told.contains("docs/storage.md"), "{told}");
    }
    let wrong = onward(&["up", "--storage", "postgres://me:secret@host/jobs?sslmode=prefer"]).output().unwrap();
    let told = text(&wrong.stderr);
    assert!(wrong.status.code() == Some(2) && told.contains("`storage`") && !told.contains("secret"), "{told}");

    let ask = |question: &str| {
        let asked = Command::new("psql").args(["--no-psqlrc", "-qtA", &url, "-c", question]).output();
        assert!(asked.unwrap().status.success(), "{question}");
    };
    drop(start(&data, &url));
    ask("create table public.before as select version, needs from onward.version");
    ask("update onward.version set version = 99, needs = '7.1'");
    assert!(refused(&data, &url).contains("use onward 7.1 or newer"));
    ask("update onward.version set (version, needs) = (select version, needs from public.before)");
    drop(start(&data, &url));

    // From now on a password is asked for.
    server.ask("alter role onward password 'right'").unwrap();
    server.ask("copy (select 'host all all 127.0.0.1/32 scram-sha-256') to program 'cat > pg_hba.conf'").unwrap();
    server.ask("select pg_reload_conf()").unwrap();
    let wrong = url.replace("onward@", "onward:wrong@");
    let is_taken = || Command::new("psql").args(["-qtA", &wrong, "-c", "select 1"]).output().unwrap().status.success();
    // The server reads the file again in its own time.
    while is_taken() {}
    let told = refused(&data, &wrong);
    assert!(told.contains("password authentication failed") && !told.contains("wrong@"), "{told}");
}

/// Submits until it is told to stop; gives the ids that were acknowledged, the longest time that an answer took, and how
/// often that was to come back later.
async fn load(address: SocketAddr, round: usize, over: Arc<AtomicBool>) -> (Vec<String>, Duration, u64) {
    let (mut client, mut ids, mut longest, mut later) = (Client::new(address), Vec::new(), Duration::ZERO, 0);
    let mut number = 0_u64;
    while !over.load(Ordering::SeqCst) {
        let body = json!({ "kind": "k", "payload": number, "idempotency_key": format!("{round}-{number}") });
        let asked = Instant::now();
        let reply = client.try_call("POST", "/v1/jobs", &body.to_string()).await.expect("the node answers");
        longest = longest.max(asked.elapsed());
        match reply.status {
            200 | 201 => {
                ids.push(reply.json()["id"].as_str().unwrap().to_owned());
                number += 1;
            }
            503 => {
                later += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            _ => panic!("{}", reply.text()),
        }
    }
    (ids, longest, later)
}

/// The network to the database goes away under load, by closing and by falling silent, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_is_away_callers_are_told_so_in_time_and_nobody_is_asked_to_restart() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let proxy = FaultProxy::start(server.port()).unwrap();
    let url = server.database().unwrap().replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.port()));
    let node = start(&folder.path().join("data"), &url);
    let address = node.address;
    let mut acknowledged = Vec::new();
    for (round, away) in [FaultProxy::refuse as fn(&FaultProxy, bool), FaultProxy::silence].into_iter().enumerate() {
        let over = Arc::<AtomicBool>::default();
        let loading = tokio::spawn(load(address, round, over.clone()));
        let mut client = Client::new(address);
        let count = async |client: &mut Client| client.get("/v1/stats").await.json()["open_jobs"].as_u64();
        let before = count(&mut client).await;
        until("jobs come in", PATIENCE, async || (count(&mut client).await > before).then_some(())).await;
        away(&proxy, true);
        until("the node is not ready", PATIENCE, async || {
            let reply = client.try_call("GET", "/readyz", "").await.unwrap();
            (reply.status == 503).then_some(())
        })
        .await;
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(4) {
            let reply = client.try_call("GET", "/livez", "").await.unwrap();
            assert_eq!(reply.status, 200, "a restart does not help: {}", reply.text());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        away(&proxy, false);
        until("the node is ready again", PATIENCE, async || {
            (client.try_call("GET", "/readyz", "").await.unwrap().status == 200).then_some(())
        })
        .await;
        let before = count(&mut client).await;
        until("jobs come in again", PATIENCE, async || (count(&mut client).await > before).then_some(())).await;
        over.store(true, Ordering::SeqCst);
        let (ids, longest, later) = loading.await.unwrap();
        assert!(later > 0, "nobody was told, in round {round}");
        // What a computer that is busy adds to it.
        let most = Duration::from_millis(3_200) + a_moment() / 3;
        assert!(longest <= most, "an answer took {longest:?}, in round {round}");
        acknowledged.extend(ids);
    }
    let mut client = Client::new(address);
    for id in &acknowledged {
        assert_eq!(client.get(&format!("/v1/jobs/{id}")).await.status, 200, "{id} was acknowledged");
    }
    assert!(!acknowledged.is_empty());
}

/// The commands of docs/storage.md, word for word, and what it says that they print.
#[test]
fn the_page_about_storage_is_true() {
    let (server, folder) = (PostgresServer::options().fsync().start().unwrap(), tempfile::tempdir().unwrap());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs/storage.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = |kind: &str| -> Vec<&str> {
        page.split(&format!("```{kind}\n")).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
    };
    // The reader's database and node have ports of their own; so have ours.
    let (database, node) = (format!("127.0.0.1:{}", server.port()), own_loopback().replace(":0", ":7400"));
    let script = block("sh").concat().replace("127.0.0.1:5432", &database).replace("127.0.0.1:7400", &node);
    let script = format!("trap 'kill -9 $NODE; wait $NODE 2>/dev/null' EXIT\nset -e\n{script}");
    let file = folder.path().join("script.sh");
    std::fs::write(&file, script).unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_onward")).parent().unwrap().display().to_string();
    let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = support::in_own_environment(Command::new("sh"));
    command.arg(&file).current_dir(folder.path()).env("PATH", path).env("ONWARD_LISTEN", &node);
    command.env("ONWARD_SERVER", format!("http://{node}"));
    command.env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string()).env("PGUSER", "onward");
    let output = command.output().unwrap();
    // The id of the job is another each time.
    let without_id = |said: &str| said.split_once('\n').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    let said = text(&output.stdout).replace(&database, "127.0.0.1:5432");
    assert_eq!(without_id(&said), without_id(&block("text").concat()), "{}", text(&output.stderr));
}
