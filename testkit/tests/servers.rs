//! Each server answers, keeps what it had over an outage, and leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use onward_testkit::{FaultProxy, NatsServer, PostgresServer, RedisServer, ServerProcess, SqsServer, Way};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Longer than anything here takes, on a busy computer too.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn postgres_gives_every_test_a_database_and_keeps_it_over_a_crash() {
    let postgres = PostgresServer::start().unwrap();
    let (one, other) = (postgres.database().unwrap(), postgres.database().unwrap());
    psql(&one, "create table seen (n int)");
    psql(&one, "insert into seen values (7)");
    assert_eq!(psql(&other, "select count(*) from pg_tables where tablename = 'seen'"), "0");

    postgres.server().kill();
    postgres.server().start_again().unwrap();

    assert_eq!(psql(&one, "select n from seen"), "7");
    let traces = Traces::of(postgres.server());
    drop(postgres);
    traces.assert_none();
}

#[test]
fn a_frozen_nats_answers_nobody_until_it_is_thawed() {
    let nats = NatsServer::start().unwrap();
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, nats.port())).unwrap();
    nats_answers(&mut connection);

    nats.server().freeze();
    connection.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // What it said before.
    while connection.read(&mut [0; 64]).is_ok() {}
    connection.write_all(b"PING\r\n").unwrap();
    let silence = connection.read(&mut [0; 64]).map_err(|error| error.kind());
    assert!(matches!(silence, Err(ErrorKind::WouldBlock)), "{silence:?}");
    TcpStream::connect((Ipv4Addr::LOCALHOST, nats.port())).expect("the kernel still accepts");

    nats.server().thaw();
    read_until(&mut connection, "PONG");

    nats.server().kill();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, nats.port())).is_err());
    nats.server().start_again().unwrap();
    nats_answers(&mut TcpStream::connect((Ipv4Addr::LOCALHOST, nats.port())).unwrap());
    let traces = Traces::of(nats.server());
    drop(nats);
    traces.assert_none();
}

fn nats_answers(connection: &mut TcpStream) {
    let greeting = read_until(connection, "INFO ");
    assert!(greeting.contains("\"jetstream\":true"), "{greeting}");
    connection.write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n").unwrap();
    read_until(connection, "PONG");
}

#[test]
fn redis_keeps_what_it_answered_over_a_crash() {
    let redis = RedisServer::start().unwrap();
    let ask = |command: &str, answer: &str| {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, redis.port())).unwrap();
        connection.write_all(command.as_bytes()).unwrap();
        read_until(&mut connection, answer);
    };
    ask("SET seen 7\r\n", "+OK");
    redis.server().kill();
    redis.server().start_again().unwrap();
    ask("GET seen\r\n", "$1\r\n7");
    let traces = Traces::of(redis.server());
    drop(redis);
    traces.assert_none();
}

#[test]
fn stand_ins_for_sqs_answer_and_end() {
    for sqs in [SqsServer::moto().unwrap(), SqsServer::ministack().unwrap()] {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, sqs.port())).unwrap();
        let request =
            "GET /?Action=ListQueues&Version=2012-11-05 HTTP/1.1\r\nHost: sqs.us-east-1.amazonaws.com\r\n\r\n";
        connection.write_all(request.as_bytes()).unwrap();
        read_until(&mut connection, "200");
        let traces = Traces::of(sqs.server());
        drop(sqs);
        traces.assert_none();
    }
}

