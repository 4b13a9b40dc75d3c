//! Several managers that share one log: which of them leads, as each of them knows it, and how any of them answers any
//! client.
//!
//! [`leader`] is who leads, as this node knows it. [`forward`] passes calls on to that node, unless it is this one.

pub(crate) mod forward;
pub mod leader;
