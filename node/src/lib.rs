//! The shell around the core: everything that a node *does*.
//!
//! [`engine`] drives the machine: inputs → step → commit → effects, durable before visible. [`clock`] is what it is told
//! of time, [`catalog`] lets jobs be listed. [`api`] is HTTP, [`auth`] who may use it; [`server`] puts both on a port.

pub mod api;
pub mod auth;
pub mod catalog;
pub mod clock;
pub mod engine;
pub mod server;
