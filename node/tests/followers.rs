//! What those who follow a job and do not read cost, counted by the allocator. A process of its own: nothing else
//! allocates here.

#![allow(unsafe_code, reason = "an allocator cannot be written without it")]

#[path = "rig/mod.rs"]
mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use onward_core::effect::Answer;
use onward_core::ids::JobId;
use onward_core::input::Call;
use onward_core::job::Draft;
use onward_core::message::{Report, Settlement};
use onward_node::server::Node;
use rig::{PATIENCE, Request, lease, poll_body, receipt, start, submit};
use tempfile::tempdir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes on to the system's allocator as it came; only sizes are added up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as it came.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as it came.
        unsafe { System.dealloc(block, layout) }
    }
}

const MIB: usize = 1 << 20;
const FOLLOWERS: usize = 300;

async fn follow(node: &Node, job: JobId) -> TcpStream {
    let mut stream = TcpStream::connect(node.address()).await.unwrap();
    let request = Request::get(&format!("/v1/jobs/{job}/events"));
    stream.write_all(request.text(node.address()).as_bytes()).await.unwrap();
    // The first bytes of the answer and no more: from now on it is followed, and nobody reads.
    let mut first = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    stream
}

async fn read_until(stream: &mut TcpStream, end: &str) {
    let mut text = String::new();
    let mut bytes = vec![0; 64 << 10];
    let reading = async {
        while !text.contains(end) {
            let count = stream.read(&mut bytes).await.unwrap();
            assert_ne!(count, 0, "{text}");
            // What is looked for may lie across two reads.
            let tail = text.len().saturating_sub(end.len());
            text.drain(..tail);
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    timeout(PATIENCE, reading).await.expect("it comes");
}

#[tokio::test]
async fn three_hundred_who_do_not_read_hold_next_to_nothing() {
    let data = tempdir().unwrap();
    let node = start(data.path()).await;
    let payload = format!("\"{}\"", "x".repeat(MIB - 2));
    let job = submit(node.engine(), Draft::of_kind("k", payload.into_bytes())).await;
    let held = lease(&node, poll_body("1")).await.pop().unwrap();
    let mut reader = follow(&node, job).await;
    let before = LIVE.load(Ordering::Relaxed);
    let growth = || LIVE.load(Ordering::Relaxed).saturating_sub(before);

    let mut unread = Vec::new();
    for _ in 0..FOLLOWERS {
        unread.push(follow(&node, job).await);
    }
    for n in 0..20_u32 {
        let by = core::time::Duration::from_secs(1);
        let request = onward_core::ids::Name::new(format!("r{n}")).unwrap();
        let extend = Call::Extend { job, by, reason: "more".into(), request };
        assert!(matches!(node.engine().call(extend).await, Ok(Answer::Extended { .. })));
    }
    read_until(&mut reader, "\"extensions_s\":20.0").await;
    assert!(growth() < 24 * MIB, "{} MiB while it runs", growth() / MIB);

    // Its result is told to all, and is there once.
    let claim = {
        let view = node.engine().read(move |view| view.manager.job(job)).await.unwrap().unwrap();
        view.workflows[0].running.as_ref().unwrap().claim
    };
    assert!(!receipt(&held).is_empty());
    let result = format!("\"{}\"", "y".repeat(MIB - 2)).into_bytes();
    let settle = Call::Settle(vec![Settlement::new(claim, Report::Succeed { result: result.into() })]);
    assert!(node.engine().call(settle).await.is_ok());
    read_until(&mut reader, "event: end").await;
    read_until(&mut reader, "\r\n0\r\n\r\n").await;
    assert!(growth() < 32 * MIB, "{} MiB when it has ended", growth() / MIB);
    drop(unread);
    rig::until(async || node.engine().stats().followed_bytes.get() == 0).await;
}
