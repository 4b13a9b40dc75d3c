//! Errors as RFC 9457 problems: a stable `code`, what is wrong, and what to do.

use serde::{Deserialize, Serialize};

use crate::word::Word;

/// The body of every answer that is not a success.
// A node gives all of it but `field` always; what stands in front of a node may give less.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Problem {
    /// The stable word for programs.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub code: Word,
    /// The same for people, in general.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, required = true))]
    pub title: Word,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub status: u16,
    /// The problem in this case, and its remedy.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub detail: String,
    /// The field of the request that is at fault, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
