//! The run loop on a disk that fails.

#[path = "../rig/waiting.rs"]
mod waiting;

mod archiving;
mod disk;
mod every;
mod files;
mod reads;
mod rig;
mod terms;
mod world;
