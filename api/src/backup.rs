//! A backup into a file on the node's disk.

use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BackupBody {
    /// Absolute, on the node's own disk, and not in its data folder. There must be no file yet.
    pub path: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = BackedUp))]
pub struct BackupAnswer {
    pub path: String,
    pub bytes: u64,
    /// Content that cannot be read, and is in the backup as it is. None if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damaged: Option<DamagedShown>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DamagedShown {
    /// Payloads and results over 4 KiB.
    pub contents: u64,
    /// The jobs that they belong to, a hundred at most.
    pub jobs: Vec<String>,
    /// The number of these jobs.
    pub jobs_total: usize,
}
