//! Any manager answers any client: calls through a node that follows, over real sockets. Who leads is set by hand.

mod changes;
mod failures;
mod grpc;
mod pair;
mod passing;
#[path = "../rig/mod.rs"]
mod rig;
