//! Everything that a manager stores, on PostgreSQL 15 or newer.
//!
//! The promises are those of [`onward_log::Log`]. How they are kept here:
//!
//! - **Who may write** is one row, the seat, with a term. Every statement that changes the log locks that row under its
//!   writer's term, or changes nothing. Statements commit by themselves; no lock outlives one.
//! - **Durable** means that the database has answered `ReadyForQuery` without a warning. A commit that waits for a
//!   synchronous standby can be cancelled; PostgreSQL then reports *success*, and a warning that the standby may not have
//!   it. So the connection's messages are read here, and a warning means: not known.
//! - **Not known** is also what a connection that closes or does not answer in time leaves behind. Whoever asks the same again
//!   gets an answer: a batch that is found stored is acknowledged once a later write went through without a warning, since a
//!   standby receives writes in their order.
//! - **A request may arrive late**, after its sender has closed the connection and asked again on another. An append that comes
//!   late finds its place taken. What else changes something carries the seat's *beat*, which every such change raises.
//!
//! The settings that this depends on are forced on each connection and looked at before its first use
//! ([`OpenError`] says what is refused): they are lost behind a pooler that gives out a connection per transaction.
//!
//! A batch becomes visible to others when its commit has been answered, with one exception: a wait for the standby that
//! somebody cancelled, or whose backend was terminated, leaves a batch that is visible and may be missing on the standby.
//! What is read is therefore only as certain as the seat of whoever reads it: a leader reads after it took the seat, and
//! that write went to the standby after all that is read.
//!
//! Data flows through the modules in this order: `address` makes checked options of a URL, `tls` encrypts, `session` is one
//! connection with its checks and messages, `failure` says what an error means, `connection` asks and connects anew,
//! `schema` makes the tables, `log` and `archive` are the engines. `secrets`, `tokens` and `outputs` are what else a manager
//! keeps: whoever takes over must find all of it. `seat` and `members` are for those who consider
//! taking over, `import` for what another engine has kept.

mod address;
mod archive;
mod connection;
mod failure;
mod import;
mod log;
mod members;
mod outputs;
mod schema;
mod seat;
mod secrets;
mod session;
mod tls;
mod tokens;

use core::time::Duration;
use std::sync::Arc;

use connection::{Connection, Pool};
use failure::RequestFailure;
use onward_core::candidate::HolderId;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use session::{Connector, random_uuid};
use uuid::Uuid;

pub use address::DatabaseUrl;
pub use archive::PostgresArchive;
pub use failure::OpenError;
pub use import::{Import, ImportError};
pub use log::PostgresLog;
pub use members::MemberRow;
pub use outputs::{OutputFound, OutputKey, PostgresOutputs};
pub use seat::SeatView;
pub use secrets::PostgresSecrets;
pub use tokens::{PostgresTokens, StoredToken, TokenInsert};

/// The time that a request may take before its connection is given up and its outcome is not known. Shorter than
/// `seat_ttl`, so that there is time to ask again.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// Options with which a database is opened.
#[derive(Clone, Debug)]
pub struct DatabaseOptions {
    answered_within: Duration,
}

impl Default for DatabaseOptions {
    fn default() -> Self {
        Self { answered_within: ANSWERED_WITHIN }
    }
}

impl DatabaseOptions {
    /// The time that a request may take before its connection is given up; 2 s unless told. Requests that carry much
    /// get more.
    pub fn answered_within(mut self, limit: Duration) -> Self {
        self.answered_within = limit;
        self
    }

    /// Connects, and makes the tables if this is the first to come.
    pub fn open(&self, url: &str) -> Result<Database, OpenError> {
        let connector = Arc::new(Connector::new(url, self.answered_within)?);
        let mut first = Connection::new(connector.clone())?;
        schema::migrate(&mut first)?;
        let holder = random_uuid()?;
        let holder = Holder { id: holder, name: String::new(), address: String::new() };
        Ok(Database { pool: Arc::new(Pool::new(connector.clone(), first)), connector, holder })
    }
}

/// A database that a manager stores into. Its clones share the connections of everything but the logs.
#[derive(Clone, Debug)]
pub struct Database {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    holder: Holder,
}

