//! Vacuuming: what was deleted leaves the indexes, so that a claim costs the same however many rows were published.
//!
//! PostgreSQL does it by itself, once a minute at most as it is shipped. A busy outbox deletes a million rows in that time,
//! and every claim passes over all of them. So a poller that has deleted many rows asks for it, over a connection of its
//! own and beside the publishing; nobody waits for it, and it waits for nobody's lock.
//!
//! It is for the owner of the table, of the database, or whoever has `MAINTAIN` on the table (PostgreSQL 17). Whoever is
//! none of them is refused by a warning alone, so it is asked first; the outbox then relies on PostgreSQL.

use core::time::Duration;

use onward_database::answered_within;

use super::PostgresRows;
use crate::error::OutboxError;

/// A role has the rights of those that it is a member of. `MAINTAIN` is a word that older servers refuse.
const IS_ALLOWED: &str = "SELECT pg_has_role(t.relowner, 'USAGE') OR pg_has_role(d.datdba, 'USAGE')
      OR CASE WHEN current_setting('server_version_num')::int >= 170000 THEN has_table_privilege(t.oid, 'MAINTAIN') END
      IS TRUE
    FROM pg_class t, pg_database d WHERE t.oid = 'onward_outbox'::regclass AND d.datname = current_database()";

/// A vacuum without truncating, which takes a lock that stops everybody, and with no more than one process.
const VACUUM: &str = "VACUUM (SKIP_LOCKED, TRUNCATE OFF, INDEX_CLEANUP ON, PARALLEL 0) onward_outbox";

impl PostgresRows {
    /// Says whether it was allowed to.
    pub(crate) async fn vacuum(&self, within: Duration) -> Result<bool, OutboxError> {
        let client = self.database.connect(|_| {}).await?;
        let vacuumed = answered_within(within, async {
            let is_allowed: bool = client.query_typed(IS_ALLOWED, &[]).await?[0].get(0);
            if is_allowed {
                client.batch_execute(VACUUM).await?;
            }
            Ok(is_allowed)
        });
        Ok(vacuumed.await?)
    }
}
