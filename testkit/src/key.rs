//! The key that the nodes of a cluster share.

use std::path::{Path, PathBuf};

use crate::ServerProcessError;

/// Base64 of 32 bytes; nobody outside this machine reaches the nodes that know it.
const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

pub(crate) fn write_key(file: &Path) -> Result<(), ServerProcessError> {
    let folder = || file.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
    std::fs::write(file, KEY).map_err(|source| ServerProcessError::Files { folder: folder(), source })
}
