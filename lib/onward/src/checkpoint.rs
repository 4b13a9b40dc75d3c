//! A checkpoint with two owners: what the handler left, and beside it the name of the session of its agent.
//!
//! ```text
//!   what the handler left                                 no agent ran
//!   onward-agent-session:NAME                             an agent ran, and the handler left nothing
//!   onward-agent-session:NAME⏎what the handler left       both
//! ```

/// The mark in front of the name of a session. Names have no line ends.
const POINTER: &[u8] = b"onward-agent-session:";

/// The two parts of a checkpoint. An empty name is none: it keeps a handler's bytes from being taken for a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CheckpointParts<'a> {
    pub session: Option<&'a str>,
    pub own: Option<&'a [u8]>,
}

impl<'a> CheckpointParts<'a> {
    pub fn of(bytes: &'a [u8]) -> Self {
        let Some(rest) = bytes.strip_prefix(POINTER) else { return Self { session: None, own: Some(bytes) } };
        let end = rest.iter().position(|&byte| byte == b'\n');
        let (name, own) = end.map_or((rest, None), |end| (&rest[..end], Some(&rest[end + 1..])));
        Self { session: core::str::from_utf8(name).ok().filter(|name| !name.is_empty()), own }
    }

    pub fn join(self) -> Vec<u8> {
        let Self { session, own } = self;
        let looks_like_both = own.is_some_and(|own| own.starts_with(POINTER));
        let mut whole = Vec::new();
        if session.is_some() || looks_like_both {
            whole.extend_from_slice(POINTER);
            whole.extend_from_slice(session.unwrap_or_default().as_bytes());
            whole.extend(own.map(|_| b'\n'));
        }
        whole.extend_from_slice(own.unwrap_or_default());
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_come_back_as_they_were() {
        for (session, own) in [
            (None, Some(&b"page 3"[..])),
            (None, Some(b"")),
            (Some("job-0"), None),
            (Some("job-0"), Some(b"")),
            (Some("job-0"), Some(b"page\n3\xff")),
            (None, Some(b"onward-agent-session:mine\nown")),
            (Some("job-0"), Some(b"onward-agent-session:mine\nown")),
        ] {
            let parts = CheckpointParts { session, own };
            assert_eq!(CheckpointParts::of(&parts.join()), parts, "{parts:?}");
        }
        assert_eq!(
            CheckpointParts { session: None, own: Some(b"page 3") }.join(),
            b"page 3",
            "as it is, without an agent"
        );
    }
}
