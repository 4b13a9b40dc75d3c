//! A consumer of the SQS queue at `QUEUE_URL`. The other variables are those of the AWS tools.
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_smithy_http_client::{Builder, tls};
use onward::{Delivery, MessageLoop, mailbox::Sqs};
use std::{env::var, error::Error, time::Duration};
use tokio::process::Command;

#[derive(Debug, serde::Deserialize)]
struct Video {
    parts: Vec<String>,
}

fn ffmpeg(part: &str) -> Command {
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-y", "-i", part, &format!("{part}.mp4")]);
    command
}

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let ring = tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring);
    let http = Builder::new().tls_provider(ring).build_https();
    let who = Credentials::new(var("AWS_ACCESS_KEY_ID")?, var("AWS_SECRET_ACCESS_KEY")?, None, None, "environment");
    let aws = aws_sdk_sqs::Config::builder().behavior_version(BehaviorVersion::latest()).http_client(http);
    let mut aws = aws.credentials_provider(who).region(Region::new(var("AWS_REGION")?));
    aws.set_endpoint_url(var("AWS_ENDPOINT_URL").ok());
    let aws = aws_sdk_sqs::Client::from_conf(aws.build());
    let messages = MessageLoop::on(Sqs::connect(aws, var("QUEUE_URL")?).await?)
        .concurrency(8)
        .lease(Duration::from_secs(120)) // renewed by work, never by a timer
        .stuck_after(Duration::from_secs(300)) // beating without progress is not enough
        .handle(|msg: Delivery, video: Video| async move {
            for (n, part) in video.parts.iter().enumerate() {
                msg.command(ffmpeg(part)).await?; // its output beats; a lost lease stops it
                msg.progress(n as u64 + 1, video.parts.len() as u64);
            }
            Ok(())
        });
    Ok(messages.run().await?) // SIGTERM drains, and still renews
}
