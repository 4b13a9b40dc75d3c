//! Gates and managers together, with a hand on the clock and on the network between them.
//!
//! `scenarios` tells stories; `chaos` lets everything break at random, then heals it. `ONWARD_SOAK_CASES` sets the number
//! of cases, and `ONWARD_CHAOS_SEED=n` runs one alone.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]

mod chaos;
mod epochs;
mod known_names;
mod ledgers;
mod local_timeouts;
mod orphans;
mod rules;
mod scenarios;
mod timing;
mod world;
