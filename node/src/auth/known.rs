//! Tokens that are good now, as a running node knows them, wherever they are kept.

use std::collections::HashMap;

use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::Scopes;
use super::validity::{Alive, Validity};

/// The rights that a token gives to its bearer.
#[derive(Clone, Debug)]
pub struct TokenRights {
    pub scopes: Scopes,
    /// Valid until the token is revoked, or allows something else.
    pub validity: Validity,
    /// Tells this token from others.
    pub number: u64,
}

#[derive(Debug, Default)]
pub(super) struct KnownTokens(Vec<KnownToken>);

#[derive(Debug)]
struct KnownToken {
    digest: [u8; 32],
    scopes: Scopes,
    alive: Alive,
}

impl KnownTokens {
    /// Compares with every token, whichever it is, in the same time.
    pub(super) fn find(&self, digest: &[u8; 32]) -> Option<TokenRights> {
        let (mut found, mut index) = (Choice::from(0), 0u32);
        for (at, token) in self.0.iter().enumerate() {
            let same = token.digest.ct_eq(digest);
            index.conditional_assign(&(at as u32), same);
            found |= same;
        }
        bool::from(found).then(|| {
            let token = &self.0[index as usize];
            let number = u64::from_le_bytes(token.digest[..8].try_into().expect("eight bytes"));
            TokenRights { scopes: token.scopes, validity: token.alive.validity(), number }
        })
    }

    /// Makes these tokens good, and no others. Anything that was opened with one that stays the same stays open.
    pub(super) fn replace(&mut self, tokens: impl IntoIterator<Item = ([u8; 32], Scopes)>) {
        let mut before: HashMap<([u8; 32], Scopes), Alive> =
            self.0.drain(..).map(|token| ((token.digest, token.scopes), token.alive)).collect();
        self.0.extend(tokens.into_iter().map(|(digest, scopes)| {
            let alive = before.remove(&(digest, scopes)).unwrap_or_default();
            KnownToken { digest, scopes, alive }
        }));
        // Tokens that are left in `before` are revoked, and dropping them says so.
    }

    /// Whether something is open with one of the tokens.
    pub(super) fn any_is_relied_on(&self) -> bool {
        self.0.iter().any(|token| token.alive.is_relied_on())
    }
}
