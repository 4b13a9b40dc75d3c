//! Outages: of the broker, and of the process that receives. For the tests of crates whose mailbox has them.

use core::time::Duration;
use std::process::{Command, ExitStatus};

use super::{LONG, send, settle, take_now, take_one};
use crate::mailbox::{ChangeCertainty, End, Mailbox, MailboxError, Message, Received, Want};
use crate::messages::MessageLoop;

/// A holder works while the broker is away, and acknowledges when it is back: nothing is lost, and nothing is done twice.
/// The mailbox is empty, with leases that outlast the outage.
///
/// # Panics
/// If something is lost, or an error does not say that it may pass.
pub async fn check_outage(mailbox: &impl Mailbox, begin: impl AsyncFnOnce(), end: impl AsyncFnOnce()) {
    send(mailbox, "held").await;
    let held = take_one(mailbox, LONG).await;
    send(mailbox, "waits").await;
    begin().await;
    let extended = super::extend(mailbox, &held.receipt, LONG).await.expect_err("nobody is there");
    is_unheard(&extended);
    let sent = mailbox.send(vec![Message::new("unheard")]).await.remove(0);
    is_unheard(&sent.expect_err("nobody is there"));
    end().await;
    while let Err(error) = settle(mailbox, &held.receipt, End::ACK).await {
        assert!(error.is_passing(), "{error}");
        tokio::task::yield_now().await;
    }
    let next = patiently(mailbox).await;
    assert_eq!(next.message.body, "waits");
    settle(mailbox, &next.receipt, End::ACK).await.expect("it is held");
    assert_eq!(take_now(mailbox).await, [], "what was acknowledged is gone, and what was refused is not there");
}

fn is_unheard(error: &MailboxError) {
    assert!(error.is_passing() && error.changed() != ChangeCertainty::Yes, "{error}");
}

/// The next message. A connection that broke may be noticed by the first call after that.
async fn patiently(mailbox: &impl Mailbox) -> Received {
    let want = Want { max: 1, lease: LONG, wait: Duration::from_secs(60) };
    loop {
        match mailbox.receive(want).await {
            Ok(mut received) if !received.is_empty() => return received.remove(0),
            Ok(_) => {}
            Err(error) => assert!(error.is_passing(), "{error}"),
        }
    }
}

/// A message that aborts the process of its handler each time reaches the dead letters at its limit. `run` runs a process
/// that calls [`abort_by_message`], to its end.
///
/// # Panics
/// If a process ends otherwise, or the message does.
pub async fn check_abort(mailbox: &impl Mailbox, max_deliveries: u32, mut run: impl FnMut() -> ExitStatus) {
    use std::os::unix::process::ExitStatusExt;
    const SIGABRT: i32 = 6;
    send(mailbox, "poison").await;
    for _ in 0..max_deliveries {
        let ended = run();
        assert_eq!(ended.signal(), Some(SIGABRT), "{ended}");
    }
    let want = Want { max: 1, lease: LONG, wait: Duration::from_millis(200) };
    while mailbox.depth().await.expect("a depth").dead == 0 {
        assert_eq!(mailbox.receive(want).await, Ok(Vec::new()), "it is handed out no more");
    }
    let letter = mailbox.dead_letters(1).await.expect("dead letters").remove(0);
    assert_eq!((letter.message.body.as_ref(), letter.deliveries), (&b"poison"[..], max_deliveries));
}

/// Runs a message loop whose handler aborts this process.
pub async fn abort_by_message(mailbox: impl Mailbox, lease: Duration) {
    let messages = MessageLoop::on(mailbox).lease(lease).handle_bytes(|_| async { std::process::abort() });
    messages.run_until(core::future::pending()).await.expect("its settings are good");
}

/// Runs one test of this very program as a process of its own, with a variable that it is told by.
pub fn run_test(name: &str, variable: &str, value: &str) -> ExitStatus {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.args(["--exact", name, "--nocapture"]).env(variable, value);
    child.output().expect("it starts").status
}
