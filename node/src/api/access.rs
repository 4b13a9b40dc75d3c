//! What the caller of a request may do, and for how long. Found out once per request, before any handler runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};

use onward_core::ids::ClientId;
use tokio::sync::Notify;

use super::problem::ProblemResponse;
pub use crate::auth::Scope;
use crate::auth::{Scopes, TokenRights, Tokens, Validity};
use crate::peer::PeerIdentity;

#[derive(Clone, Debug)]
pub struct Access {
    scopes: Scopes,
    by_token: bool,
    validity: Validity,
    client: ClientId,
}

/// The connection that a request came on.
#[derive(Clone, Debug)]
pub struct ClientConnection {
    /// None within this process.
    peer: Option<IpAddr>,
    /// The node at the other end, by its certificate.
    identity: Option<PeerIdentity>,
    cut: Arc<Notify>,
}

impl ClientConnection {
    pub fn from(peer: Option<IpAddr>) -> Self {
        Self { peer, identity: None, cut: Arc::default() }
    }

    #[must_use]
    pub fn of_node(self, identity: Option<PeerIdentity>) -> Self {
        Self { identity, ..self }
    }

    /// The node that has proved itself by its certificate; none for anybody else.
    pub const fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_ref()
    }

    /// Ends it as it is: whoever is at the other end does not read.
    pub fn cut(&self) {
        self.cut.notify_one();
    }

    pub async fn is_cut(&self) {
        self.cut.notified().await;
    }
}

impl Access {
    /// Everything, as the owner's token gives it.
    pub fn full() -> Self {
        Self { scopes: Scopes::ALL, by_token: true, validity: Validity::unlimited(), client: ClientId::default() }
    }

    /// The access of any caller at a node that asks for no tokens. Running commands is not among what such a caller may
    /// do: a web page in the browser of somebody on this computer is such a caller too.
    pub fn without_token() -> Self {
        Self { by_token: false, ..Self::full() }
    }

    pub fn of_token(scopes: Scopes) -> Self {
        Self { scopes, ..Self::full() }
    }

    /// Over this connection, whose address is all that tells callers without a token apart.
    pub fn over(mut self, connection: &ClientConnection) -> Self {
        if !self.by_token {
            self.client = ClientId(hash_of(&connection.peer));
        }
        self
    }

    fn of_shown(shown: TokenRights) -> Self {
        let client = ClientId(hash_of(&shown.number));
        Self { scopes: shown.scopes, by_token: true, validity: shown.validity, client }
    }

    /// The caller, as far as shares of what is limited go: a token, or else an address.
    pub const fn client(&self) -> ClientId {
        self.client
    }

    /// Resolves when what the caller was let in by is no longer valid, with what is said to them. Everything that stays
    /// open for a caller waits for this too.
    pub async fn revoked(&self) -> ProblemResponse {
        self.validity.ended().await;
        revoked()
    }

    pub fn is_revoked(&self) -> bool {
        self.validity.has_ended()
    }

    /// Refused if it is no longer valid: some time has passed since it was found.
    pub fn still_valid(&self) -> Result<(), ProblemResponse> {
        if self.is_revoked() { Err(revoked()) } else { Ok(()) }
    }

    pub fn need(&self, scope: Scope) -> Result<(), ProblemResponse> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let detail = format!("this token lacks the scope `{scope}`; use one that has, or make one: `onward token new`");
        Err(ProblemResponse::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Whether the caller has shown a token, and does not merely reach the port.
    pub const fn by_token(&self) -> bool {
        self.by_token
    }

    /// Whether a job that runs a command may be submitted.
    pub const fn may_exec(&self) -> bool {
        self.by_token && self.scopes.has(Scope::Submit)
    }

    /// None without a token where one is needed; a wrong token is refused everywhere.
    pub fn find(
        headers: &HeaderMap,
        tokens: &dyn Tokens,
        tokens_required: bool,
    ) -> Result<Option<Self>, ProblemResponse> {
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return Ok((!tokens_required).then(Self::without_token));
        };
        let token = given.to_str().ok().and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        match token.and_then(|token| tokens.find(token)) {
            Some(shown) => Ok(Some(Self::of_shown(shown))),
            None => Err(unauthorized("the token is wrong, or was revoked")),
        }
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn revoked() -> ProblemResponse {
    unauthorized("the token that this was opened with was revoked")
}

fn unauthorized(what: &str) -> ProblemResponse {
    let detail =
        format!("{what}; send `Authorization: Bearer <token>`, with the token of the node's data folder or yours");
    ProblemResponse::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ProblemResponse> {
        parts.extensions.get().cloned().ok_or_else(|| unauthorized("this needs a token"))
    }
}
