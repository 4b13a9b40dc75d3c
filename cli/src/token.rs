//! `onward token`: the tokens of the node on this machine, which notices changes while it runs.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;
use jiff::Timestamp;
use onward_node::auth::{NewToken, Scope, Token, TokenFile, TokenTable};
use onward_node::storage::{DatabaseUrl, OpenedDatabase, StorageChoice};
use serde_json::{Value, json};

use crate::args::{TokenArgs, TokenCommand};
use crate::config;
use crate::failure::CommandFailure;
use crate::screen::Screen;
use crate::table::Column;

pub const SCOPES: [&str; 4] = ["read", "submit", "work", "operate"];

/// The place of a node's tokens.
enum Place {
    Folder(PathBuf),
    Database(DatabaseUrl, Box<TokenTable>),
}

pub fn run(args: TokenArgs, data: Option<PathBuf>, screen: &Screen) -> Result<u8> {
    let place = Place::find(args.config.as_deref(), data)?;
    match args.command {
        TokenCommand::New { scopes, name } => add(&name, &scopes, &place, screen)?,
        TokenCommand::List => list(&place.list()?, &place, screen)?,
        TokenCommand::Revoke { name } => {
            if !place.revoke(&name)? {
                let remedy = "`onward token list` shows them";
                return Err(CommandFailure::new(format!("there is no token `{name}`")).remedy(remedy).into());
            }
            match screen.json {
                true => screen.json(&json!({ "name": name, "revoked": true }))?,
                false => screen.line(format!("revoked {name}"))?,
            }
        }
    }
    Ok(0)
}

impl Place {
    /// Finds the place as the node's own settings say, from the same sources.
    fn find(config: Option<&Path>, data: Option<PathBuf>) -> Result<Self> {
        let env = |name: &str| std::env::var_os(name);
        let given = data.filter(|data| env("ONWARD_DATA").is_none_or(|given| given != *data));
        let flags: Vec<(String, String)> =
            given.map(|data| ("data".to_owned(), data.to_string_lossy().into_owned())).into_iter().collect();
        let settings = config::load(config, &flags, env).map_err(CommandFailure::from)?.node;
        match settings.storage {
            StorageChoice::Embedded => Ok(Self::Folder(settings.data)),
            StorageChoice::Postgres(url) => {
                let opened = OpenedDatabase::open(&url).map_err(|error| of_database(&url, error))?;
                let table =
                    opened.tokens(&settings.datacenter.to_string()).map_err(|error| of_database(&url, error))?;
                Ok(Self::Database(url, Box::new(table)))
            }
        }
    }

    fn add(&self, name: &str, scopes: Vec<Scope>) -> Result<NewToken, CommandFailure> {
        match self {
            Self::Folder(data) => {
                std::fs::create_dir_all(data).map_err(|error| unusable(data, error))?;
                TokenFile::add(data, name, scopes).map_err(|error| unusable(data, error))
            }
            Self::Database(url, table) => table.add(name, scopes).map_err(|error| of_database(url, error)),
        }
    }

    fn list(&self) -> Result<Vec<Token>, CommandFailure> {
        match self {
            Self::Folder(data) => TokenFile::list(data).map_err(|error| unusable(data, error)),
            Self::Database(url, table) => table.list().map_err(|error| of_database(url, error)),
        }
    }

    fn revoke(&self, name: &str) -> Result<bool, CommandFailure> {
        match self {
            Self::Folder(data) => TokenFile::revoke(data, name).map_err(|error| unusable(data, error)),
            Self::Database(url, table) => table.revoke(name).map_err(|error| of_database(url, error)),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Folder(data) => data.display().to_string(),
            Self::Database(url, _) => url.to_string(),
        }
    }
}

fn add(name: &str, scopes: &[String], place: &Place, screen: &Screen) -> Result<()> {
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err(CommandFailure::new("the name of a token has 1 to 128 bytes and no control characters")
            .usage()
            .into());
    }
    let scopes: Vec<Scope> = scopes.iter().map(|word| Scope::from_str(word)).collect::<Result<_, _>>()?;
    let made = place.add(name, scopes)?;
    if screen.json {
        return screen.json(&json!({ "name": name, "token": made.text }));
    }
    screen.line(&made.text)?;
    screen.note(format!("This is shown once. `onward token revoke {name}` takes it back."));
    Ok(())
}

fn list(tokens: &[Token], place: &Place, screen: &Screen) -> Result<()> {
    let created = |token: &Token| {
        let ms = i64::try_from(token.created_at_ms).ok();
        ms.and_then(|ms| Timestamp::from_millisecond(ms).ok()).map_or_else(|| "-".into(), |at| at.to_string())
    };
    let scopes = |token: &Token| token.scopes.iter().map(Scope::word).collect::<Vec<_>>();
    if screen.json {
        let shown = |token: &Token| json!({ "name": token.name, "scopes": scopes(token), "created_at": created(token), "hint": token.hint });
        return screen.json(&json!({ "tokens": tokens.iter().map(shown).collect::<Vec<Value>>() }));
    }
    if tokens.is_empty() {
        screen.note(format!("no tokens in {}; `onward token new` makes one", place.shown()));
        return Ok(());
    }
    let row =
        |token: &Token| vec![token.name.clone(), scopes(token).join(","), created(token), format!("…{}", token.hint)];
    let columns =
        [Column::whole("name"), Column::whole("scopes"), Column::whole("created"), Column::whole("ends with")];
    screen.table(&columns, tokens.iter().map(row).collect())
}

fn unusable(data: &Path, why: impl Display) -> CommandFailure {
    CommandFailure::new(format!("the tokens in {} cannot be used", data.display()))
        .why(why)
        .remedy("--data DIR (or ONWARD_DATA) names the node's data folder; who runs the node makes its tokens")
}

fn of_database(url: &DatabaseUrl, why: impl Display) -> CommandFailure {
    CommandFailure::new(format!("the tokens in {url} cannot be used"))
        .why(why)
        .remedy("--config FILE names the node's settings; ONWARD_STORAGE names another database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_nodes_scopes() {
        assert_eq!(SCOPES.to_vec(), Scope::ALL.map(Scope::word).to_vec());
    }
}
