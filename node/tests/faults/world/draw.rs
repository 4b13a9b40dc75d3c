//! Bytes and choices at random, the same for the same seed.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::Bytes;

#[derive(Debug)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Half of them too large to stay in memory.
    pub fn bytes(&mut self) -> Bytes {
        let length = [10, 100, 5_000, 20_000][self.below(4) as usize];
        self.bytes_of(length)
    }

    /// What an attempt prints at a time; with several the beginning is cut off.
    pub fn printed(&mut self) -> Bytes {
        let length = [10, 3_000, 70_000][self.below(3) as usize];
        self.bytes_of(length)
    }

    /// Too large to stay in memory.
    pub fn large(&mut self) -> Bytes {
        self.bytes_of(5_000)
    }

    /// The words of an error or of a reason, some of them long.
    pub fn words(&mut self) -> Arc<str> {
        let word = format!("{:016x} ", self.0.next_u64());
        word.repeat([1, 12][self.below(2) as usize]).into()
    }

    fn bytes_of(&mut self, at_least: usize) -> Bytes {
        let length = at_least + self.below(90) as usize;
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes.into()
    }
}
