//! A worker with two kinds. In one terminal `onward up --slots 0`, in another
//!
//! ```sh
//! cargo run --example worker
//! ```
//!
//! and then the example `submit`, or `onward submit --kind primes --payload '{"below": 100000}' --wait`.
//! Ctrl-C finishes what runs, and ends it.

use onward::{Context, Failure, Worker};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

#[derive(Debug, Deserialize)]
pub struct Primes {
    below: u64,
}

#[derive(Debug, Serialize)]
pub struct SearchResult {
    count: u64,
    last: Option<u64>,
}

/// Counts primes on a thread, in steps that a later attempt can go on from.
pub async fn primes(ctx: Context, input: Primes) -> Result<SearchResult, Failure> {
    const STEP: u64 = 10_000;
    if input.below > 100_000_000 {
        return Err(Failure::permanent("that would take all day; ask for less than a hundred million"));
    }
    // Three numbers: where to go on, how many were found until there, and the last of them.
    let begun = ctx.checkpoint().map(serde_json::from_slice).transpose()?;
    let (mut next, mut count, mut last): (u64, u64, u64) = begun.unwrap_or((2, 0, 0));
    ctx.blocking(move |ctx| {
        while next < input.below {
            ctx.check()?;
            let end = (next + STEP).min(input.below);
            for number in (next..end).filter(|n| is_prime(*n)) {
                (count, last) = (count + 1, number);
            }
            next = end;
            ctx.progress_note(next, input.below, &format!("{count} found"));
            ctx.set_checkpoint(serde_json::to_vec(&(next, count, last))?);
        }
        Ok(SearchResult { count, last: (count > 0).then_some(last) })
    })
    .await
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|divisor| divisor * divisor <= n).all(|divisor| !n.is_multiple_of(divisor))
}

/// How many files lie below a folder. The command beats by what it writes.
pub async fn files(ctx: Context, folder: String) -> Result<usize, Failure> {
    let mut find = Command::new("find");
    find.args([&*folder, "-type", "f", "-printf", "."]).stdin(std::process::Stdio::null());
    Ok(ctx.command(find).await?.stdout.len())
}

pub fn with_handlers(worker: Worker) -> Worker {
    worker.slots(4).handle("primes", primes).handle("files", files).at_most("files", 1)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::var("ONWARD_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".into());
    with_handlers(Worker::connect(&server).await?).run().await?;
    Ok(())
}
