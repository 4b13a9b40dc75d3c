//! What the caller of a request may do. Found out once per request, before any handler runs.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};

use super::problem::Problem;
pub use crate::auth::Scope;
use crate::auth::{Scopes, TokenFile};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    scopes: Scopes,
    by_token: bool,
}

impl Access {
    /// Everything, as the owner's token gives it.
    pub const fn full() -> Self {
        Self { scopes: Scopes::ALL, by_token: true }
    }

    /// Whoever reaches a node that asks for no tokens. Running commands is not among what such a caller may do: a web
    /// page in the browser of somebody on this computer is such a caller too.
    pub const fn without_token() -> Self {
        Self { scopes: Scopes::ALL, by_token: false }
    }

    pub const fn of_token(scopes: Scopes) -> Self {
        Self { scopes, by_token: true }
    }

    pub fn need(&self, scope: Scope) -> Result<(), Problem> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let detail = format!("this token lacks the scope `{scope}`; use one that has, or make one: `onward token new`");
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Whether the caller has shown a token, and is not merely somebody who reaches the port.
    pub const fn by_token(&self) -> bool {
        self.by_token
    }

    /// Whether a job that runs a command may be submitted.
    pub const fn may_exec(&self) -> bool {
        self.by_token && self.scopes.has(Scope::Submit)
    }

    /// None without a token where one is needed; a wrong token is refused everywhere.
    pub fn find(headers: &HeaderMap, tokens: &TokenFile, tokens_required: bool) -> Result<Option<Self>, Problem> {
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return Ok((!tokens_required).then_some(Self::without_token()));
        };
        let token = given.to_str().ok().and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        match token.and_then(|token| tokens.scopes_of(token)) {
            Some(scopes) => Ok(Some(Self::of_token(scopes))),
            None => Err(unauthorized("the token is wrong, or was revoked")),
        }
    }
}

fn unauthorized(what: &str) -> Problem {
    let detail =
        format!("{what}; send `Authorization: Bearer <token>`, with the token of the node's data folder or yours");
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parts.extensions.get().copied().ok_or_else(|| unauthorized("this needs a token"))
    }
}
