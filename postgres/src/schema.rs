//! The tables: made once, by whoever starts first, and brought up to date by whoever is newer.
//!
//! They lie in a schema of their own, `onward`, so that they meet no table of anybody else, and each statement names it.
//! Versions count from 1; what an older program may not use any more says which program is needed.

use tokio_postgres::Row;

use crate::connection::Connection;
use crate::failure::{OpenError, RequestFailure};

/// Statements that lead to each version, from the one before.
const STEPS: &[&str] = &[
    include_str!("../schema/1.sql"),
    include_str!("../schema/2.sql"),
    include_str!("../schema/3.sql"),
    include_str!("../schema/4.sql"),
];

/// The version of onward that made the newest step, and reads what it leaves.
const NEEDS: &str = env!("CARGO_PKG_VERSION");

/// The lock by which one that migrates keeps others waiting: the letters `onwd`, and `s`.
const LOCK: i64 = (0x6f6e_7764 << 8) + 0x73;

const EXISTS: &str = "select to_regclass('onward.version') is not null";
const VERSION: &str = "select version, needs from onward.version";

/// Brings the tables to the version that this program knows.
pub(crate) fn migrate(connection: &mut Connection) -> Result<(), OpenError> {
    let mut tried = false;
    loop {
        let found = version(connection)?;
        let known = i32::try_from(STEPS.len()).expect("there are few steps");
        match found {
            Some((found, _)) if found == known => return Ok(()),
            Some((found, needs)) if found > known => return Err(OpenError::NewerSchema { found, known, needs }),
            found => {
                let found = found.map_or(0, |(found, _)| found);
                if tried {
                    return Err(OpenError::Refused(format!("the tables are still of version {found}")));
                }
                tried = true;
                let deadline = connection.read_deadline();
                connection.batch(&script(found, known), deadline).map_err(opened)?;
            }
        }
    }
}

/// Statements that bring the tables from one version to another, if they are still of that version once it is our turn.
/// Sent at once, it is one transaction.
fn script(found: i32, known: i32) -> String {
    let first = usize::try_from(found).unwrap_or_default();
    let steps = STEPS[first..].join("\n");
    format!(
        "select pg_advisory_xact_lock({LOCK});
         do $migration$ begin
         if to_regnamespace('onward') is null then create schema onward; end if;
         create table if not exists onward.version (version int not null, needs text not null, at timestamptz not null);
         if coalesce((select version from onward.version), 0) = {found} then
         {steps}
         delete from onward.version;
         insert into onward.version values ({known}, '{NEEDS}', now());
         end if;
         end $migration$"
    )
}

fn version(connection: &mut Connection) -> Result<Option<(i32, String)>, OpenError> {
    let deadline = connection.read_deadline();
    let exists = connection.look(EXISTS, &[], deadline).map_err(opened)?;
    if !exists[0].get::<_, bool>(0) {
        return Ok(None);
    }
    let rows = connection.look(VERSION, &[], deadline).map_err(opened)?;
    Ok(rows.first().map(|row: &Row| (row.get(0), row.get(1))))
}

fn opened(failure: RequestFailure) -> OpenError {
    match failure {
        RequestFailure::NotConnected(error) => error,
        RequestFailure::Refused { cause } | RequestFailure::Full { cause } => OpenError::Refused(cause),
        RequestFailure::Unknown { cause } => OpenError::Unreachable(cause),
    }
}
