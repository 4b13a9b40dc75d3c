//! A node on a port, from outside, by HTTP.

#[path = "../rig/mod.rs"]
mod rig;

mod auth;
mod backups;
mod damage;
mod dead_letters;
mod description;
mod inputs;
mod leases_api;
mod limits;
mod metrics;
mod older_folder;
mod outputs;
mod probes;
mod revocation;
mod server;
mod shedding;
mod workers;
