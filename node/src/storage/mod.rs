//! What a node keeps, as one bundle, and the one place that says which engines keep it.
//!
//! | part | what is in it | embedded |
//! |---|---|---|
//! | log | events, content, snapshots, the seat | `onward.redb`, `onward.journal` |
//! | archive | finished jobs and their content | `archive.redb` |
//! | secrets | the key of receipts | `receipt.key` |
//! | tokens | digests of tokens, and their scopes | `tokens.json` |
//! | outputs | the end of what attempts print | `output/` |
//!
//! Whoever takes over must find all of it: so where several managers share a log, they share the rest as well, and a
//! second engine is a second constructor here.

#[cfg(test)]
mod conformance;
mod embedded;

use std::sync::Arc;

use onward_log::{Archive, Error, Log};

use crate::auth::{Secrets, Tokens};
use crate::engine::Backup;
use crate::outputs::OutputStore;

/// Everything that outlives the process.
pub struct Storage {
    /// Gives a handle on the log; asked again for every term.
    pub log: Box<dyn FnMut() -> Result<Box<dyn Log>, Error> + Send>,
    pub archive: Arc<dyn Archive>,
    pub secrets: Box<dyn Secrets>,
    pub tokens: Box<dyn Tokens>,
    pub outputs: Box<dyn OutputStore>,
    /// Copies all of it to a file, where the engine has no way of its own for that.
    pub backup: Option<Backup>,
    /// Whether nothing that was acknowledged is missing.
    pub is_whole: bool,
}

impl core::fmt::Debug for Storage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Storage").finish_non_exhaustive()
    }
}
