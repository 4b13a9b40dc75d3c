//! A node on a port, from outside, by HTTP.

#[path = "../rig/mod.rs"]
mod rig;

mod auth;
mod damage;
mod leases_api;
mod metrics;
mod outputs;
mod server;
mod shedding;
