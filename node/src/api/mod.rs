//! What users touch over HTTP.
//!
//! [`problem`] and [`json`] are the two shapes that everything has.

pub mod json;
pub mod problem;

use crate::engine::Engine;

/// What every handler can reach. Cheap to clone.
#[derive(Clone, Debug)]
pub struct App {
    pub engine: Engine,
}
