//! Each wrapper speaks when something came, and only then.

use core::future::Future;
use core::time::Duration;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::process::Command;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tokio_stream::StreamExt;

use crate::failure::FailureKind;
use crate::heartbeat::{Beat, CancelWhy, Heartbeat, Observer};

/// Longer than anything here takes, on a busy computer too; what must be ended sleeps for longer.
const SOON: Duration = Duration::from_secs(120);

/// Reports on a heartbeat since they were last asked for.
struct BeatLog {
    newest: Arc<Mutex<Option<Beat>>>,
    came: Arc<Notify>,
    _observer: Observer,
}

impl BeatLog {
    fn take(&self) -> Option<Beat> {
        self.newest.lock().unwrap().take()
    }
}

fn heartbeat() -> (Heartbeat, BeatLog) {
    let heartbeat = Heartbeat::new();
    let (newest, came) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let observer = heartbeat.observe({
        let (newest, came) = (newest.clone(), came.clone());
        move |beat| {
            *newest.lock().unwrap() = Some(beat);
            came.notify_one();
        }
    });
    (heartbeat, BeatLog { newest, came, _observer: observer })
}

fn beat() -> Option<Beat> {
    Some(Beat::Beat)
}

fn progress(done: u64, total: u64) -> Option<Beat> {
    Some(Beat::Progress { done, total: Some(total) })
}

/// A script that `sh` runs.
fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(std::process::Stdio::null());
    command
}

#[tokio::test]
async fn a_reader_beats_for_every_read_that_got_something() {
    let (beats, said) = heartbeat();
    let (mut source, sink) = duplex(64);
    let mut reader = beats.reader(sink);
    let mut buffer = [0; 16];
    assert_eq!(said.take(), None);
    source.write_all(b"four").await.unwrap();
    assert_eq!((reader.read(&mut buffer).await.unwrap(), said.take()), (4, beat()));
    assert!(timeout(Duration::ZERO, reader.read(&mut buffer)).await.is_err());
    assert_eq!(said.take(), None, "waiting is no work");
    drop(source);
    assert_eq!((reader.read(&mut buffer).await.unwrap(), said.take()), (0, None), "nor is the end");
}

#[tokio::test]
async fn a_reader_with_a_total_reports_bytes() {
    let (beats, said) = heartbeat();
    let mut reader = beats.reader(&b"abcdefgh"[..]).of_total(8);
    let mut buffer = [0; 5];
    reader.read_exact(&mut buffer).await.unwrap();
    assert_eq!(said.take(), progress(5, 8));
    assert_eq!((reader.read(&mut buffer).await.unwrap(), said.take()), (3, progress(8, 8)));
}

#[tokio::test]
async fn a_stream_beats_for_every_item() {
    let (beats, said) = heartbeat();
    let mut items = beats.stream(tokio_stream::iter(["a", "b"]));
    assert_eq!((items.next().await, said.take()), (Some("a"), beat()));
    assert_eq!((items.next().await, said.take()), (Some("b"), beat()));
    assert_eq!((items.next().await, said.take()), (None, None));
    let mut waiting = beats.stream(tokio_stream::pending::<()>());
    assert!(timeout(Duration::ZERO, waiting.next()).await.is_err());
    assert_eq!(said.take(), None);
    let mut counted = beats.stream(tokio_stream::iter([1, 2])).of_total(2);
    counted.next().await;
    assert_eq!(said.take(), progress(1, 2));
}

#[tokio::test]
async fn a_closure_speaks_from_its_thread_and_is_waited_for() {
    let (beats, said) = heartbeat();
    let here = std::thread::current().id();
    let there = beats.blocking(move |beats| {
        beats.progress(1, 2);
        Ok(std::thread::current().id())
    });
    assert_ne!(there.await.unwrap(), here);
    assert_eq!(said.take(), progress(1, 2));

    let (release, released) = std::sync::mpsc::channel::<()>();
    let work = beats.blocking(move |beats| {
        released.recv().unwrap();
        beats.check()
    });
    assert!(timeout(Duration::ZERO, work).await.is_err(), "the handler was dropped");
    assert!(timeout(Duration::from_millis(20), beats.unblocked()).await.is_err(), "but its closure runs on");
    beats.cancel(CancelWhy::Asked);
    release.send(()).unwrap();
    timeout(SOON, beats.unblocked()).await.expect("it has returned");
}

