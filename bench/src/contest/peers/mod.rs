//! Other systems, each as its users are told to run it: its own server, a driver that is as fast as its protocol lets
//! a client be, and nothing listening beyond loopback.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{BATCH, ContestError, PAYLOAD};

pub mod beanstalkd;
pub mod bullmq;
pub mod install;
pub mod nats;
pub mod postgres;
pub mod rabbitmq;
mod server;

/// A job's payload.
fn payload() -> Vec<u8> {
    vec![b'x'; PAYLOAD]
}

/// A payload that knows when it was made, on this process's clock.
fn stamped(origin: Instant) -> Vec<u8> {
    let mut body = format!("{:020}", origin.elapsed().as_nanos()).into_bytes();
    body.resize(PAYLOAD, b'x');
    body
}

/// The age of a job, by the instant in its body.
fn age(origin: Instant, body: &[u8]) -> Result<Duration, ContestError> {
    let now = origin.elapsed();
    let digits = body.get(..20).and_then(|digits| std::str::from_utf8(digits).ok());
    let nanos: u64 = digits.ok_or("a job came without its stamp")?.parse()?;
    Ok(now.saturating_sub(Duration::from_nanos(nanos)))
}

/// Lets `one` add a job every `every`, `jobs` of them, each after the answer to the last.
async fn paced(
    jobs: u64,
    every: Duration,
    origin: Instant,
    mut one: impl AsyncFnMut(Vec<u8>) -> Result<(), ContestError>,
) -> Result<(), ContestError> {
    let mut ticks = tokio::time::interval(every);
    for _ in 0..jobs {
        ticks.tick().await;
        one(stamped(origin)).await?;
    }
    Ok(())
}

/// Sizes of calls of at most [`BATCH`] that make so many jobs.
fn batches(jobs: u64) -> impl Iterator<Item = usize> {
    (0..jobs).step_by(BATCH).map(move |added| BATCH.min((jobs - added) as usize))
}

/// The path as text, for a configuration file or an argument.
fn text(path: &Path) -> Result<&str, ContestError> {
    path.to_str().ok_or_else(|| format!("{} is not valid UTF-8; choose another folder", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_up_to_the_jobs() {
        let sizes = |jobs| batches(jobs).collect::<Vec<_>>();
        assert_eq!(sizes(0), [0; 0]);
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(256), [256]);
        assert_eq!(sizes(600), [256, 256, 88]);
    }

    #[test]
    fn a_payload_knows_its_age() {
        let origin = Instant::now();
        let body = stamped(origin);
        assert_eq!(body.len(), PAYLOAD);
        let age = age(origin, &body).expect("stamped");
        assert!(age <= origin.elapsed(), "{age:?}");
        assert!(super::age(origin, &payload()).is_err());
    }
}
