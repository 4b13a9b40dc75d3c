//! The tokens of a node, in `tokens.json` of its data folder. The command line adds and revokes while the node runs;
//! the node notices by the file's date, when a token is shown and while something is open with one.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use onward_log::changes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::files::{FileError, random_32, write_secret};
use super::known::{KnownTokens, TokenRights};
use super::{Scope, Scopes, Tokens};
use crate::clock;

pub const TOKENS_FILE: &str = "tokens.json";
/// The token of the command line on the node's machine.
pub const TOKEN_FILE: &str = "token";
const LOCK: &str = "tokens.lock";
/// The interval between two looks at the file. Anything that is open with a revoked token ends within a second of it.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
const PREFIX: &str = "onw_";
/// Every look-up compares with all of them.
pub(super) const MAX_TOKENS: usize = 10_000;

/// A token as it is known: everything but its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    pub name: String,
    pub scopes: Scopes,
    /// Milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// The last characters of the token, for people who look for the right one.
    pub hint: String,
    sha256: String,
}

/// A token as it is shown once, and what is kept of it.
#[derive(Debug)]
pub struct NewToken {
    pub text: String,
    pub token: Token,
}

impl Token {
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        from_hex(&self.sha256)
    }

    pub(super) fn of_stored(name: String, scopes: Scopes, created_at_ms: u64, hint: String, digest: &[u8; 32]) -> Self {
        Self { name, scopes, created_at_ms, hint, sha256: to_hex(digest) }
    }
}

impl NewToken {
    pub(super) fn make(name: &str, scopes: impl IntoIterator<Item = Scope>) -> Self {
        let text = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random_32()));
        let token = Token {
            name: name.to_owned(),
            scopes: scopes.into_iter().collect(),
            created_at_ms: clock::now().wall.as_ms(),
            hint: text[text.len() - 4..].to_owned(),
            sha256: to_hex(&digest_of(&text)),
        };
        Self { text, token }
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFileContent {
    tokens: Vec<Token>,
}

/// The file as a running node uses it.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    known: Mutex<TokenFileCache>,
}

#[derive(Debug, Default)]
struct TokenFileCache {
    looked_at: Option<Instant>,
    version: Option<Version>,
    tokens: KnownTokens,
    /// The file could not be read, and that was said.
    in_trouble: bool,
}

/// Marks that change when the file does. A rename brings another inode, even within the grain of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Version {
    inode: u64,
    changed: (i64, i64),
    bytes: u64,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self { inode: metadata.ino(), changed: (metadata.mtime(), metadata.mtime_nsec()), bytes: metadata.len() }
    }
}

impl Tokens for TokenFile {
    fn find(&self, text: &str) -> Option<TokenRights> {
        let mut known = self.known();
        if known.looked_at.is_none_or(|at| at.elapsed() >= LOOK_EVERY) {
            self.look_or_report(&mut known);
        }
        known.tokens.find(&digest_of(text))
    }

    fn look_for_open(&self) {
        let mut known = self.known();
        if known.tokens.any_is_relied_on() {
            self.look_or_report(&mut known);
        }
    }
}

impl TokenFile {
    /// The tokens in `folder`. A file that is there and cannot be read is an error; none is no tokens.
    pub fn open(folder: &Path) -> Result<Self, FileError> {
        let file = Self { path: folder.join(TOKENS_FILE), known: Mutex::default() };
        file.look(&mut file.known())?;
        Ok(file)
    }

