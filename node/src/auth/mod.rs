//! Tokens, scopes and secrets: who may do what.
//!
//! A token is 32 random bytes, shown once as `onw_…`. Only its SHA-256 is kept, in a [`TokenFile`] or a [`TokenTable`],
//! with the scopes that it gives. [`Scope`]s say what a call needs; `api::access` asks for them. [`Validity`] says for how long: a stream or
//! a wait lives no longer than the token that it was opened with.

#[cfg(test)]
mod fault_tests;
mod files;
mod known;
mod table;
mod tokens;
mod validity;

use core::fmt;
use core::str::FromStr;

pub use files::{FileError, SecretFolder, read_or_make_key, write_secret};
pub use known::TokenRights;
pub(crate) use table::tokens_of_folder;
pub use table::{SecretTable, TokenTable, TokenTableError};
pub(crate) use tokens::LOOK_EVERY;
pub use tokens::{NewToken, TOKEN_FILE, TOKENS_FILE, Token, TokenFile, read_or_make_token};
pub use validity::Validity;

/// Keys that are made once and kept: what was signed with one stays good over restarts and takeovers.
pub trait Secrets: Send + Sync {
    /// The key of this name, made at random if there is none yet. Whoever asks for it, and whenever, gets the same.
    fn key(&self, name: &str) -> Result<[u8; 32], SecretError>;
}

/// The reason why a key is not known.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("{0}")]
    File(#[from] FileError),
    #[error("{0}")]
    Database(#[from] onward_log::Error),
}

/// The tokens that are good now. They are added and revoked elsewhere, while the node runs.
pub trait Tokens: Send + Sync + fmt::Debug {
    /// The rights of the token, if it is one of ours. Compares with every token, whichever it is, in the same time.
    fn find(&self, text: &str) -> Option<TokenRights>;

    /// Looks again if something is open with one of the tokens: whatever is open with one that is gone ends.
    fn look_for_open(&self);
}

/// A right that a token gives. Each stands for itself: `operate` does not include `submit`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    Read,
    Submit,
    Work,
    Operate,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Work, Self::Operate];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Operate => "operate",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no scope; there are read, submit, work and operate")]
pub struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(word: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.word() == word).ok_or_else(|| UnknownScope(word.to_owned()))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Scopes(u8);

impl Scopes {
    pub const ALL: Self = Self(0b1111);

    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.has(*scope))
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |set, scope| set | 1 << scope as u8))
    }
}

impl serde::Serialize for Scopes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> serde::Deserialize<'de> for Scopes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<Scope>::deserialize(deserializer).map(|scopes| scopes.into_iter().collect())
    }
}
