//! Services seen from outside: real processes, and probes over a real port.

mod probes;
mod process;
#[path = "../../examples/service.rs"]
mod service;
mod support;
