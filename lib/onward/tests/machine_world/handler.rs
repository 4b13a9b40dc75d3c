//! A handler, written down in advance: what it does, when, and how it ends.

use std::collections::VecDeque;
use std::time::Duration;

use onward::machine::{HandlerOutcome, HandlerReport};
use onward_core::ids::Claim;
use onward_core::time::Mono;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

pub enum Act {
    Say(HandlerReport),
    AskExtension,
    End(HandlerOutcome),
}

pub struct Handler {
    script: VecDeque<(Duration, Act)>,
    /// The end of the lease, as the handler was told.
    pub lease_until: Mono,
    pub is_renewed: bool,
    pub is_cancelled: bool,
    /// Extension requests without an answer.
    pub asked: u32,
}

fn below(rng: &mut ChaCha8Rng, n: u64) -> u64 {
    rng.next_u64() % n
}

/// Tells one attempt from another.
pub fn result_of(claim: Claim) -> Vec<u8> {
    claim.fence.get().to_be_bytes().to_vec()
}

impl Handler {
    /// `is_told`: it is told to stop when its lease is lost. One that is not comes to an end by itself.
    pub fn new(rng: &mut ChaCha8Rng, claim: Claim, lease_until: Mono, is_polite: bool, is_told: bool) -> Self {
        let mut script = VecDeque::new();
        let mut done = 0;
        for _ in 0..below(rng, 12) {
            let pause = match below(rng, 10) {
                0..=3 => below(rng, 50),
                4..=7 => below(rng, 3_000),
                8 => below(rng, 12_000),
                _ if is_polite => 1,
                _ => below(rng, 45_000),
            };
            done += below(rng, 3);
            script.push_back((Duration::from_millis(pause), act(rng, done)));
        }
        let end = match below(rng, 100) {
            0..=64 => Some(HandlerOutcome::Succeeded(result_of(claim).into())),
            65..=76 => Some(HandlerOutcome::Failed { error: "no".into(), retryable: true, delay: None }),
            77..=80 => Some(HandlerOutcome::Failed { error: "never".into(), retryable: false, delay: None }),
            81..=84 if !is_polite => Some(HandlerOutcome::Released { delay: None }),
            // It hangs until it is told to stop.
            85..=99 if !is_polite && is_told => None,
            _ => Some(HandlerOutcome::Succeeded(result_of(claim).into())),
        };
        script.extend(end.map(|end| (Duration::from_millis(below(rng, 2_000)), Act::End(end))));
        Self { script, lease_until, is_renewed: false, is_cancelled: false, asked: 0 }
    }

    pub fn next_pause(&self) -> Option<Duration> {
        self.script.front().map(|(pause, _)| *pause)
    }

    pub fn next(&mut self) -> Option<Act> {
        self.script.pop_front().map(|(_, act)| act)
    }
}

fn act(rng: &mut ChaCha8Rng, done: u64) -> Act {
    let mut said = HandlerReport::default();
    match below(rng, 20) {
        0 => return Act::AskExtension,
        1..=3 => said.quiet = Some(Duration::from_millis(below(rng, 30_000))),
        4..=6 => said.checkpoint = Some(done.to_be_bytes()[..].into()),
        7 => said.note = Some("on my way".into()),
        8..=11 => {}
        _ => said.progress = Some((done, Some(40))),
    }
    Act::Say(said)
}
