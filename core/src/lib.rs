//! Everything that Onward decides, and nothing that it does.
//!
//! This crate holds the rules of one datacenter and the machine that composes them. It knows no clock, no socket, no
//! file and no global randomness: time and seeds come in as arguments, so the same code runs in production, in unit
//! tests with injected time and in a simulator, and the same inputs always give the same outputs.
//!
//! Read it in the order in which data flows:
//!
//! 1. [`time`], [`ids`], [`payload`], [`fence`], [`limits`], [`settings`]: the vocabulary. Clocks that cannot be mixed, tokens that
//!    cannot be compared with each other, a bound on everything that grows.
//! 2. [`job`]: what a client may ask for, how it is checked, and the one function that moves a workflow's state.
//! 3. The small rules, each with one home: [`beat`] (beat, watermark, quiet section), [`lease`], [`grant`],
//!    [`timeout`], [`backoff`], [`schedule`] (what becomes of a due instant), [`health`] (three signals, verdict, hold,
//!    datacenter, overload, loops), and [`mailbox`], a queue with leases for those who work without a manager. [`candidate`]: when a follower tries for the
//!    seat.
//! 4. [`input`], [`message`], [`event`], [`effect`], [`refusal`]: closed lists of what comes in, what is said to
//!    workers, what is written down, what is to be done, and how a caller is told no. [`late`]: what is answered about jobs
//!    that have left memory.
//! 5. [`state`]: the persisted truth, a fold over events. [`dispatch`]: who gets what, by heads instead of by search.
//! 6. [`manager`]: the machine. `step(now, input, &mut effects)`, `next_wakeup()`, `apply(event)`.
//! 7. [`gate`]: the machine above all datacenters, with lists of its own: it routes jobs, and ends them everywhere, once.
//!
//! [`counts`] and [`trace`] are what a dashboard and a collector of traces show of it. [`pages`] and [`wheel`] are the containers under it: a slab that never moves what it holds, and timers in O(1); [`table`] is for what lies beside a slab, [`list`] links what lies in either, and [`key`] is how they are spoken to.
//! [`intern`] lets equal values lie in memory once. [`bite`] says how much one step does of what grows with the number of jobs.

pub mod backoff;
pub mod beat;
pub mod bite;
pub mod candidate;
pub mod carried;
pub mod counts;
pub mod dispatch;
pub mod fence;
pub mod gate;
pub mod grant;
pub mod health;
pub mod ids;
pub mod intern;
pub mod job;
pub mod key;
pub mod late;
pub mod lease;
pub mod limits;
pub mod list;
pub mod mailbox;
pub mod manager;
pub mod pages;
pub mod payload;
pub mod refusal;
pub mod schedule;
pub mod settings;
pub mod state;
pub mod table;
pub mod time;
pub mod timeout;
pub mod trace;
pub mod wheel;

pub use manager::{effect, event, input, message};

/// The example in ARCHITECTURE.md runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../../ARCHITECTURE.md")]
struct Architecture;
