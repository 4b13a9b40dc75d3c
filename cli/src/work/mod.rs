//! Commands as jobs: the handler of kind `exec`, and what runs it.
//!
//! `handler` turns an attempt into a command under its guard (see the crate `onward-exec`) and its doings into beats;
//! `relay` passes on what it prints; `exit` says how a command ended; `serve` is the worker of `onward up` and `onward worker`.

pub mod exit;
pub mod handler;
mod relay;
pub mod serve;

use std::sync::Arc;

use onward::NodeAddress;
use onward_node::server::Node;

/// A node in this process, reached without a port.
pub fn inside(node: &Node, token: &str) -> NodeAddress {
    let door = node.door();
    let opener = move || Ok(Box::new(door.open()?) as Box<dyn onward::address::Stream>);
    NodeAddress::inside(&node.address().to_string(), Arc::new(opener)).with_token(token)
}

/// The number of commands at a time unless told otherwise: that of processors.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}
