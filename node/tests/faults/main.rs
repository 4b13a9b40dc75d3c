//! The run loop on a disk that fails.

mod archiving;
mod disk;
mod rig;
mod terms;
