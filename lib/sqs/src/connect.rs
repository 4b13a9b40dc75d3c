//! Finding the queue of the dead letters, and refusing a queue that would give up before we do.

use std::sync::Arc;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;
use onward_lease::mailbox::MailboxError;

use crate::errors::of_look;
use crate::holds::Holds;
use crate::{Parts, Sqs, pack};

/// The size that SQS took before it took more, used where a queue does not tell its own.
const USUAL_BYTES: usize = 256 << 10;

/// Made by [`Sqs::builder`].
#[derive(Clone, Debug)]
pub struct SqsBuilder {
    client: Client,
    url: String,
    dead_letters: Option<String>,
    max_deliveries: u32,
}

impl SqsBuilder {
    pub(crate) fn new(client: Client, url: String) -> Self {
        Self { client, url, dead_letters: None, max_deliveries: 5 }
    }

    /// The address of the queue that dead letters go to. Default: the one that the redrive policy of the queue names,
    /// else the one whose name is that of the queue and `-dead` (`orders-dead`, `orders-dead.fifo`).
    pub fn dead_letters(mut self, url: impl Into<String>) -> Self {
        self.dead_letters = Some(url.into());
        self
    }

    /// A message that was handed out this often is dead. Default 5.
    pub fn max_deliveries(mut self, max: u32) -> Self {
        self.max_deliveries = max;
        self
    }

    /// Looks at the queue, and finds the queue of its dead letters.
    pub async fn connect(self) -> Result<Sqs, MailboxError> {
        let asked = self.client.get_queue_attributes().queue_url(&self.url);
        let answer = asked.attribute_names(QueueAttributeName::All).send().await.map_err(of_look)?;
        let attribute = |name: QueueAttributeName| answer.attributes()?.get(&name).map(String::as_str);
        let policy = attribute(QueueAttributeName::RedrivePolicy).map(Redrive::read);
        if let Some(limit) = policy.as_ref().and_then(|policy| policy.max).filter(|max| *max <= self.max_deliveries) {
            let ours = self.max_deliveries;
            let why = format!("the queue gives up after {limit} deliveries, and we after {ours}");
            let remedy = format!("raise maxReceiveCount of its redrive policy above {ours}, or lower max_deliveries");
            return Err(MailboxError::Refused { why, remedy });
        }
        let dead = match (&self.dead_letters, policy.and_then(|policy| policy.target)) {
            (Some(url), _) => url.clone(),
            (None, Some(arn)) => self.find(arn.rsplit(':').next().unwrap_or_default()).await?,
            (None, None) => self.find(&dead_name(&self.url)).await?,
        };
        let largest = attribute(QueueAttributeName::MaximumMessageSize).and_then(|size| size.parse().ok());
        let largest: usize = largest.unwrap_or(USUAL_BYTES);
        let parts = Parts {
            is_fifo: self.url.ends_with(".fifo"),
            // A body that is not text is encoded, which takes a third more.
            max_bytes: (largest.saturating_sub(pack::ATTRIBUTE_BYTES) / 4 * 3).saturating_sub(4),
            max_batch_bytes: largest,
            client: self.client,
            url: self.url,
            dead,
            max_deliveries: self.max_deliveries,
            holds: Holds::default(),
        };
        Ok(Sqs { parts: Arc::new(parts) })
    }

    async fn find(&self, name: &str) -> Result<String, MailboxError> {
        let found = self.client.get_queue_url().queue_name(name).send().await;
        let url = match found {
            Ok(found) => found.queue_url,
            Err(error) if error.as_service_error().is_some_and(|error| error.is_queue_does_not_exist()) => None,
            Err(error) => return Err(of_look(error)),
        };
        url.ok_or_else(|| MailboxError::Refused {
            why: format!("there is no queue `{name}` for the dead letters"),
            remedy: format!("create it: aws sqs create-queue --queue-name {name}"),
        })
    }
}

fn dead_name(url: &str) -> String {
    let name = url.rsplit('/').next().unwrap_or_default();
    match name.strip_suffix(".fifo") {
        Some(name) => format!("{name}-dead.fifo"),
        None => format!("{name}-dead"),
    }
}

/// The queue's own policy for a message that was handed out often.
struct Redrive {
    target: Option<String>,
    max: Option<u32>,
}

impl Redrive {
    fn read(policy: &str) -> Self {
        let policy: serde_json::Value = serde_json::from_str(policy).unwrap_or_default();
        let max = &policy["maxReceiveCount"];
        // Some write it as a text.
        let max = max.as_u64().or_else(|| max.as_str()?.parse().ok());
        let target = policy["deadLetterTargetArn"].as_str().map(str::to_owned);
        Self { target, max: max.and_then(|max| u32::try_from(max).ok()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_dead_letters_has_the_name_of_its_queue() {
        assert_eq!(dead_name("https://sqs.eu-west-1.amazonaws.com/1/orders"), "orders-dead");
        assert_eq!(dead_name("https://sqs.eu-west-1.amazonaws.com/1/orders.fifo"), "orders-dead.fifo");
    }

    #[test]
    fn a_redrive_policy_is_read_however_its_number_is_written() {
        for max in ["5", "\"5\""] {
            let policy = format!("{{\"deadLetterTargetArn\":\"arn:aws:sqs:eu:1:d\",\"maxReceiveCount\":{max}}}");
            let policy = Redrive::read(&policy);
            assert_eq!((policy.max, policy.target.as_deref()), (Some(5), Some("arn:aws:sqs:eu:1:d")));
        }
        assert_eq!(Redrive::read("").max, None);
    }
}
