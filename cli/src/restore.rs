//! `onward restore`: a data folder from a backup. No node runs meanwhile.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::failure::Failure;
use crate::screen::Screen;

pub fn run(backup: &Path, data: &Path, screen: &Screen) -> Result<u8> {
    onward_node::server::restore(backup, data).map_err(|error| {
        Failure::new(format!("{} was not restored into {}", backup.display(), data.display()))
            .why(error)
            .remedy("name a backup that `onward backup` made, and with --data an empty or new folder")
    })?;
    if screen.json {
        screen.json(&json!({ "restored": data }))?;
    } else {
        screen.line(format!("restored into {}", data.display()))?;
        screen.line(format!("  onward up --slots 0 --data {}", data.display()))?;
    }
    Ok(0)
}
