//! Gossip: which nodes there are, whether they answer, and how each says it is.
//!
//! SWIM, by [foca](https://docs.rs/foca), made ours by what stands around it. In the order a datagram passes through:
//!
//! 1. [`key`]: the cluster's key. Who does not have it cannot join, and cannot be believed.
//! 2. [`datagram`]: `[key id 1][counter 8][MAC 16][health ≤ 64][foca]`, 1,300 bytes at most. What does not fit, or was
//!    not sealed with a key of ours, is dropped and counted before anybody looks into it.
//! 3. [`replay`]: a window per life of a sender, so that a datagram counts once.
//! 4. [`codec`]: how foca's messages and our [`identity`] lie in their bytes.
//! 5. [`health`]: what a node says about itself; it rides on every datagram, and a change of class is broadcast too.
//! 6. [`machine`]: all of it as one machine, `step(now, input, &mut effects)` and `next_wakeup()`. [`stretch`] slows its
//!    timers down while this process is slow itself. [`view`] is what others read of it.
//!
//! What gossip is trusted with: it says who answers, and it says when to look. It decides no failover, it gives nobody a
//! seat, and its word alone takes no work from anybody.

pub mod codec;
pub mod datagram;
pub mod health;
mod health_table;
pub mod identity;
pub mod key;
pub mod machine;
pub mod replay;
pub mod stretch;
pub mod view;

pub use datagram::{DropCounts, DropReason, MAX_DATAGRAM_BYTES};
pub use health::NodeHealth;
pub use identity::{NodeIdentity, NodeLabel, Ring, Role};
pub use key::{ClusterKey, ClusterKeys, KeyError};
pub use machine::{Effect, Gossip, GossipRule, Input};
pub use view::{Disagreement, MemberState, MemberView, RingView};
