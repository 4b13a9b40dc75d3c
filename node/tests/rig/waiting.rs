//! Waiting for what others do: until it is so, however long it takes.

#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes, on a busy computer too; a test that waits for it has failed.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Asks again and again, but not for ever.
pub async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            // What is asked may not wait for anything itself, and others must get on.
            yield_now().await;
        }
    };
    timeout(PATIENCE, asking).await.expect("it comes true in time");
}

/// Looks again and again until something that other threads do has happened, but not for ever.
pub async fn until_seen(what: &str, mut happened: impl FnMut() -> bool) {
    let looking = async {
        while !happened() {
            // Those who are waited for need the computer more.
            sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(PATIENCE, looking).await.is_ok(), "this never happened: {what}");
}
