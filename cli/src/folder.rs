//! The data folder of the node on this machine, and writing small files there that must not be read half-written.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// `$XDG_DATA_HOME/onward`, else `~/.local/share/onward`.
pub fn default_data(env: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let given = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = given("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let base = base.or_else(|| given("HOME").map(|home| home.join(".local/share")));
    base.unwrap_or_else(|| PathBuf::from(".")).join("onward")
}

/// Replaces a file as a whole, readable for its owner only. Whoever reads it sees the old or the new one.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = folder.join(name);
    let written = write_synced(&new, content).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error is the one to tell.
        let _ = fs::remove_file(&new);
        return written;
    }
    fs::File::open(folder)?.sync_all()
}

fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_data_folder_follows_the_environment() {
        let env = |xdg: &'static str, home: &'static str| {
            move |name: &str| match name {
                "XDG_DATA_HOME" => Some(xdg.into()),
                "HOME" => Some(home.into()),
                _ => None,
            }
        };
        assert_eq!(default_data(env("/x", "/h")), Path::new("/x/onward"));
        assert_eq!(default_data(env("", "/h")), Path::new("/h/.local/share/onward"));
        assert_eq!(default_data(env("relative", "/h")), Path::new("/h/.local/share/onward"));
        assert_eq!(default_data(|_| None), Path::new("./onward"));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens.json");
        fs::write(&file, "old").unwrap();
        replace(&file, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
    }
}