/// The holder of seats by the logs of a database: one life of one process, and its address.
#[derive(Clone, Debug)]
struct Holder {
    id: Uuid,
    name: String,
    address: String,
}

/// The silence after which a name is free for the next who uses it.
const KEEPS_NAME: Duration = Duration::from_secs(10);

const STANDBYS: &str = "select current_setting('synchronous_standby_names')";

impl Database {
    /// Opens the database at this address (`postgres://user@host1,host2/name`), as [`DatabaseOptions::open`] does.
    ///
    /// Of several hosts the one that accepts writes is used. `sslmode=require` encrypts and checks the certificate, against
    /// the file in `sslrootcert` or against what browsers trust.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        DatabaseOptions::default().open(url)
    }

    /// A handle on the log of this name, with a connection of its own.
    pub fn log(&self, name: &str) -> Result<PostgresLog, onward_log::Error> {
        PostgresLog::open(name, self.holder.clone(), Connection::new(self.connector.clone())?, self.pool.clone())
    }

    /// Seats are taken under this name from now on, by who is reached at this address.
    pub fn reached_at(mut self, name: &str, address: &str) -> Self {
        (self.holder.name, self.holder.address) = (name.to_owned(), address.to_owned());
        self
    }

    /// The identity that takes seats by the logs of this database and of its clones.
    pub fn holder(&self) -> HolderId {
        seat::holder_id(self.holder.id)
    }

    /// The name under which seats are taken.
    pub fn name(&self) -> &str {
        &self.holder.name
    }

    /// Hands the seat of the log of this name, which we hold under this term, over to another life. False if the term is
    /// over.
    pub fn hand_over(&self, name: &str, term: Term, heir: HolderId) -> Result<bool, onward_log::Error> {
        SeatView::hand_over(name, term, self.holder.id, Uuid::from_u128(heir.0), &self.pool)
    }

    /// Says that we share the log of this name and live. False if our own name belongs to another that lives.
    pub fn put_member(
        &self,
        name: &str,
        applied: Seq,
        is_candidate: bool,
        reaches_leader: bool,
    ) -> Result<bool, onward_log::Error> {
        let member = MemberRow {
            name: self.holder.name.clone(),
            holder: self.holder(),
            address: self.holder.address.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            applied,
            is_candidate,
            reaches_leader,
            silent_for: Duration::ZERO,
        };
        member.put(name, &self.pool, KEEPS_NAME)
    }

    /// Members that share the log of this name, by their names.
    pub fn members(&self, name: &str) -> Result<Vec<MemberRow>, onward_log::Error> {
        MemberRow::list(name, &self.pool)
    }

    /// We share the log of this name no more.
    pub fn remove_member(&self, name: &str) -> Result<(), onward_log::Error> {
        MemberRow::remove(name, self.holder.id, &self.pool)
    }

    /// The seat of the log of this name, as it is seen.
    pub fn seat(&self, name: &str) -> Result<SeatView, onward_log::Error> {
        SeatView::look(name, &self.pool)
    }

    /// The standbys that a commit waits for, in PostgreSQL's words; empty if it waits for none.
    pub fn synchronous_standbys(&self) -> Result<String, onward_log::Error> {
        let rows = self.pool.look(STANDBYS, &[]).map_err(RequestFailure::of_look)?;
        Ok(rows[0].get(0))
    }

    /// The archive that belongs to the log of this name.
    pub fn archive(&self, name: &str) -> PostgresArchive {
        PostgresArchive::new(name, self.pool.clone())
    }

    /// The keys that belong to the log of this name.
    pub fn secrets(&self, name: &str) -> PostgresSecrets {
        PostgresSecrets::new(name, self.pool.clone())
    }

    /// The tokens that belong to the log of this name.
    pub fn tokens(&self, name: &str) -> Result<PostgresTokens, OpenError> {
        Ok(PostgresTokens::new(name, Connection::new(self.connector.clone())?))
    }

    /// The output that belongs to the log of this name; of each attempt so many bytes are kept.
    pub fn outputs(&self, name: &str, keep_bytes: usize) -> Result<PostgresOutputs, OpenError> {
        Ok(PostgresOutputs::new(name, keep_bytes, Connection::new(self.connector.clone())?))
    }
}
