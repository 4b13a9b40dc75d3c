//! Takes the reports of one attempt's processes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::attempt::AttemptEvent;
use crate::report::{CommandReport, MAX_LINE_BYTES, ReportAnswer};
use crate::wire;

/// Connections at a time; the next wait for one to end.
const CONNECTIONS: usize = 16;

/// A connection that says nothing for so long is closed. The next report makes a new one.
const IDLE: Duration = Duration::from_secs(30);

/// Serves until it is aborted. Each report is answered when it has become an event.
pub(crate) async fn serve(listener: UnixListener, events: mpsc::Sender<AttemptEvent>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else { return };
        let events = events.clone();
        connections.spawn(async move {
            // The process at the other end sees that its connection is gone.
            let _ = converse(stream, &events).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse(stream: UnixStream, events: &mpsc::Sender<AttemptEvent>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let limit = MAX_LINE_BYTES as u64 + 1;
        timeout(IDLE, (&mut stream).take(limit).read_until(b'\n', &mut line)).await??;
        if line.is_empty() {
            return Ok(());
        }
        let is_whole = line.ends_with(b"\n");
        let answer = if line.len() > MAX_LINE_BYTES {
            ReportAnswer::Refused(format!("the report is longer than {MAX_LINE_BYTES} bytes"))
        } else {
            match CommandReport::parse(&line) {
                Ok(report) => match events.send(event(report)).await {
                    Ok(()) => ReportAnswer::Noted,
                    Err(_) => ReportAnswer::Refused("the attempt is being stopped".to_owned()),
                },
                Err(why) => ReportAnswer::Refused(why),
            }
        };
        stream.write_all(&wire::encode_line(&answer)?).await?;
        if !is_whole {
            return Ok(());
        }
    }
}

fn event(report: CommandReport) -> AttemptEvent {
    match report {
        CommandReport::Progress { done, total, note } => AttemptEvent::Progress { done, total, note },
        CommandReport::Quiet { for_ms } => AttemptEvent::Quiet(Duration::from_millis(for_ms)),
        CommandReport::Result(json) => AttemptEvent::Result(json),
    }
}
