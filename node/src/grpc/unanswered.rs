//! How much of what came in over a stream waits for the machine. While that is too much, nothing more is read.

use std::collections::VecDeque;

use onward_proto::MAX_FRAME_BYTES;

/// Bytes that one stream may have waiting: two full frames, or this many messages.
const MAX_UNANSWERED_BYTES: usize = 2 * MAX_FRAME_BYTES;
const MAX_UNANSWERED: usize = 1_024;

/// Messages that were not answered yet. The machine answers in the order in which it is asked.
#[derive(Default, Debug)]
pub(super) struct AnswerBacklog {
    bytes_of: VecDeque<usize>,
    bytes: usize,
}

impl AnswerBacklog {
    pub(super) fn add(&mut self, messages: usize, bytes: usize) {
        self.bytes_of.extend(core::iter::repeat_n(bytes / messages, messages));
        self.bytes += bytes / messages * messages;
    }

    pub(super) fn answered(&mut self) {
        // A refusal may also be of something that needs no answer; then one is missing here, which does no harm.
        self.bytes -= self.bytes_of.pop_front().unwrap_or(0);
    }

    pub(super) fn has_room(&self) -> bool {
        self.bytes < MAX_UNANSWERED_BYTES && self.bytes_of.len() < MAX_UNANSWERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_comes_back_with_the_answers() {
        let mut unanswered = AnswerBacklog::default();
        unanswered.add(2, MAX_UNANSWERED_BYTES + 1);
        unanswered.add(1, 1);
        unanswered.answered();
        assert!(unanswered.has_room());
        unanswered.add(1, MAX_UNANSWERED_BYTES);
        assert!(!unanswered.has_room());
        for _ in 0..4 {
            unanswered.answered();
        }
        assert_eq!((unanswered.bytes, unanswered.bytes_of.len()), (0, 0));
        for _ in 0..MAX_UNANSWERED {
            unanswered.add(1, 0);
        }
        assert!(!unanswered.has_room());
    }
}
