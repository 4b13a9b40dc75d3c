//! What answers say of a cluster, in their headers: who leads, and whether a call that came to nothing was carried out.

use core::fmt;
use core::str::FromStr;

/// The header with the leader's address and term: `onward-leader: host:port; term=7`.
pub const LEADER: &str = "onward-leader";
/// The header of a 503 that says whether the call was carried out: see [`CallFate`].
pub const DONE: &str = "onward-done";
/// The stable word of an answer that is not a success, for those who do not read its body.
pub const CODE: &str = "onward-code";
/// A manager has forwarded this request; nobody forwards it again.
pub const FORWARDED: &str = "onward-forwarded";

/// The fate of a call that got no answer of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CallFate {
    /// Surely not: it was refused before anything was decided, and may be made again anywhere.
    #[default]
    No,
    /// The call may have been carried out.
    Unknown,
}

impl CallFate {
    pub const fn word(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }

    /// None for a word that is not known: then nothing is known either.
    pub fn of(word: &[u8]) -> Option<Self> {
        [Self::No, Self::Unknown].into_iter().find(|done| done.word().as_bytes() == word)
    }
}

/// The value of [`LEADER`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaderHint {
    /// `host:port`, or a URL with its scheme.
    pub address: String,
    pub term: u64,
}

impl fmt::Display for LeaderHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; term={}", self.address, self.term)
    }
}

/// The text is not a hint that this version understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoHint;

impl FromStr for LeaderHint {
    type Err = NoHint;

    fn from_str(text: &str) -> Result<Self, NoHint> {
        let mut fields = text.split(';').map(str::trim);
        let address = fields.next().filter(|address| !address.is_empty()).ok_or(NoHint)?.to_owned();
        let term = fields.find_map(|field| field.strip_prefix("term=")?.parse().ok()).ok_or(NoHint)?;
        Ok(Self { address, term })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_read_as_it_is_written_and_may_say_more() {
        let hint = LeaderHint { address: "https://m2.example:7400".into(), term: 1_800_000_000 };
        assert_eq!(hint.to_string(), "https://m2.example:7400; term=1800000000");
        assert_eq!(hint.to_string().parse(), Ok(hint.clone()));
        assert_eq!("https://m2.example:7400; zone=b; term=1800000000".parse(), Ok(hint));
        for text in ["", "; term=1", "h:1", "h:1; term=x"] {
            assert_eq!(text.parse::<LeaderHint>(), Err(NoHint), "{text}");
        }
    }

    #[test]
    fn what_was_done_is_one_of_two_words() {
        for done in [CallFate::No, CallFate::Unknown] {
            assert_eq!(CallFate::of(done.word().as_bytes()), Some(done));
        }
        assert_eq!(CallFate::of(b"maybe"), None);
    }
}
