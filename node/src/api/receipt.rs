//! Receipts: what a worker without a session proves its lease with.
//!
//! Base64url of `[version][job 16][workflow 2][fence 8][tag 16]`, the tag being the first half of an HMAC-SHA256 over
//! what is before it. The key stays in the data folder, so that a receipt outlives restarts and takeovers. A receipt
//! says that the lease was given; whether it still holds is the machine's to say.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId};
use sha2::Sha256;

use super::problem::ProblemResponse;

const VERSION: u8 = 1;
const CLAIM_END: usize = 1 + 16 + 2 + 8;
const TAG_BYTES: usize = 16;
const BYTES: usize = CLAIM_END + TAG_BYTES;

pub const KEY_FILE: &str = "receipt.key";

/// Writes and checks receipts under one key.
#[derive(Clone)]
pub struct Receipts {
    keyed: Hmac<Sha256>,
}

impl core::fmt::Debug for Receipts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Receipts").finish_non_exhaustive()
    }
}

impl Receipts {
    pub fn new(key: &[u8; 32]) -> Self {
        Self { keyed: Hmac::new_from_slice(key).expect("any length of key will do") }
    }

    pub fn write(&self, claim: &Claim) -> String {
        let mut bytes = [0u8; BYTES];
        bytes[0] = VERSION;
        bytes[1..17].copy_from_slice(&claim.job.as_u128().to_be_bytes());
        bytes[17..19].copy_from_slice(&claim.workflow.to_be_bytes());
        bytes[19..CLAIM_END].copy_from_slice(&claim.fence.get().to_be_bytes());
        let tag = self.keyed.clone().chain_update(&bytes[..CLAIM_END]).finalize().into_bytes();
        bytes[CLAIM_END..].copy_from_slice(&tag[..TAG_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The claim, if we wrote this receipt.
    pub fn read(&self, text: &str) -> Result<Claim, ProblemResponse> {
        self.check(text).ok_or_else(|| {
            let detail = "this is no receipt of a lease that was given here; use it as it came, in full";
            ProblemResponse::new(StatusCode::NOT_FOUND, "unknown_attempt", detail)
        })
    }

    fn check(&self, text: &str) -> Option<Claim> {
        let mut bytes = [0u8; BYTES];
        // Longer text does not fit, shorter text does not fill.
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).ok()?;
        let (claim, tag) = bytes.split_at(CLAIM_END);
        // Compares in constant time.
        self.keyed.clone().chain_update(claim).verify_truncated_left(tag).ok()?;
        if length != BYTES || claim[0] != VERSION {
            return None;
        }
        Some(Claim {
            job: JobId::from_u128(u128::from_be_bytes(claim[1..17].try_into().ok()?)),
            workflow: u16::from_be_bytes(claim[17..19].try_into().ok()?),
            fence: AttemptFence::from_raw(u64::from_be_bytes(claim[19..27].try_into().ok()?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim { job: JobId::from_u128(7 << 100 | 9), workflow: 3, fence: AttemptFence::from_raw(1 << 40 | 5) }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let receipts = Receipts::new(&[1; 32]);
        assert_eq!(receipts.read(&receipts.write(&claim())), Ok(claim()));
    }

    #[test]
    fn nothing_else_is_a_receipt() {
        let receipts = Receipts::new(&[1; 32]);
        let good = receipts.write(&claim());
        let of_another_key = Receipts::new(&[2; 32]).write(&claim());
        let mut bad =
            vec![of_another_key, String::new(), "x".into(), "é".into(), format!("{good}A"), format!("{good}=")];
        for at in 0..good.len() {
            bad.push(good[..at].to_owned());
            for other in ['A', 'B', '_', '+'] {
                let mut altered: Vec<char> = good.chars().collect();
                altered[at] = other;
                let altered: String = altered.into_iter().collect();
                if altered != good {
                    bad.push(altered);
                }
            }
        }
        for text in bad {
            assert_eq!(receipts.read(&text).map_err(|problem| problem.status), Err(404), "{text}");
        }
    }
}
