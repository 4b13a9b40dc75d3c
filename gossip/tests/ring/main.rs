//! Whole rings in simulated time.

mod membership;
mod trust;
mod world;
