//! Tokens and keys in a database, which several nodes and command lines share.
//!
//! Who shows a token is compared with what this process knows, and waits for no database. What is known is looked at
//! again all the time ([`Tokens::look_for_open`]), so that a token is good, or no longer good, a moment after it was
//! added or revoked. While the database does not answer, what was known stays.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use onward_log::Error;
use onward_postgres::{PostgresSecrets, PostgresTokens, StoredToken, TokenInsert};

use super::files::{FileError, random_32, write_secret};
use super::known::{KnownTokens, TokenRights};
use super::tokens::{MAX_TOKENS, NewToken, TOKEN_FILE, TOKENS_FILE, Token, TokenFile, digest_of};
use super::{Scope, Scopes, SecretError, Secrets, Tokens};

/// Keys in a database.
#[derive(Clone, Debug)]
pub struct SecretTable(pub PostgresSecrets);

impl Secrets for SecretTable {
    fn key(&self, name: &str) -> Result<[u8; 32], SecretError> {
        Ok(self.0.key(name, random_32())?)
    }
}

/// Tokens in a database.
#[derive(Debug)]
pub struct TokenTable {
    stored: PostgresTokens,
    known: Mutex<TokenTableCache>,
}

#[derive(Debug, Default)]
struct TokenTableCache {
    changes: Option<i64>,
    tokens: KnownTokens,
    /// Set when the tokens could not be read, and that was said.
    in_trouble: bool,
}

/// The reason why a token was not added or revoked.
#[derive(Debug, thiserror::Error)]
pub enum TokenTableError {
    #[error("there is a token named `{0}`; revoke it, or take another name")]
    NameTaken(String),
    #[error("there are {MAX_TOKENS} tokens, and no more are kept; revoke some")]
    TooMany,
    #[error("{0}")]
    Database(#[from] Error),
    #[error("{0}")]
    File(#[from] FileError),
}

impl Tokens for TokenTable {
    fn find(&self, text: &str) -> Option<TokenRights> {
        self.known().tokens.find(&digest_of(text))
    }

    /// Waits for the database, and lets nobody else wait meanwhile.
    fn look_for_open(&self) {
        match self.look() {
            Ok(()) => self.known().in_trouble = false,
            Err(error) => {
                if !core::mem::replace(&mut self.known().in_trouble, true) {
                    tracing::error!(%error, "the tokens could not be read again; those known before stay");
                }
            }
        }
    }
}

impl TokenTable {
    pub fn open(stored: PostgresTokens) -> Result<Self, Error> {
        let table = Self { stored, known: Mutex::default() };
        table.look()?;
        Ok(table)
    }

    fn known(&self) -> MutexGuard<'_, TokenTableCache> {
        self.known.lock().expect("no thread panics while it holds this")
    }

    fn look(&self) -> Result<(), Error> {
        // Before they are read: what changes meanwhile is seen at the next look.
        let changes = self.stored.changes()?;
        if self.known().changes == Some(changes) {
            return Ok(());
        }
        let tokens = self.stored.list()?;
        let mut known = self.known();
        known.tokens.replace(tokens.iter().map(|token| (token.sha256, scopes_of(token))));
        known.changes = Some(changes);
        Ok(())
    }

    /// Makes a token and keeps its digest. The text is not kept anywhere.
    pub fn add(&self, name: &str, scopes: impl IntoIterator<Item = Scope>) -> Result<NewToken, TokenTableError> {
        let made = NewToken::make(name, scopes);
        self.store(&made)?;
        Ok(made)
    }

    fn store(&self, made: &NewToken) -> Result<(), TokenTableError> {
        let stored = StoredToken {
            name: made.token.name.clone(),
            scopes: made.token.scopes.iter().map(|scope| scope.word().to_owned()).collect(),
            created_at_ms: made.token.created_at_ms,
            hint: made.token.hint.clone(),
            sha256: digest_of(&made.text),
        };
        match self.stored.add(&stored, MAX_TOKENS)? {
            TokenInsert::Stored => Ok(()),
            TokenInsert::NameTaken => Err(TokenTableError::NameTaken(made.token.name.clone())),
            TokenInsert::TooMany => Err(TokenTableError::TooMany),
        }
    }

    /// False if there is none of this name.
    pub fn revoke(&self, name: &str) -> Result<bool, TokenTableError> {
        Ok(self.stored.revoke(name)?)
    }

    pub fn list(&self) -> Result<Vec<Token>, TokenTableError> {
        let listed = self.stored.list()?.into_iter().map(|token| {
            let scopes = scopes_of(&token);
            Token::of_stored(token.name, scopes, token.created_at_ms, token.hint, &token.sha256)
        });
        Ok(listed.collect())
    }

    /// Sees to it that the token in `<folder>/token`, which the command line on the node's machine uses, is good. One that
    /// is not known any more was revoked, or is another database's: it is not made good again, another takes its place. Where
    /// it is in doubt whether that was stored, the caller asks again with what was `made`.
    pub fn ensure_local(&self, folder: &Path, made: &mut Option<NewToken>) -> Result<(), TokenTableError> {
        let path = folder.join(TOKEN_FILE);
        let is_good = match std::fs::read_to_string(&path) {
            Ok(text) => self.find(text.trim()).is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(FileError::new(&path, format!("cannot be read: {error}")).into()),
        };
        if is_good {
            return Ok(());
        }
        // Each node has its own, so no name may be taken.
        let number = u32::from_le_bytes(random_32()[..4].try_into().expect("four bytes"));
        let made = made.get_or_insert_with(|| NewToken::make(&format!("local-{number:08x}"), Scope::ALL));
        match self.store(made) {
            // Stored by an earlier try.
            Err(TokenTableError::NameTaken(_)) if self.look().is_ok() && self.find(&made.text).is_some() => {}
            stored => stored?,
        }
        write_secret(&path, format!("{}\n", made.text).as_bytes())?;
        Ok(self.look()?)
    }
}

/// The tokens of a folder, as a database keeps them.
pub(crate) fn tokens_of_folder(folder: &Path) -> Result<Vec<StoredToken>, FileError> {
    let stored = TokenFile::list(folder)?.into_iter().map(|token| {
        let damaged =
            || FileError::new(&folder.join(TOKENS_FILE), format!("has no proper digest for `{}`", token.name));
        Ok(StoredToken {
            sha256: token.digest().ok_or_else(damaged)?,
            scopes: token.scopes.iter().map(|scope| scope.word().to_owned()).collect(),
            created_at_ms: token.created_at_ms,
            hint: token.hint.clone(),
            name: token.name,
        })
    });
    stored.collect()
}

/// A word that this program does not know allows nothing.
fn scopes_of(token: &StoredToken) -> Scopes {
    token.scopes.iter().filter_map(|word| word.parse::<Scope>().ok()).collect()
}
