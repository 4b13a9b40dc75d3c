//! The leader changes while calls are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tempfile::tempdir;
use tokio::net::TcpStream;

use crate::pair::{Pair, follow, follow_nobody, lead, member};
use crate::rig::{Request, until};

const CALLERS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_while_the_leader_changes() {
    let pair = Pair::start().await;
    let data = tempdir().unwrap();
    let next = member("c", &data).await;
    follow(&next, pair.leader.address());
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let everywhere = [pair.leader.address(), pair.follower.address(), next.address()];
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let (stop, made, address) = (stop.clone(), made.clone(), everywhere[n % everywhere.len()]);
            tokio::spawn(async move {
                // Without a key: none of these may be made again in doubt.
                let submission = Request::post("/v1/jobs", &json!({ "kind": "k" }));
                let mut stream = TcpStream::connect(address).await.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let reply = submission.send_on(&mut stream, address).await;
                    assert_eq!(reply.status, 201, "{} {}", reply.head, String::from_utf8_lossy(&reply.body));
                    made.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let more = async |count: usize| {
        let before = made.load(Ordering::Relaxed);
        until(async || made.load(Ordering::Relaxed) >= before + count).await;
    };
    more(2 * CALLERS).await;
    for round in 0..4 {
        let (old, new) = if round % 2 == 0 { (&pair.leader, &next) } else { (&next, &pair.leader) };
        for node in [&pair.follower, old, new] {
            follow_nobody(node);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        // Not all learn it at the same time, or in the best order.
        follow(&pair.follower, new.address());
        tokio::time::sleep(Duration::from_millis(50)).await;
        lead(new);
        follow(old, new.address());
        more(2 * CALLERS).await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let mut kept = 0;
    for node in [&pair.leader, &next] {
        kept += node.engine().read(|view| view.manager.view().jobs).await.unwrap();
    }
    assert_eq!(kept, made.load(Ordering::Relaxed), "each once");
    assert_eq!(pair.follower.engine().read(|view| view.manager.view().jobs).await, Ok(0));
}
