//! Sessions in this process: for tests, and for runs that may begin anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Entry, MAX_ENTRIES, Session, SessionError, Sessions, check_id, encode};

/// Sessions that end with the process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    kept: Arc<Mutex<HashMap<String, Session>>>,
}

impl Memory {
    pub fn new() -> Self {
        Self::default()
    }
}

impl Sessions for Memory {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        check_id(id)?;
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        let empty = || Session { id: id.to_owned(), fence, entries: Vec::new() };
        let session = kept.entry(id.to_owned()).or_insert_with(empty);
        if session.fence > fence {
            return Err(SessionError::Stale { id: id.to_owned(), fence, newer: session.fence });
        }
        session.fence = fence;
        Ok(session.clone())
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        encode(entry, &session.id)?;
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        let Some(own) = kept.get_mut(&session.id) else {
            return Err(SessionError::Unavailable { id: session.id.clone(), why: "it was not opened here".into() });
        };
        if own.fence > session.fence {
            return Err(SessionError::Stale { id: session.id.clone(), fence: session.fence, newer: own.fence });
        }
        if own.entries.len() >= MAX_ENTRIES {
            return Err(SessionError::Full(session.id.clone()));
        }
        own.entries.push(entry.clone());
        Ok(())
    }
}
