//! Where programs are.

use std::path::PathBuf;

use crate::ServerProcessError;

/// The program of this name: in the search path, or where Debian puts what a search path often lacks.
pub fn find(name: &str) -> Result<PathBuf, ServerProcessError> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&searched).collect();
    folders.extend(["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"].map(PathBuf::from));
    folders.extend(postgres_folders());
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| ServerProcessError::Absent { program: name.to_owned() })
}

/// Debian keeps every version of PostgreSQL beside the others: the newest first.
fn postgres_folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}
