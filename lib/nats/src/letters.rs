//! Messages as they travel: our fields are headers whose names a user's cannot have, since those are in small letters.

use std::collections::BTreeMap;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use onward_lease::mailbox::Message;

const REPLY_TO: &str = "Onward-Reply-To";
const WHY: &str = "Onward-Why";
const DELIVERIES: &str = "Onward-Deliveries";

/// Room for headers in what a server takes as one message.
pub const HEADER_BYTES: usize = 16 << 10;

/// Headers and body of a message.
pub fn pack(message: Message) -> (HeaderMap, Bytes) {
    let mut headers = HeaderMap::new();
    for (name, value) in message.headers {
        headers.insert(name, value);
    }
    if let Some(address) = message.reply_to {
        headers.insert(REPLY_TO, address);
    }
    (headers, message.body)
}

/// The message of these headers and this body. What others put into headers is kept where it could be sent by us.
pub fn unpack(headers: Option<&HeaderMap>, body: Bytes) -> Message {
    let mut message = Message::new(body);
    let Some(headers) = headers else { return message };
    message.reply_to = headers.get(REPLY_TO).map(|address| address.as_str().to_owned());
    let mut ours = BTreeMap::new();
    for (name, values) in headers.iter() {
        let name: &str = name.as_ref();
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if let Some(value) = values.first().filter(|_| name.bytes().all(is_plain)) {
            ours.insert(name.to_owned(), value.as_str().to_owned());
        }
    }
    message.headers = ours;
    message
}

/// Names a copy, so that the server drops a second one that follows soon.
pub fn name_copy(headers: &mut HeaderMap, name: String) {
    headers.insert(NATS_MESSAGE_ID, name);
}

/// Writes on a message why it is dead.
pub fn mark_dead(headers: &mut HeaderMap, why: &str, deliveries: u32) {
    // A header is one line.
    headers.insert(WHY, why.replace(char::is_control, " "));
    headers.insert(DELIVERIES, deliveries.to_string());
}

/// The reason why a message is dead, and the number of its deliveries.
pub fn read_dead(headers: &HeaderMap) -> (String, u32) {
    let text = |name: &str| headers.get(name).map(|value| value.as_str().to_owned()).unwrap_or_default();
    (text(WHY), text(DELIVERIES).parse().unwrap_or_default())
}

/// Takes off what was written on it, so that it can be sent again.
pub fn clean(headers: &HeaderMap) -> HeaderMap {
    let mut clean = HeaderMap::new();
    for (name, values) in headers.iter() {
        let name: &str = name.as_ref();
        if name != WHY && name != DELIVERIES && !name.starts_with("Nats-") {
            values.iter().for_each(|value| clean.append(name, value.clone()));
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_unpacked_as_it_was_packed() {
        let full = Message::new(&b"\n\x00"[..]).header("a-1", "b\u{fc}").reply_to("replies.x");
        for message in [Message::new(""), full] {
            let (mut headers, body) = pack(message.clone());
            mark_dead(&mut headers, "no\nsuch", 3);
            name_copy(&mut headers, "copy".into());
            assert_eq!(read_dead(&headers), ("no such".into(), 3));
            assert_eq!(unpack(Some(&headers), body.clone()), message);
            let clean = clean(&headers);
            assert_eq!((unpack(Some(&clean), body), read_dead(&clean).1), (message, 0));
        }
    }
}
