//! The last part of an attempt's output.

use std::collections::VecDeque;

/// The part of one attempt's output that is kept.
pub const TAIL_BYTES: usize = 64 * 1024;

/// Keeps the last bytes that it is given, and counts those before.
#[derive(Debug, Clone)]
pub struct TailBuffer {
    kept: VecDeque<u8>,
    limit: usize,
    dropped: u64,
}

impl Default for TailBuffer {
    fn default() -> Self {
        Self::new(TAIL_BYTES)
    }
}

impl TailBuffer {
    pub fn new(limit: usize) -> Self {
        Self { kept: VecDeque::new(), limit, dropped: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let skipped = bytes.len().saturating_sub(self.limit);
        let bytes = &bytes[skipped..];
        let overflow = (self.kept.len() + bytes.len()).saturating_sub(self.limit);
        self.kept.drain(..overflow);
        self.kept.extend(bytes);
        self.dropped += (skipped + overflow) as u64;
    }

    /// The number of bytes before those that are kept.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    pub fn len(&self) -> usize {
        self.kept.len()
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let (front, back) = self.kept.as_slices();
        [front, back].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_end_is_kept_and_the_rest_counted(chunks in vec(vec(any::<u8>(), 0..30), 0..10), limit in 0_usize..40) {
            let mut tail = TailBuffer::new(limit);
            for chunk in &chunks {
                tail.push(chunk);
            }
            let all = chunks.concat();
            let from = all.len().saturating_sub(limit);
            prop_assert_eq!(tail.to_vec(), &all[from..]);
            prop_assert_eq!(tail.dropped(), from as u64);
            prop_assert_eq!(tail.len() + from, all.len());
        }
    }
}
