//! Every peer once, briefly: that each works, and about how fast.

use std::time::Duration;

use super::super::{About, BATCH, Contender, Failed, Running};
use super::beanstalkd::Beanstalkd;
use super::bullmq::BullMq;
use super::nats::Nats;
use super::postgres::Postgres;
use super::rabbitmq::RabbitMq;

const SECOND: Duration = Duration::from_secs(1);

pub async fn all(only: Option<&str>) {
    one(Beanstalkd::synced(), only).await;
    one(Beanstalkd::lazy(), only).await;
    one(Nats::synced(), only).await;
    one(Nats::lazy(), only).await;
    one(RabbitMq, only).await;
    one(Postgres, only).await;
    one(BullMq, only).await;
}

async fn one(contender: impl Contender, only: Option<&str>) {
    let About { name, durable, before_answer } = contender.about();
    if only.is_some_and(|only| !name.contains(only)) {
        return;
    }
    if let Some(missing) = contender.missing() {
        println!("{name}: not installed here: {missing}");
        return;
    }
    println!("{name}: {durable}{}", if before_answer { "" } else { " (an answer does not survive a power cut)" });
    if let Err(error) = measured(&contender, name).await {
        println!("{name}: {error}");
    }
}

async fn measured(contender: &impl Contender, name: &str) -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let mut running = contender.start(folder.path()).await?;
    running.fill(20_000).await?;
    let took = running.drain(20_000, 64).await?;
    println!("{name}: drain at 64: {:.0}/s", 20_000.0 / took.as_secs_f64());
    running.fill(2_000).await?;
    let took = running.drain(2_000, 1).await?;
    println!("{name}: drain at 1: {:.0}/s", 2_000.0 / took.as_secs_f64());
    running.fill(20_000).await?;
    let took = running.drain(20_000, 1_024).await?;
    println!("{name}: drain at 1,024: {:.0}/s", 20_000.0 / took.as_secs_f64());
    for batch in [1, BATCH] {
        println!("{name}: enqueue by {batch}: {}/s", running.enqueue(batch, SECOND).await?);
    }
    running.clear().await?;
    let mut times = running.latency(200, Duration::from_millis(5)).await?;
    times.sort();
    println!("{name}: latency: p50 {:?}, p99 {:?}", times[100], times[198]);
    running.fill(10_000).await?;
    match running.touch(10_000, SECOND).await? {
        Some(touched) => println!("{name}: touch: {touched}/s"),
        None => println!("{name}: touch: nothing like it"),
    }
    running.clear().await?;
    // What `touch` held is gone too: nothing else comes than what is added now.
    for in_flight in [1, 64, 1_024] {
        running.fill(600).await?;
        running.drain(300, in_flight).await?;
        running.drain(300, in_flight).await?;
        running.latency(20, Duration::from_millis(5)).await?;
    }
    running.clear().await
}
