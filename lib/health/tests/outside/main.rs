//! Services seen from outside: real processes, and probes over a real port.

mod probes;
mod process;
mod schedules;
#[path = "../../examples/service.rs"]
mod service;
mod signals;
mod support;
