//! Programs from PyPI, in virtual environments below `target/`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ServerProcessError;
use crate::server::run;

/// The folder with the programs of a virtual environment that has these packages. It is made by the first who asks;
/// other processes wait for that on a file lock.
pub fn programs(name: &str, packages: &[&str]) -> Result<PathBuf, ServerProcessError> {
    let folder = target()?.join("testkit").join(name);
    let failed = |source: io::Error| ServerProcessError::Files { folder: folder.clone(), source };
    fs::create_dir_all(&folder).map_err(failed)?;
    let (venv, installed) = (folder.join("venv"), folder.join("installed.txt"));
    let wanted = packages.join("\n");
    // Released when the file is closed, also by a crash: then the next one finds no list and begins again.
    let lock = File::create(folder.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if fs::read_to_string(&installed).is_ok_and(|list| list == wanted) {
        return Ok(venv.join("bin"));
    }
    let mut make = Command::new("python3");
    run(make.args(["-m", "venv", "--clear"]).arg(&venv))?;
    let mut pip = Command::new(venv.join("bin/pip"));
    run(pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(packages))?;
    fs::write(&installed, wanted).map_err(failed)?;
    Ok(venv.join("bin"))
}

/// The folder that cargo builds into, of which this program is a part. Cargo marks it for backup programs.
fn target() -> Result<PathBuf, ServerProcessError> {
    let program =
        std::env::current_exe().map_err(|source| ServerProcessError::Files { folder: "target".into(), source })?;
    let marked = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let Some(marked) = marked.map(Path::to_owned) else {
        let what = format!("is not below cargo's target folder: {}", program.display());
        return Err(ServerProcessError::Broken { program: "the test program".into(), what, said: String::new() });
    };
    Ok(marked)
}
