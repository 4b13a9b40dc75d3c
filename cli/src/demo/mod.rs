//! `onward demo`: five jobs that show what Onward is for, and a verdict on each that can be wrong.
//!
//! Nothing is staged: the jobs are submitted to a real node (`cast` has them and the handlers that misbehave, `zombie`
//! has the worker that freezes), and `judge` reads what the node says about them over HTTP. With `--sabotage` one
//! protection is taken away *outside* of the node, as if it did not exist; the demo must then notice.

mod cast;
mod judge;
mod zombie;

use std::time::Duration;

use anyhow::Result;
use onward::Client;
use onward_node::auth::read_or_make_token;
use onward_node::server::{Node, NodeConfig};
use serde_json::{Value, json};

use crate::failure::CommandFailure;
use crate::screen::{Screen, StyledText};
use crate::span;
use crate::work::inside;
pub use cast::{Cast, Sabotage};
use judge::PartVerdict;

/// The time within which all of them end, or something is wrong.
const ALL_ENDED_WITHIN: Duration = Duration::from_secs(25);

pub fn run(sabotage: Option<Sabotage>, screen: &Screen) -> Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let code = runtime.block_on(show(sabotage, screen));
    runtime.shutdown_background();
    code
}

async fn show(sabotage: Option<Sabotage>, screen: &Screen) -> Result<u8> {
    let folder = tempfile::Builder::new().prefix("onward-demo-").tempdir()?;
    let config = NodeConfig::new(([127, 0, 0, 1], 0).into(), folder.path());
    let node = Node::start(config).await.map_err(|error| CommandFailure::new("the node did not start").why(error))?;
    let place = inside(&node, &read_or_make_token(folder.path())?);
    if !screen.json {
        screen.line(opening(&node.url(), sabotage))?;
    }
    let client = Client::at(place.clone());
    let cast = Cast::begin(&client, place, sabotage).await?;
    let verdicts = judge::all(&client, &cast, ALL_ENDED_WITHIN, |verdict| {
        if screen.json { Ok(()) } else { screen.print(&told(verdict, screen)) }
    })
    .await?;
    cast.end().await;
    let as_it_must = verdicts.iter().filter(|verdict| verdict.wrong.is_none()).count();
    let is_well = as_it_must == verdicts.len();
    if screen.json {
        let jobs: Vec<Value> = verdicts.iter().map(PartVerdict::json).collect();
        screen.json(&json!({ "ok": is_well, "sabotage": sabotage.map(Sabotage::word), "jobs": jobs }))?;
    } else {
        screen.line(closing(as_it_must, verdicts.len(), sabotage))?;
    }
    node.shutdown(Duration::ZERO).await;
    Ok(if is_well { 0 } else { 1 })
}

fn opening(url: &str, sabotage: Option<Sabotage>) -> String {
    let mut text = format!("Five jobs on a node of their own ({url}); this takes about {} seconds.\n", cast::TAKES_S);
    if let Some(sabotage) = sabotage {
        text += &format!("Sabotage: {}.\n", sabotage.what());
    }
    text
}

fn told(verdict: &PartVerdict, screen: &Screen) -> StyledText {
    let mark = if verdict.wrong.is_none() { "as it must" } else { "WRONG" };
    let mut text = format!(", {mark}\n");
    for line in &verdict.reasons {
        text += &format!("    {line}\n");
    }
    if let Some(wrong) = &verdict.wrong {
        text += &format!("    what went wrong: {wrong}\n");
    }
    text += &format!("    job {}, after {}\n", verdict.id, span::human(verdict.took));
    StyledText::new(&format!("{:<34} ", verdict.part.title())).word(screen, &verdict.state).text(&text)
}

fn closing(as_it_must: usize, all: usize, sabotage: Option<Sabotage>) -> String {
    match (as_it_must == all, sabotage) {
        (true, None) => format!(
            "All {all} ended as they must.\n\nTry next:\n  onward run --stuck-after 3s -- sh -c 'echo a; sleep 60'\n  \
             onward demo --sabotage fence\n  onward up --demo"
        ),
        (true, Some(sabotage)) => {
            format!("All {all} ended as they must, although {}: the demo has noticed nothing.", sabotage.what())
        }
        (false, None) => format!("{} of {all} did not end as they must.", all - as_it_must),
        (false, Some(sabotage)) => {
            format!(
                "{} of {all} did not end as they must. That is what happens when {}.",
                all - as_it_must,
                sabotage.what()
            )
        }
    }
}
