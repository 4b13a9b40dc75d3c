//! The run loop on a disk that fails.

mod archiving;
mod disk;
mod every;
mod rig;
mod terms;
mod world;
