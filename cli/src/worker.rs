//! `onward worker`: runs commands for a node elsewhere.

use std::path::Path;

use anyhow::Result;
use onward::NodeAddresses;

use crate::args::{Global, WorkerArgs};
use crate::failure::CommandFailure;
use crate::fleet::counted;
use crate::screen::Screen;
use crate::up::{self, Stop};
use crate::work::serve::{Commands, serve};
use crate::{client, work};

pub fn run(args: WorkerArgs, global: &Global, data: &Path, screen: &Screen) -> Result<u8> {
    let url = if args.managers.is_empty() { global.server.clone() } else { args.managers.join(",") };
    let url = url.as_str();
    let mut place = match &global.ca {
        Some(file) => {
            let pem = std::fs::read(file)
                .map_err(|error| CommandFailure::new(format!("cannot read {}", file.display())).why(error))?;
            NodeAddresses::trusting(url, &pem)
        }
        None => NodeAddresses::at(url),
    }
    .map_err(|error| CommandFailure::new("the worker cannot be started").why(error).usage())?;
    if let Some(token) = client::token_for(url, global.token.as_deref(), Some(&data.join("token"))) {
        place = place.with_token(&token);
    }
    let commands = Commands {
        id: args.id,
        slots: args.slots.unwrap_or_else(work::cores),
        queues: args.queues,
        manner: (&args.exec).into(),
        stop_within: args.drain,
    };
    up::log_to_stderr(args.log.log_format, screen);
    let slots = commands.slots;
    let slots = counted(slots.into(), "slot");
    screen.note(format!("onward: a worker with {slots} for {url}; Ctrl-C drains, a second one stops at once"));
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let mut stop = Stop::new()?;
        let (drain, drained) = tokio::sync::oneshot::channel::<()>();
        let mut serving = std::pin::pin!(serve(commands, place, async { drop(drained.await) }));
        tokio::select! {
            ended = &mut serving => return ended.map(|()| 0),
            () = stop.asked() => {}
        }
        screen.note(up::STOPPING);
        drop(drain);
        tokio::select! {
            ended = serving => ended.map(|()| 0),
            // The guards end what runs when they see that we are gone.
            () = stop.asked() => std::process::exit(i32::from(up::STOPPED)),
        }
    })
}
