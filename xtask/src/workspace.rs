//! Where the workspace is, and the cargo that started us.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The folder that holds the workspace's `Cargo.toml`.
///
/// Read when run, not when compiled: worktrees may share one target directory.
pub fn root() -> Result<PathBuf> {
    let here = match env::var_os("CARGO_MANIFEST_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => env::current_dir().context("cannot read the current directory")?,
    };
    here.ancestors()
        .find(|dir| is_workspace(dir))
        .map(Path::to_path_buf)
        .context("not inside the Onward workspace: run this from a folder of the checkout")
}

/// The cargo that started us, so that a `+toolchain` on the command line holds for every step.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

fn is_workspace(dir: &Path) -> bool {
    std::fs::read_to_string(dir.join("Cargo.toml"))
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
}
