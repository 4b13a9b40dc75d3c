//! Sessions in this process: for tests, and for runs that may begin anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::{Entry, MAX_ENTRIES, Session, SessionError, Sessions, check_id, encode};

/// Most sessions that are kept, and most bytes of them all.
const MAX_SESSIONS: usize = 10_000;
const MAX_BYTES: usize = 256 << 20;

/// Sessions that end with the process. Clones share them. It keeps 10,000 of them and 256 MiB in all; what was not used
/// for the longest time is forgotten first, and a run that comes back to it begins anew.
#[derive(Clone, Debug)]
pub struct MemorySessions {
    kept: Arc<Mutex<SessionTable>>,
}

#[derive(Debug)]
struct SessionTable {
    sessions: HashMap<String, SessionSlot>,
    bytes: usize,
    /// Rises with every use.
    clock: u64,
    max_sessions: usize,
    max_bytes: usize,
}

#[derive(Debug)]
struct SessionSlot {
    session: Session,
    bytes: usize,
    at: u64,
}

impl Default for MemorySessions {
    fn default() -> Self {
        Self::new()
    }
}

impl MemorySessions {
    pub fn new() -> Self {
        Self::with_limits(MAX_SESSIONS, MAX_BYTES)
    }

    fn with_limits(max_sessions: usize, max_bytes: usize) -> Self {
        let kept = SessionTable { sessions: HashMap::new(), bytes: 0, clock: 0, max_sessions, max_bytes };
        Self { kept: Arc::new(Mutex::new(kept)) }
    }
}

impl SessionTable {
    /// Notes that a session is used.
    fn touch(&mut self, id: &str) -> Option<&mut SessionSlot> {
        self.clock += 1;
        let used = self.sessions.get_mut(id)?;
        used.at = self.clock;
        Some(used)
    }

    /// Forgets what was not used for the longest time, until one more session with so many bytes more fits.
    fn make_room(&mut self, keep: &str, sessions: usize, bytes: usize) {
        while self.sessions.len() + sessions > self.max_sessions || self.bytes + bytes > self.max_bytes {
            let others = self.sessions.iter().filter(|(id, _)| *id != keep);
            let Some(oldest) = others.min_by_key(|(_, used)| used.at).map(|(id, _)| id.clone()) else { return };
            self.bytes -= self.sessions.remove(&oldest).map_or(0, |used| used.bytes);
        }
    }
}

impl Sessions for MemorySessions {
    async fn open(&self, id: &str, fence: u64) -> Result<Session, SessionError> {
        check_id(id)?;
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        if !kept.sessions.contains_key(id) {
            kept.make_room(id, 1, 0);
            let session = Session { id: id.to_owned(), fence, entries: Vec::new() };
            kept.sessions.insert(id.to_owned(), SessionSlot { session, bytes: 0, at: 0 });
        }
        let session = &mut kept.touch(id).expect("it is there, or was put there").session;
        if session.fence > fence {
            return Err(SessionError::Stale { id: id.to_owned(), fence, newer: session.fence });
        }
        session.fence = fence;
        Ok(session.clone())
    }

    async fn append(&self, session: &Session, entry: &Entry) -> Result<(), SessionError> {
        let bytes = encode(entry, &session.id)?.len();
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        kept.make_room(&session.id, 0, bytes);
        let is_full = kept.bytes + bytes > kept.max_bytes;
        let Some(own) = kept.touch(&session.id) else {
            let why = "it was not opened here, or is forgotten for newer ones".into();
            return Err(SessionError::Unavailable { id: session.id.clone(), why });
        };
        if own.session.fence > session.fence {
            let newer = own.session.fence;
            return Err(SessionError::Stale { id: session.id.clone(), fence: session.fence, newer });
        }
        if is_full || own.session.entries.len() >= MAX_ENTRIES {
            return Err(SessionError::Full(session.id.clone()));
        }
        own.session.entries.push(entry.clone());
        own.bytes += bytes;
        kept.bytes += bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::SessionEvent;

    fn entry(length: usize) -> Entry {
        let key = "k".repeat(length);
        Entry { at_ms: 1, active_ms: 1, event: SessionEvent::ToolBegun { call: 0, key } }
    }

    #[tokio::test]
    async fn the_least_used_is_forgotten_when_there_are_too_many() {
        let sessions = MemorySessions::with_limits(2, MAX_BYTES);
        let first = sessions.open("first", 1).await.unwrap();
        sessions.append(&first, &entry(1)).await.unwrap();
        let second = sessions.open("second", 1).await.unwrap();
        sessions.append(&first, &entry(1)).await.unwrap();
        sessions.open("third", 1).await.unwrap();
        let forgotten = sessions.append(&second, &entry(1)).await;
        assert!(matches!(forgotten, Err(SessionError::Unavailable { .. })), "{forgotten:?}");
        assert_eq!(sessions.open("first", 1).await.unwrap().entries.len(), 2);
        assert_eq!(sessions.kept.lock().unwrap().sessions.len(), 2);
    }

    #[tokio::test]
    async fn bytes_are_bounded_by_forgetting_others_and_then_by_refusing() {
        let sessions = MemorySessions::with_limits(100, 1_000);
        let (old, new) = (sessions.open("old", 1).await.unwrap(), sessions.open("new", 1).await.unwrap());
        sessions.append(&old, &entry(500)).await.unwrap();
        sessions.append(&new, &entry(500)).await.unwrap();
        assert!(sessions.open("old", 1).await.unwrap().entries.is_empty(), "it is forgotten");
        let full = sessions.append(&new, &entry(500)).await;
        assert!(matches!(full, Err(SessionError::Full(_))), "{full:?}");
        let bytes = sessions.kept.lock().unwrap().bytes;
        assert!((500..1_000).contains(&bytes), "{bytes}");
    }
}
