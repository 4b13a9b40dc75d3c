//! Queues on a stand-in, and the client that a user would bring.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_sqs::types::QueueAttributeName;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use onward_testkit::SqsServer as Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub struct StandIn {
    pub server: Server,
    pub client: Client,
    opened: AtomicU32,
}

impl StandIn {
    pub fn new(server: Server) -> Self {
        let client = client(&server.url());
        Self { server, client, opened: AtomicU32::new(0) }
    }

    /// Makes a queue and the queue of its dead letters, and returns its address.
    pub async fn queue(&self, is_fifo: bool) -> String {
        let name = format!("box-{}", self.opened.fetch_add(1, Ordering::Relaxed));
        let suffix = if is_fifo { ".fifo" } else { "" };
        self.create(&format!("{name}-dead{suffix}"), &[]).await;
        self.create(&format!("{name}{suffix}"), &[]).await
    }

    pub async fn create(&self, name: &str, attributes: &[(QueueAttributeName, &str)]) -> String {
        let mut call = self.client.create_queue().queue_name(name);
        call = call.attributes(QueueAttributeName::MaximumMessageSize, "262144");
        if name.ends_with(".fifo") {
            call = call.attributes(QueueAttributeName::FifoQueue, "true");
        }
        for (attribute, value) in attributes {
            call = call.attributes(attribute.clone(), *value);
        }
        call.send().await.unwrap().queue_url.unwrap()
    }
}

pub fn client(url: &str) -> Client {
    Client::from_conf(config(url).build())
}

/// A client that waits for an answer for half a second, and does not ask twice.
pub fn hasty_client(url: &str) -> Client {
    let timeouts = TimeoutConfig::builder().operation_timeout(Duration::from_millis(500)).build();
    Client::from_conf(config(url).timeout_config(timeouts).retry_config(RetryConfig::disabled()).build())
}

fn config(url: &str) -> aws_sdk_sqs::config::Builder {
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .http_client(http)
        .endpoint_url(url)
}

/// An address that leads to the server, until a request says this word, or says it after so many that may: then its
/// connection is cut.
pub async fn cut_at(word: &'static str, passing: u32, url: &str) -> String {
    let passing = Arc::new(AtomicU32::new(passing));
    let upstream = url.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (upstream, passing) = (upstream.clone(), passing.clone());
            let may_pass =
                move || passing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(upstream).await.unwrap();
                let (mut asked, mut answered) = ([0; 8_192], [0; 8_192]);
                loop {
                    let gone = tokio::select! {
                        count = near.read(&mut asked) => match count {
                            Ok(count) if count > 0 && (!contains(&asked[..count], word) || may_pass()) => {
                                far.write_all(&asked[..count]).await.is_err()
                            }
                            _ => true,
                        },
                        count = far.read(&mut answered) => match count {
                            Ok(count) if count > 0 => near.write_all(&answered[..count]).await.is_err(),
                            _ => true,
                        },
                    };
                    if gone {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}
