//! For how long an access is valid.

use tokio::sync::watch;

/// An access is valid for ever, or until its token is revoked. Everything that stays open for a caller (a session, a
/// stream, a wait) ends with it.
#[derive(Clone, Debug)]
pub struct Validity(Option<watch::Receiver<()>>);

impl Validity {
    /// The validity of a caller who needs no token.
    pub const fn unlimited() -> Self {
        Self(None)
    }

    pub fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|token| token.has_changed().is_err())
    }

    /// Resolves when the access is no longer valid.
    pub async fn ended(&self) {
        let Some(token) = &self.0 else { return core::future::pending().await };
        let mut token = token.clone();
        // The value never changes; an error is its end.
        while token.changed().await.is_ok() {}
    }
}

/// A token that is known. Dropping it ends every [`Validity`] that came from it.
#[derive(Debug, Default)]
pub(super) struct Alive(watch::Sender<()>);

impl Alive {
    pub(super) fn validity(&self) -> Validity {
        Validity(Some(self.0.subscribe()))
    }

    /// Something was opened with the token and has not ended yet.
    pub(super) fn is_relied_on(&self) -> bool {
        self.0.receiver_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_token_and_not_before() {
        let (one, other) = (Alive::default(), Alive::default());
        let (valid, clone, apart) = (one.validity(), one.validity().clone(), other.validity());
        assert!(!valid.has_ended() && one.is_relied_on());
        drop(one);
        assert!(valid.has_ended() && clone.has_ended() && !apart.has_ended() && !Validity::unlimited().has_ended());
        valid.ended().await;
        drop(apart);
        assert!(!other.is_relied_on());
    }
}
