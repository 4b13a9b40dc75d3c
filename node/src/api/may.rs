//! A scope that a handler needs, said in its signature.

use core::marker::PhantomData;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::access::{Access, Scope};
use super::problem::ProblemResponse;

/// A scope as a type.
pub trait Needs {
    const SCOPE: Scope;
}

macro_rules! needs {
    ($($name:ident)*) => {
        $(#[derive(Debug)]
        pub enum $name {}

        impl Needs for $name {
            const SCOPE: Scope = Scope::$name;
        })*
    };
}

needs! { Read Submit Work Operate }

/// The caller has this scope. As the first argument of a handler it is checked before anything else is read.
#[derive(Debug)]
pub struct May<N> {
    pub access: Access,
    scope: PhantomData<N>,
}

impl<S: Send + Sync, N: Needs> FromRequestParts<S> for May<N> {
    type Rejection = ProblemResponse;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ProblemResponse> {
        let access = Access::from_request_parts(parts, state).await?;
        access.need(N::SCOPE)?;
        Ok(Self { access, scope: PhantomData })
    }
}
