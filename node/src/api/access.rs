//! What the caller of a request may do. Found out once per request by the server, before any handler runs.

use core::convert::Infallible;
use core::fmt;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use super::problem::Problem;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    Read,
    Submit,
    Work,
    Operate,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Submit, Self::Work, Self::Operate];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Submit => "submit",
            Self::Work => "work",
            Self::Operate => "operate",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The default may nothing: so does whoever was not looked at.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Access {
    pub scopes: Vec<Scope>,
    /// May submit jobs that run commands.
    pub may_exec: bool,
}

impl Access {
    pub fn full() -> Self {
        Self { scopes: Scope::ALL.to_vec(), may_exec: true }
    }

    pub fn need(&self, scope: Scope) -> Result<(), Problem> {
        if self.scopes.contains(&scope) {
            return Ok(());
        }
        let detail =
            format!("this needs the scope `{scope}`; use a token that has it, or make one: `onward token new`");
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail))
    }

    /// Whether a job that runs a command may be submitted.
    pub const fn may_exec(&self) -> bool {
        self.may_exec
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Access {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}