/// The test process is this program again, which is killed while it holds a server.
#[test]
fn a_server_ends_with_the_test_process_however_that_ends() {
    let this = std::env::current_exe().unwrap();
    let mut tests = Command::new(this);
    tests.args(["--exact", "holds_a_server_until_it_is_killed", "--nocapture"]).env(HOLD, "1");
    let mut tests = tests.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tests.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains(HOLD)).expect("it names its server");
    let (pid, folder) = line.split_once(HOLD).unwrap().1.trim().split_once(' ').unwrap();
    let traces = Traces { process: Path::new("/proc").join(pid), folder: folder.into() };
    assert!(traces.process.exists() && traces.folder.exists());
    let guard = parent_of(&traces.process);
    let guard = pidfd_open(guard, PidfdFlags::empty()).unwrap();

    tests.kill().unwrap();
    tests.wait().unwrap();

    let patience = PATIENCE.try_into().unwrap();
    let ended = poll(&mut [PollFd::new(&guard, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ended, 1, "the guard does not end");
    traces.assert_none();
}

/// The guard process is the parent of its server.
fn parent_of(process: &Path) -> Pid {
    let status = fs::read_to_string(process.join("status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    Pid::from_raw(parent.trim().parse().unwrap()).unwrap()
}

const HOLD: &str = "ONWARD_TESTKIT_HOLD";

/// Does nothing, unless it is run by the test above.
#[test]
fn holds_a_server_until_it_is_killed() {
    if std::env::var_os(HOLD).is_none() {
        return;
    }
    let nats = NatsServer::start().unwrap();
    let line = format!("\n{HOLD} {} {}\n", nats.server().pid().as_raw_pid(), nats.server().folder().display());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
    loop {
        std::thread::park();
    }
}

/// The traces of a server that runs.
#[derive(Debug)]
struct Traces {
    process: PathBuf,
    folder: PathBuf,
}

impl Traces {
    fn of(server: &ServerProcess) -> Self {
        let process = Path::new("/proc").join(server.pid().as_raw_pid().to_string());
        let traces = Self { process, folder: server.folder().to_owned() };
        assert!(traces.process.exists() && fs::read_dir(&traces.folder).unwrap().count() > 0);
        traces
    }

    fn assert_none(&self) {
        assert!(!self.process.exists() && !self.folder.exists(), "{self:?} are still there");
    }
}

fn read_until(connection: &mut TcpStream, words: &str) -> String {
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut text = String::new();
    while !text.contains(words) {
        let mut some = [0; 4096];
        let count = connection.read(&mut some).unwrap();
        assert!(count > 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    text
}

fn psql(url: &str, command: &str) -> String {
    let output = Command::new("psql").args(["-qtA", url, "-c", command]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_synchronous_standby_has_what_was_answered_and_takes_the_primarys_place() {
    let primary = PostgresServer::start().unwrap();
    primary.ask("create table seen (n int)").unwrap();
    let standby = primary.start_synchronous_standby().unwrap();
    primary.ask("insert into seen values (7)").unwrap();
    primary.server().kill();
    standby.promote().unwrap();
    assert_eq!(standby.ask("insert into seen values (8) returning (select n from seen)").unwrap(), "7");
}

#[test]
fn a_primary_and_its_standby_can_have_an_address_each() {
    let (one, other) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3));
    let primary = PostgresServer::options().host(one).start().unwrap();
    let standby = primary.start_synchronous_standby_at(other).unwrap();
    assert_eq!((primary.socket_address().ip(), standby.socket_address().ip()), (one.into(), other.into()));
    assert_eq!(standby.ask("select pg_is_in_recovery()").unwrap(), "t");
    assert!(primary.database().unwrap().contains(&primary.socket_address().to_string()));
}

#[test]
fn a_proxy_passes_datagrams_on_from_the_port_of_its_connections() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let proxy = FaultProxy::with_datagrams(server.local_addr().unwrap()).unwrap();
    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    client.send_to(b"seen", (Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
    let mut buffer = [0; 16];
    let length = server.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"seen");
}

#[test]
fn a_proxy_does_to_connections_what_it_is_told() {
    let redis = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(redis.port()).unwrap();
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
    let is_closed = |connection: &mut TcpStream| {
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(connection.read(&mut [0; 64]), Ok(0) | Err(_))
    };
    let mut connection = connect();
    connection.write_all(b"SET seen 1\r\n").unwrap();
    read_until(&mut connection, "+OK");

    proxy.hold(Way::ToServer, 1);
    assert_eq!(redis_value(&mut connection), "1");
    connection.write_all(b"SET seen 2\r\n").unwrap();
    proxy.wait_until_held();
    proxy.abandon();
    assert!(is_closed(&mut connection));
    let mut other = connect();
    assert_eq!(redis_value(&mut other), "1");
    proxy.release();
    assert_eq!(redis_value(&mut other), "2", "it is carried out though nobody waits for it any more");

    proxy.lose_next_answer();
    other.write_all(b"SET seen 3\r\n").unwrap();
    assert!(is_closed(&mut other));
    let mut connection = connect();
    assert_eq!(redis_value(&mut connection), "3");

    proxy.silence(true);
    connection.write_all(b"PING\r\n").unwrap();
    proxy.wait_until_held();
    proxy.silence(false);
    read_until(&mut connection, "+PONG");

    proxy.cut();
    assert!(is_closed(&mut connection));
    proxy.refuse(true);
    assert!(is_closed(&mut connect()));
    proxy.refuse(false);
    let mut connection = connect();
    proxy.delay(Duration::from_millis(1));
    connection.write_all(b"PING\r\n").unwrap();
    read_until(&mut connection, "+PONG");
}

fn redis_value(connection: &mut TcpStream) -> String {
    connection.write_all(b"GET seen\r\n").unwrap();
    let mut lines = BufReader::new(connection).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "$1");
    lines.next().unwrap().unwrap()
}
