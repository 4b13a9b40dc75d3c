//! Several managers that share one log: which of them leads, when another tries to, and how the seat is handed over.

pub mod leader;
mod leadership;

pub use leadership::{HandoverError, Heir, Heirs, Leadership, SeatLook, SoleLeader};
