//! Several managers that share one log: which of them leads, when another tries to, how the seat is handed over, and how any
//! of them answers any client.
//!
//! [`Leadership`] says when to try for the seat, and `handover` how a leader gives it up. [`leader`] is who leads, as this node knows it. `forward` passes calls on
//! to that node, unless it is this one.

pub(crate) mod forward;
pub(crate) mod handover;
pub mod leader;
mod leadership;

pub use leadership::{HandoverError, Heir, Heirs, Leadership, OwnStanding, SeatLook, SoleLeader};
