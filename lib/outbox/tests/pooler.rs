//! Behind PgBouncer in transaction mode, with fewer connections to the database than there are of us: whatever is left behind
//! in a session is found by somebody else.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use onward_health::Supervisor;
use onward_outbox::{Outbox, PublishError, Publisher, Row, Supervise, enqueue};
use onward_testkit::PostgresServer;
use tokio_postgres::NoTls;

const PATIENCE: Duration = Duration::from_secs(120);

struct Pooler {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    fn start(server: &PostgresServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let file = folder.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=onward\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             auth_type = any\nauth_file = /dev/null\npool_mode = transaction\ndefault_pool_size = 2\n\
             unix_socket_dir =\nserver_reset_query_always = 0\n",
            server.port()
        );
        // `any` lets everybody in, as the user that is named above.
        std::fs::write(&file, settings).unwrap();
        // A search path often lacks where Debian puts it.
        let program =
            if std::path::Path::new("/usr/sbin/pgbouncer").exists() { "/usr/sbin/pgbouncer" } else { "pgbouncer" };
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "postgres"]);
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut child =
            command.arg(&file).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("pgbouncer is installed");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        let is_up = lines.by_ref().map_while(Result::ok).any(|line| {
            said.push(line.clone());
            line.contains("process up")
        });
        assert!(is_up, "pgbouncer did not start: {said:?}");
        // It must not be stopped by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, port, _folder: folder }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Clone, Default)]
struct ReceivedRows(Arc<Mutex<Vec<(String, String)>>>);

impl Publisher for ReceivedRows {
    async fn publish(&self, rows: &[Row]) -> Vec<Result<(), PublishError>> {
        let mut received = self.0.lock().unwrap();
        for row in rows {
            received.push((row.key.clone().unwrap_or_default(), String::from_utf8_lossy(&row.payload).into_owned()));
        }
        vec![Ok(()); rows.len()]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_published_in_order_through_a_pooler_that_gives_out_connections_by_transaction() {
    let server = PostgresServer::shared();
    let direct = server.database().unwrap();
    let pooler = Pooler::start(server);
    let url = direct.replace(&format!(":{}/", server.port()), &format!(":{}/", pooler.port));
    assert_ne!(url, direct);
    let received = ReceivedRows::default();
    let mut services = Vec::new();
    for _ in 0..3 {
        let outbox = Outbox::postgres(&url).await.unwrap();
        let service = Supervisor::new("shop").without_signals();
        service.outbox(outbox.publish_to(received.clone()).every(Duration::from_millis(5)).batch(20));
        services.push((service.stopper(), tokio::spawn(service.run())));
    }
    let (mut writer, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    for number in 0..200 {
        let transaction = writer.transaction().await.unwrap();
        for key in 0..5 {
            enqueue(&transaction, Row::new("rows").key(key).payload(number.to_string())).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }
    let began = Instant::now();
    while received.0.lock().unwrap().len() < 1_000 {
        assert!(began.elapsed() < PATIENCE, "not all rows came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (stopper, running) in services {
        stopper.stop();
        running.await.unwrap().unwrap();
    }
    let received = received.0.lock().unwrap();
    assert_eq!(received.len(), 1_000, "each row came once");
    for key in 0..5 {
        let numbers =
            received.iter().filter(|(of, _)| *of == key.to_string()).map(|(_, number)| number.parse::<u32>().unwrap());
        assert!(numbers.eq(0..200), "the rows of {key} came in another order");
    }
}
