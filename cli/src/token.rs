//! `onward token`: the tokens of the node on this machine, which notices changes while it runs.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use jiff::Timestamp;
use onward_node::auth::{Scope, Token, TokenFile};
use serde_json::{Value, json};

use crate::args::TokenCommand;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::table::Column;

pub const SCOPES: [&str; 4] = ["read", "submit", "work", "operate"];

pub fn run(command: TokenCommand, data: &Path, screen: &Screen) -> Result<u8> {
    match command {
        TokenCommand::New { scopes, name } => add(&name, &scopes, data, screen)?,
        TokenCommand::List => list(&TokenFile::list(data).map_err(|error| unusable(data, error))?, data, screen)?,
        TokenCommand::Revoke { name } => {
            if !TokenFile::revoke(data, &name).map_err(|error| unusable(data, error))? {
                let remedy = "`onward token list` shows them";
                return Err(Failure::new(format!("there is no token `{name}`")).remedy(remedy).into());
            }
            match screen.json {
                true => screen.json(&json!({ "name": name, "revoked": true }))?,
                false => screen.line(format!("revoked {name}"))?,
            }
        }
    }
    Ok(0)
}

fn add(name: &str, scopes: &[String], data: &Path, screen: &Screen) -> Result<()> {
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err(Failure::new("the name of a token has 1 to 128 bytes and no control characters").usage().into());
    }
    let scopes: Vec<Scope> = scopes.iter().map(|word| Scope::from_str(word)).collect::<Result<_, _>>()?;
    std::fs::create_dir_all(data).map_err(|error| unusable(data, error))?;
    let made = TokenFile::add(data, name, scopes).map_err(|error| unusable(data, error))?;
    if screen.json {
        return screen.json(&json!({ "name": name, "token": made.text }));
    }
    screen.line(&made.text)?;
    screen.note(format!("This is shown once. `onward token revoke {name}` takes it back."));
    Ok(())
}

fn list(tokens: &[Token], data: &Path, screen: &Screen) -> Result<()> {
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
        screen.note(format!("no tokens in {}; `onward token new` makes one", data.display()));
        return Ok(());
    }
    let row =
        |token: &Token| vec![token.name.clone(), scopes(token).join(","), created(token), format!("…{}", token.hint)];
    let columns =
        [Column::whole("name"), Column::whole("scopes"), Column::whole("created"), Column::whole("ends with")];
    screen.table(&columns, tokens.iter().map(row).collect())
}

fn unusable(data: &Path, why: impl Display) -> Failure {
    Failure::new(format!("the tokens in {} cannot be used", data.display()))
        .why(why)
        .remedy("--data DIR (or ONWARD_DATA) names the node's data folder; who runs the node makes its tokens")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_the_nodes_scopes() {
        assert_eq!(SCOPES.to_vec(), Scope::ALL.map(Scope::word).to_vec());
    }
}
