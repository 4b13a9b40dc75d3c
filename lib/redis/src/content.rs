//! A message as one value: a line of JSON for all but the body, then the body as it is.

use std::collections::BTreeMap;

use bytes::Bytes;
use onward_lease::mailbox::Message;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Head {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
}

pub fn pack(message: Message) -> Vec<u8> {
    let Message { body, headers, group, reply_to } = message;
    let mut value = serde_json::to_vec(&Head { headers, group, reply_to }).expect("texts are JSON");
    value.push(b'\n');
    value.extend_from_slice(&body);
    value
}

/// Unpacks a message; bytes that were not packed by us are a body.
pub fn unpack(value: Vec<u8>) -> Message {
    let end = value.iter().position(|byte| *byte == b'\n');
    let head = end.and_then(|end| Some((end, serde_json::from_slice::<Head>(&value[..end]).ok()?)));
    match head {
        Some((end, Head { headers, group, reply_to })) => {
            Message { body: Bytes::from(value).slice(end + 1..), headers, group, reply_to }
        }
        None => Message::new(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_unpacked_as_it_was_packed() {
        let full = Message::new(&b"\n\x00{}\n"[..]).header("a", "b\u{fc}").group("g").reply_to("r");
        for message in [Message::new(""), Message::new("text"), full] {
            assert_eq!(unpack(pack(message.clone())), message);
        }
        assert_eq!(unpack(b"foreign".into()), Message::new("foreign"));
    }
}
