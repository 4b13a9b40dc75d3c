//! The shell around the core: everything that a node *does*.
//!
//! [`engine`] drives the machine: inputs → step → commit → effects, durable before visible. [`clock`] is what it is told
//! of time, [`catalog`] lets jobs be listed, [`outputs`] keeps what attempts print, [`storage`] is all that is kept. [`api`] is HTTP, [`grpc`] is what
//! workers and busy clients use instead, [`auth`] says who may use them; [`traces`] tells a collector what happened to jobs; [`server`] puts all on a port. [`cluster`] is what several managers of one log know of each other; [`gossip`] says how other nodes are, [`peer`] who they are. [`gate`] is a gate on the same run loop (`run_loop`), [`gates`] a manager's streams to gates. [`testing`] is a node for tests.

pub mod api;
pub mod auth;
mod backlog;
mod byte_room;
pub mod catalog;
pub mod clock;
pub mod cluster;
pub mod engine;
pub mod gate;
pub mod gates;
pub mod gossip;
pub mod grpc;
mod outbox;
pub mod outputs;
pub mod peer;
mod run_loop;
pub mod server;
pub mod storage;
pub mod testing;
pub mod traces;