#[tokio::test]
async fn a_closure_that_panics_takes_the_handler_with_it() {
    let (beats, _said) = heartbeat();
    let run = tokio::spawn({
        let beats = beats.clone();
        async move {
            beats
                .blocking(|_| -> Result<(), _> { panic!("on the thread") })
                .await
                .map_err(|failure| failure.to_string())
        }
    });
    assert!(run.await.unwrap_err().is_panic());
    timeout(SOON, beats.unblocked()).await.expect("nothing is left");
}

#[tokio::test]
async fn a_command_beats_by_what_it_writes_and_gives_the_end_of_it() {
    let (beats, said) = heartbeat();
    let output = beats.command(sh("echo out; echo err >&2")).await.unwrap();
    assert_eq!((&*output.stdout, &*output.stderr), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(said.take(), beat());
    beats.command(sh("true")).await.unwrap();
    assert_eq!(said.take(), None, "it wrote nothing");
    let long = beats.command(sh("head -c 200000 /dev/zero; printf end")).await.unwrap();
    assert_eq!((long.stdout.len(), long.stdout.ends_with(b"\0end")), (64 << 10, true));
}

#[tokio::test]
async fn a_command_that_fails_says_why() {
    let (beats, _said) = heartbeat();
    let script = "for n in 1 2 3 4 5 6 7; do echo \"line $n\" >&2; done; exit 3";
    let failure = beats.command(sh(script)).await.unwrap_err();
    let text = failure.to_string();
    assert!(text.starts_with("`sh` ended by exit status: 3: line 3\n") && text.ends_with("line 7"), "{text}");
    assert_eq!(failure.kind(), FailureKind::Retry { after: None });
    let failure = beats.command(sh("exit 75")).await.unwrap_err();
    assert_eq!(failure.to_string(), "`sh` ended by exit status: 75, which says that it will pass");
    assert_eq!(failure.kind(), FailureKind::Retry { after: None });
    let failure = beats.command(Command::new("no-such-program-anywhere")).await.unwrap_err();
    assert!(failure.to_string().starts_with("`no-such-program-anywhere` cannot be started: "), "{failure}");
}

/// A script whose processes hold a pipe open, which is read to its end when the last of them is gone.
pub(crate) fn watched(script: &str) -> (Command, impl Future<Output = ()> + use<>) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = sh(script);
    command.stdin(writer);
    let (closed, gone) = oneshot::channel();
    // Not a task: one that waits for ever would keep the runtime, and so the test, from ending.
    std::thread::spawn(move || closed.send(std::io::copy(&mut reader, &mut std::io::sink())));
    let gone = async { assert_eq!(gone.await.unwrap().unwrap(), 0, "nobody writes") };
    (command, gone)
}

/// A process of a session of its own, orphaned, that holds neither output.
const AWAY: &str = "(setsid sleep 1000 >/dev/null 2>&1 &);";

#[tokio::test]
async fn a_command_is_stopped_with_all_that_it_started() {
    let (beats, said) = heartbeat();
    let (command, gone) = watched(&format!("exec 3<&0; trap 'exit 0' TERM; sleep 1000 & {AWAY} echo ready; wait"));
    let run = beats.command(command);
    let cancel = async {
        said.came.notified().await;
        beats.cancel(CancelWhy::Asked);
    };
    let (ended, ()) = timeout(SOON, async { tokio::join!(run, cancel) }).await.expect("it stops");
    assert_eq!(ended.unwrap_err().kind(), FailureKind::Cancelled);
    timeout(SOON, gone).await.expect("nothing of it runs on");
    assert!(beats.command(sh("true")).await.is_err(), "nothing is started once it must stop");
}

#[tokio::test]
async fn a_command_that_is_dropped_is_killed() {
    let (beats, said) = heartbeat();
    let (command, gone) = watched(&format!("exec 3<&0; trap '' TERM; {AWAY} echo ready; while :; do sleep 1000; done"));
    let run = beats.command(command);
    tokio::select! {
        _ = run => panic!("it runs for ever"),
        () = said.came.notified() => {}
    }
    timeout(SOON, gone).await.expect("nothing of it runs on");
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed() {
    let (beats, _said) = heartbeat();
    let (command, gone) = watched(&format!("exec 3<&0; sleep 1000 & {AWAY} echo done"));
    assert_eq!(timeout(SOON, beats.command(command)).await.expect("it ends").unwrap().stdout, b"done\n");
    timeout(SOON, gone).await.expect("nothing of it runs on");
}
