//! Several managers that share one log: which of them leads, as each of them knows it.

pub mod leader;
