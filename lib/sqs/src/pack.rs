//! Messages as SQS carries them: a text and at most ten attributes.

use aws_sdk_sqs::types::{Message as Delivered, MessageAttributeValue, MessageSystemAttributeName};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use onward_lease::mailbox::Message;
use std::collections::{BTreeMap, HashMap};

const REPLY_TO: &str = "Onward.ReplyTo";
const ENCODING: &str = "Onward.Encoding";
const WHY: &str = "Onward.Why";
const DELIVERIES: &str = "Onward.Deliveries";

/// Room for attributes in what a queue takes as one message.
pub const ATTRIBUTE_BYTES: usize = 16 << 10;
/// The longest reason that a dead letter carries.
const MAX_WHY: usize = 1_024;
/// A message of a FIFO queue must have a group. One that has none gets one of its own, which begins with this.
const ALONE: &str = "onward-alone-";

/// A message, ready to be sent.
#[derive(Clone, Debug)]
pub struct PackedMessage {
    pub body: String,
    pub attributes: HashMap<String, MessageAttributeValue>,
    /// Group and deduplication id, for a FIFO queue.
    pub fifo: Option<(String, String)>,
}

impl PackedMessage {
    /// Size that counts towards the limits of a queue and of a batch, or a little more.
    pub fn bytes(&self) -> usize {
        self.body.len() + ATTRIBUTE_BYTES
    }
}

pub fn pack(message: Message, to_fifo: bool) -> PackedMessage {
    let mut attributes: HashMap<String, MessageAttributeValue> =
        message.headers.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    if let Some(address) = &message.reply_to {
        attributes.insert(REPLY_TO.into(), text(address));
    }
    let body = match String::from_utf8(message.body.to_vec()) {
        Ok(body) if !body.is_empty() && body.chars().all(is_carried) => body,
        _ => {
            attributes.insert(ENCODING.into(), text("base64"));
            // An empty text is none.
            format!("={}", BASE64.encode(&message.body))
        }
    };
    let fifo = to_fifo.then(|| {
        // Whether a message was sent before is not for the broker to guess by its content.
        let id = random_id();
        (message.group.unwrap_or_else(|| format!("{ALONE}{id}")), id)
    });
    PackedMessage { body, attributes, fifo }
}

pub fn unpack(delivered: &Delivered) -> Message {
    let attribute = |name: &str| delivered.message_attributes()?.get(name)?.string_value();
    let body = delivered.body().unwrap_or_default();
    let decoded = || BASE64.decode(body.strip_prefix('=')?).ok();
    let body = match attribute(ENCODING) {
        Some("base64") => decoded().map_or_else(|| Bytes::copy_from_slice(body.as_bytes()), Bytes::from),
        _ => Bytes::copy_from_slice(body.as_bytes()),
    };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let mut headers = BTreeMap::new();
    for (name, value) in delivered.message_attributes().into_iter().flatten() {
        if let Some(value) = value.string_value().filter(|_| name.bytes().all(is_plain)) {
            headers.insert(name.clone(), value.to_owned());
        }
    }
    let group = system(delivered, &MessageSystemAttributeName::MessageGroupId);
    let group = group.filter(|group| !group.starts_with(ALONE)).map(str::to_owned);
    Message { body, headers, group, reply_to: attribute(REPLY_TO).map(str::to_owned) }
}

/// Hand-outs so far.
pub fn deliveries(delivered: &Delivered) -> u32 {
    let count = system(delivered, &MessageSystemAttributeName::ApproximateReceiveCount);
    count.and_then(|count| count.parse().ok()).unwrap_or(1)
}

fn system<'a>(delivered: &'a Delivered, name: &MessageSystemAttributeName) -> Option<&'a str> {
    delivered.attributes()?.get(name).map(String::as_str)
}

/// Writes on a message why it is dead.
pub fn mark_dead(packed: &mut PackedMessage, why: &str, deliveries: u32) {
    let mut why: String = why.chars().map(|one| if is_carried(one) { one } else { ' ' }).collect();
    let end = (0..=MAX_WHY.min(why.len())).rev().find(|at| why.is_char_boundary(*at)).unwrap_or(0);
    why.truncate(end);
    if why.is_empty() {
        why.push('-');
    }
    packed.attributes.insert(WHY.into(), text(&why));
    packed.attributes.insert(DELIVERIES.into(), text(&deliveries.to_string()));
}

/// The reason why a message is dead, and the number of its deliveries. One without our marks was moved by the queue's
/// own policy.
pub fn read_dead(delivered: &Delivered) -> (String, u32) {
    let attribute = |name: &str| delivered.message_attributes()?.get(name)?.string_value();
    let why = attribute(WHY).unwrap_or("moved by the redrive policy of its queue").to_owned();
    (why, attribute(DELIVERIES).and_then(|count| count.parse().ok()).unwrap_or_default())
}

fn text(value: &str) -> MessageAttributeValue {
    let built = MessageAttributeValue::builder().data_type("String").string_value(value).build();
    built.expect("it has a type")
}

/// Whether SQS takes this character: it takes those of XML.
fn is_carried(one: char) -> bool {
    matches!(one, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

fn random_id() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(packed: PackedMessage) -> Delivered {
        let group = packed.fifo.map(|(group, _)| group);
        let names = group.map(|group| (MessageSystemAttributeName::MessageGroupId, group));
        Delivered::builder()
            .body(packed.body)
            .set_message_attributes(Some(packed.attributes))
            .set_attributes(Some(names.into_iter().collect()))
            .build()
    }

    #[test]
    fn a_message_is_unpacked_as_it_was_packed() {
        let full = Message::new("text").header("a-1", "b\u{fc}").reply_to("https://sqs/1/replies").group("g");
        let bodies: [&[u8]; 5] = [b"", b"\x00\xff", b"=YQ==", "\u{fffe}".as_bytes(), "\u{1f600}\n".as_bytes()];
        let bare = bodies.map(|body| Message::new(Bytes::copy_from_slice(body)));
        for message in bare.into_iter().chain([full]) {
            let mut packed = pack(message.clone(), true);
            assert!(!packed.body.is_empty() && packed.body.chars().all(is_carried), "{packed:?}");
            assert_eq!(unpack(&delivered(packed.clone())), message);
            mark_dead(&mut packed, "no\u{0}such", 3);
            let dead = delivered(packed);
            assert_eq!((unpack(&dead), read_dead(&dead)), (message, ("no such".into(), 3)));
        }
    }

    #[test]
    fn messages_without_a_group_wait_for_none_in_a_fifo_queue() {
        let group = |message| pack(message, true).fifo.unwrap().0;
        assert_ne!(group(Message::new("a")), group(Message::new("a")));
        assert_eq!(group(Message::new("a").group("g")), "g");
        assert_eq!(pack(Message::new("a"), false).fifo, None);
    }
}