    fn known(&self) -> MutexGuard<'_, TokenFileCache> {
        self.known.lock().expect("no thread panics while it holds this")
    }

    fn look_or_report(&self, known: &mut TokenFileCache) {
        match self.look(known) {
            Ok(()) => known.in_trouble = false,
            Err(error) => {
                if !core::mem::replace(&mut known.in_trouble, true) {
                    tracing::error!(%error, "the tokens could not be read again; those known before stay");
                }
            }
        }
    }

    fn look(&self, known: &mut TokenFileCache) -> Result<(), FileError> {
        known.looked_at = Some(Instant::now());
        let version = match fs::metadata(&self.path) {
            Ok(metadata) => Some(Version::of(&metadata)),
            // One that was there is being replaced, or was taken away by mistake: tokens are revoked in the file.
            Err(error) if error.kind() == io::ErrorKind::NotFound && known.version.is_none() => None,
            Err(error) => return Err(FileError::new(&self.path, error)),
        };
        if version == known.version {
            return Ok(());
        }
        let digest = |token: Token| {
            let digest = token.digest().ok_or_else(|| damaged(&self.path, &token.name))?;
            Ok((digest, token.scopes))
        };
        let tokens = if version.is_some() { read_there(&self.path)? } else { Vec::new() };
        let tokens: Vec<_> = tokens.into_iter().map(digest).collect::<Result<_, FileError>>()?;
        known.tokens.replace(tokens);
        known.version = version;
        Ok(())
    }

    /// Makes a token and keeps its digest. The text is not kept anywhere.
    pub fn add(folder: &Path, name: &str, scopes: impl IntoIterator<Item = Scope>) -> Result<NewToken, FileError> {
        let NewToken { text, token } = NewToken::make(name, scopes);
        change(folder, |tokens, path| {
            if tokens.iter().any(|known| known.name == token.name) {
                return Err(FileError::new(
                    path,
                    format!("has a token named `{name}`; revoke it, or take another name"),
                ));
            }
            if tokens.len() >= MAX_TOKENS {
                return Err(FileError::new(
                    path,
                    format!("has {MAX_TOKENS} tokens, and no more are kept; revoke some"),
                ));
            }
            tokens.push(token.clone());
            Ok(())
        })?;
        Ok(NewToken { text, token })
    }

    /// False if there is none of this name.
    pub fn revoke(folder: &Path, name: &str) -> Result<bool, FileError> {
        change(folder, |tokens, _| {
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            Ok(tokens.len() != before)
        })
    }

    pub fn list(folder: &Path) -> Result<Vec<Token>, FileError> {
        read(&folder.join(TOKENS_FILE))
    }
}

/// The token that a node's own command line uses, in `<folder>/token`; made with all scopes if there is none yet.
pub fn read_or_make_token(folder: &Path) -> Result<String, FileError> {
    let path = folder.join(TOKEN_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // One of that name is left if the node was stopped just before it could write the text of it down.
            TokenFile::revoke(folder, "local")?;
            let made = TokenFile::add(folder, "local", Scope::ALL)?;
            write_secret(&path, format!("{}\n", made.text).as_bytes())?;
            Ok(made.text)
        }
        Err(error) => Err(FileError::new(&path, format!("cannot be read: {error}"))),
    }
}

/// Changes the file, with one writer at a time, so that none loses what another wrote.
fn change<T>(folder: &Path, work: impl FnOnce(&mut Vec<Token>, &Path) -> Result<T, FileError>) -> Result<T, FileError> {
    let (path, lock_path) = (folder.join(TOKENS_FILE), folder.join(LOCK));
    let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).clone();
    let lock: File = changes::open(&options, &lock_path)
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| FileError::new(&lock_path, format!("cannot be locked: {error}")))?;
    let mut tokens = read(&path)?;
    let value = work(&mut tokens, &path)?;
    let text = serde_json::to_vec_pretty(&TokenFileContent { tokens }).expect("tokens are plain data");
    write_secret(&path, &text)?;
    drop(lock);
    Ok(value)
}

fn read(path: &Path) -> Result<Vec<Token>, FileError> {
    match path.try_exists() {
        Ok(false) => Ok(Vec::new()),
        _ => read_there(path),
    }
}

/// The tokens in a file that must be there.
fn read_there(path: &Path) -> Result<Vec<Token>, FileError> {
    let bytes = fs::read(path).map_err(|error| FileError::new(path, format!("cannot be read: {error}")))?;
    let stored: TokenFileContent = serde_json::from_slice(&bytes)
        .map_err(|error| FileError::new(path, format!("is damaged ({error}); restore it from a copy")))?;
    Ok(stored.tokens)
}

fn damaged(path: &Path, name: &str) -> FileError {
    FileError::new(path, format!("has no proper digest for the token `{name}`; restore it from a copy"))
}

pub(super) fn digest_of(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}
