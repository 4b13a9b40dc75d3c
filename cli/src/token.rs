//! `onward token`: edits the token file of the node on this machine, which reads it again when it changed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::args::TokenCommand;
use crate::client::hex;
use crate::failure::Failure;
use crate::folder;
use crate::screen::Screen;

pub const SCOPES: [&str; 4] = ["read", "submit", "work", "operate"];

/// How much of a token is kept, to tell tokens apart.
const HINT_CHARS: usize = 8;

/// The file: hashes only, so that reading it gives nobody a token.
#[derive(Debug, Default, Serialize, Deserialize)]
struct TokenFile {
    tokens: Vec<TokenRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TokenRecord {
    name: String,
    /// Of the token's text, in hex.
    sha256: String,
    scopes: Vec<String>,
    created_at: String,
    #[serde(default)]
    hint: String,
}

pub fn run(command: TokenCommand, data: &Path, screen: &Screen) -> Result<u8> {
    let store = Store { path: data.join("tokens.json") };
    match command {
        TokenCommand::New { scopes, name } => {
            let mut random = [0_u8; 32];
            getrandom::fill(&mut random)
                .map_err(|error| Failure::new("the operating system gives no random numbers").why(error))?;
            let token = store.add(&name, scopes, &random, Timestamp::now())?;
            if screen.json {
                screen.json(&json!({ "name": name, "token": token }))?;
            } else {
                screen.line(&token)?;
                screen.note(format!("This is shown once. `onward token revoke {name}` takes it back."));
            }
        }
        TokenCommand::List => list(&store.read()?, screen)?,
        TokenCommand::Revoke { name } => {
            store.revoke(&name)?;
            match screen.json {
                true => screen.json(&json!({ "name": name, "revoked": true }))?,
                false => screen.line(format!("revoked {name}"))?,
            }
        }
    }
    Ok(0)
}

fn list(file: &TokenFile, screen: &Screen) -> Result<()> {
    if screen.json {
        let shown = |token: &TokenRecord| json!({ "name": token.name, "scopes": token.scopes, "created_at": token.created_at, "hint": token.hint });
        return screen.json(&json!({ "tokens": file.tokens.iter().map(shown).collect::<Vec<_>>() }));
    }
    let row = |token: &TokenRecord| {
        vec![token.name.clone(), token.scopes.join(","), token.created_at.clone(), format!("{}…", token.hint)]
    };
    screen.table(&["name", "scopes", "created", "begins with"], file.tokens.iter().map(row).collect())
}

#[derive(Debug)]
struct Store {
    path: PathBuf,
}

impl Store {
    fn add(&self, name: &str, mut scopes: Vec<String>, random: &[u8; 32], now: Timestamp) -> Result<String, Failure> {
        if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
            return Err(Failure::new("the name of a token has 1 to 255 bytes and no control characters").usage());
        }
        scopes.sort();
        scopes.dedup();
        self.edit(|file| {
            if file.tokens.iter().any(|token| token.name == name) {
                return Err(Failure::new(format!("there is a token `{name}` already"))
                    .remedy(format!("choose another name, or `onward token revoke {name}` first")));
            }
            let token = format!("onw_{}", URL_SAFE_NO_PAD.encode(random));
            file.tokens.push(TokenRecord {
                name: name.to_owned(),
                sha256: hex(&Sha256::digest(token.as_bytes())),
                scopes,
                created_at: now.round(jiff::Unit::Second).unwrap_or(now).to_string(),
                hint: token.chars().take(HINT_CHARS).collect(),
            });
            Ok(token)
        })
    }

    fn revoke(&self, name: &str) -> Result<(), Failure> {
        self.edit(|file| {
            let before = file.tokens.len();
            file.tokens.retain(|token| token.name != name);
            if file.tokens.len() == before {
                return Err(
                    Failure::new(format!("there is no token `{name}`")).remedy("`onward token list` shows them")
                );
            }
            Ok(())
        })
    }

    fn read(&self) -> Result<TokenFile, Failure> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(TokenFile::default()),
            Err(error) => return Err(self.unusable("read", error)),
            Ok(text) => text,
        };
        serde_json::from_slice(&text).map_err(|error| self.unusable("understand", error))
    }

    /// One at a time: two that add a token at once must not lose one of them.
    fn edit<T>(&self, change: impl FnOnce(&mut TokenFile) -> Result<T, Failure>) -> Result<T, Failure> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|error| self.unusable("write", error))?;
        let lock = File::open(folder).map_err(|error| self.unusable("write", error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| self.unusable("lock", error))?;
        let mut file = self.read()?;
        let answer = change(&mut file)?;
        let text = serde_json::to_string_pretty(&file).expect("plain data");
        folder::replace(&self.path, text.as_bytes()).map_err(|error| self.unusable("write", error))?;
        Ok(answer)
    }

    fn unusable(&self, verb: &str, why: impl std::fmt::Display) -> Failure {
        Failure::new(format!("cannot {verb} {}", self.path.display()))
            .why(why)
            .remedy("--data DIR (or ONWARD_DATA) names the node's data folder; tokens are made by who runs the node")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(folder: &tempfile::TempDir) -> Store {
        Store { path: folder.path().join("data/tokens.json") }
    }

    #[test]
    fn a_token_is_shown_once_and_kept_as_its_hash() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let scopes = vec!["submit".into(), "read".into(), "read".into()];
        let token = store.add("ci", scopes, &[7; 32], Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(token, "onw_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc");
        let text = fs::read_to_string(&store.path).unwrap();
        assert!(!text.contains(&token));
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        let hash = hex(&Sha256::digest(token.as_bytes()));
        let record = json!({"name": "ci", "sha256": hash, "scopes": ["read", "submit"], "created_at": "1970-01-01T00:00:00Z", "hint": "onw_BwcH"});
        assert_eq!(file, json!({ "tokens": [record] }));
    }

    #[test]
    fn names_are_unique_and_a_revoked_one_is_free_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder);
        let add = |name: &str, byte| store.add(name, vec!["read".into()], &[byte; 32], Timestamp::UNIX_EPOCH);
        add("a", 1).unwrap();
        add("b", 2).unwrap();
        assert!(add("a", 3).unwrap_err().to_string().contains("already"));
        store.revoke("a").unwrap();
        assert!(store.revoke("a").unwrap_err().to_string().contains("no token `a`"));
        add("a", 4).unwrap();
        let names: Vec<String> = store.read().unwrap().tokens.into_iter().map(|token| token.name).collect();
        assert_eq!(names, ["b", "a"]);
    }

    #[test]
    fn a_broken_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store { path: folder.path().join("tokens.json") };
        fs::write(&store.path, "{").unwrap();
        assert!(store.add("a", vec!["read".into()], &[1; 32], Timestamp::UNIX_EPOCH).is_err());
        assert_eq!(fs::read_to_string(&store.path).unwrap(), "{");
    }
}
