//! For tests: a node in the test's own process, with data of its own that goes with it.
//!
//! ```no_run
//! # async fn test() -> Result<(), Box<dyn std::error::Error>> {
//! let node = onward_node::testing::TestNode::start().await?;
//! // onward::Client::connect(&node.url()), onward::Worker::connect(&node.url()), or plain HTTP.
//! # Ok(()) }
//! ```
//!
//! A handler alone, without a node and in time that the test decides, is what `onward::testing` is for.

use core::time::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use onward_core::health::overload::{LoadLimits, OverloadRule};
use onward_core::settings::Settings;

use crate::server::{Node, NodeConfig, StartError};

/// A node on a port of its own on loopback. Dropped, it stops at once, and its data is gone.
#[derive(Debug)]
pub struct TestNode {
    /// Some until it is dropped: it goes before its folder.
    node: Option<Node>,
    data: PathBuf,
}

impl TestNode {
    pub async fn start() -> Result<Self, StartError> {
        Self::start_with(|_| {}).await
    }

    /// Starts a node with settings that differ, such as shorter leases.
    ///
    /// # Panics
    /// If they are out of their ranges.
    pub async fn start_with(change: impl FnOnce(&mut Settings)) -> Result<Self, StartError> {
        let data = own_folder();
        let mut config = NodeConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)), &data);
        let mut settings = patient();
        change(&mut settings);
        config.rules = settings.check().unwrap_or_else(|bad| panic!("settings out of range: {bad:?}"));
        let node = Some(Node::start(config).await?);
        Ok(Self { node, data })
    }

    pub fn node(&self) -> &Node {
        self.node.as_ref().expect("it is there until it is dropped")
    }

    pub fn url(&self) -> String {
        self.node().url()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.node.take();
        if let Err(error) = std::fs::remove_dir_all(&self.data) {
            tracing::warn!(%error, data = %self.data.display(), "the data of a test stays behind");
        }
    }
}

/// Settings for any computer: its load is not what tests are about, so nothing is turned away for that, and nobody
/// loses a seat by it.
fn patient() -> Settings {
    let far = LoadLimits { busy: 1e9, stressed: 2e9, overloaded: 3e9 };
    let overload = OverloadRule { rise: far, latency_ms: far, resource_percent: far, ..OverloadRule::default() };
    let long = Duration::from_secs(600);
    Settings { overload, seat_ttl: 2 * long, gap_after: long, ..Settings::default() }
}

fn own_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut random = [0; 8];
    // Without randomness the pid still tells processes apart.
    let _ = getrandom::fill(&mut random);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!(
        "onward-test-{}-{number}-{:016x}",
        std::process::id(),
        u64::from_be_bytes(random)
    ))
}
