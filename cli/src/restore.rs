//! `onward restore`: a data folder from a backup. No node runs meanwhile.

use std::path::Path;

use anyhow::Result;
use onward_node::server::OnLoss;
use serde_json::json;

use crate::failure::CommandFailure;
use crate::screen::Screen;

pub fn run(backup: &Path, data: &Path, accept_loss: bool, screen: &Screen) -> Result<u8> {
    let on_loss = if accept_loss { OnLoss::Accept } else { OnLoss::Refuse };
    let damage = onward_node::server::restore(backup, data, on_loss).map_err(|error| {
        CommandFailure::new(format!("{} was not restored into {}", backup.display(), data.display()))
            .why(error)
            .remedy("name a backup that `onward backup` made, and with --data an empty or new folder")
    })?;
    if screen.json {
        let damaged: Vec<String> = damage.jobs.iter().map(ToString::to_string).collect();
        screen.json(&json!({ "restored": data, "damaged_jobs": damaged }))?;
    } else {
        if !damage.is_none() {
            screen.line(format!("lost      {damage}"))?;
        }
        screen.line(format!("restored into {}", data.display()))?;
        screen.line(format!("  onward up --slots 0 --data {}", data.display()))?;
    }
    Ok(0)
}
