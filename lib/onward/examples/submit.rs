//! Submits a job for the example `worker`, and follows it to its end:
//!
//! ```sh
//! cargo run --example submit 2000000
//! ```

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::time::Duration;

use onward::{Client, Job, JobInfo};
use serde_json::{Value, json};

pub async fn count_primes(
    client: &Client,
    below: u64,
    mut tell: impl FnMut(&JobInfo),
) -> Result<JobInfo, ExampleError> {
    let job = Job::new("primes", json!({ "below": below }))?.stuck_after(Duration::from_secs(30)).max_attempts(3);
    let id = client.submit(job).await?;
    let mut changes = client.watch(&id);
    while let Some(job) = changes.next().await? {
        tell(&job);
    }
    Ok(client.job(&id).await?.into_value())
}

pub type ExampleError = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), ExampleError> {
    let server = std::env::var("ONWARD_SERVER").unwrap_or_else(|_| "http://127.0.0.1:7400".into());
    let below = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let client = Client::connect(&server)?;
    let job = count_primes(&client, below, |job| println!("{} {}", job.state, job.progress)).await?;
    println!("{}: {}", job.state, job.result::<Value>()?);
    Ok(())
}
