//! What users touch over HTTP.
//!
//! [`problem`] and [`json`] are the two shapes that everything has.

pub mod access;
pub mod few;
pub mod instant;
pub mod jobs;
pub mod json;
pub mod may;
pub mod params;
pub mod payload;
pub mod problem;
pub mod span;

use crate::engine::Engine;

/// What every handler can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App {
    pub engine: Engine,
}
