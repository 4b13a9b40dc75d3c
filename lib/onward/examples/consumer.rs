//! A consumer of an SQS queue. Its address is in `QUEUE_URL`, and what the AWS tools use in `AWS_ENDPOINT_URL`,
//! `AWS_REGION`, `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`.

use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_smithy_http_client::{Builder, tls};
use onward::mailbox::Sqs;
use onward::{Delivery, MessageLoop};
use std::{env::var, error::Error, time::Duration};
use tokio::process::Command;

#[derive(Debug, serde::Deserialize)]
struct Video {
    parts: Vec<String>,
}

fn ffmpeg(part: &str) -> Command {
    let mut command = Command::new(var("FFMPEG").unwrap_or_else(|_| "ffmpeg".into()));
    command.args(["-nostdin", "-y", "-i", part, &format!("{part}.mp4")]);
    command
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let ring = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let who = Credentials::new(var("AWS_ACCESS_KEY_ID")?, var("AWS_SECRET_ACCESS_KEY")?, None, None, "environment");
    let aws = aws_sdk_sqs::Config::builder().behavior_version(BehaviorVersion::latest()).credentials_provider(who);
    let mut aws =
        aws.region(Region::new(var("AWS_REGION")?)).http_client(Builder::new().tls_provider(ring).build_https());
    aws.set_endpoint_url(var("AWS_ENDPOINT_URL").ok());
    let aws = aws_sdk_sqs::Client::from_conf(aws.build());

    MessageLoop::on(Sqs::connect(aws, var("QUEUE_URL")?).await?)
        .concurrency(8)
        .lease(Duration::from_secs(120)) // renewed by work, never by a timer
        .stuck_after(Duration::from_secs(300)) // beating without progress is not enough
        .handle(|msg: Delivery, video: Video| async move {
            for (n, part) in video.parts.iter().enumerate() {
                msg.command(ffmpeg(part)).await?; // its output beats; a lost lease stops it
                msg.progress(n as u64 + 1, video.parts.len() as u64);
            }
            Ok(())
        })
        .run()
        .await?; // SIGTERM drains, and still renews
    Ok(())
}
