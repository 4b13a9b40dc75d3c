//! What is handed out, in `dist/`: the static binary, a Debian package, a container image's context, shell completions
//! and manual pages.

mod binary;
mod debian;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Shells for which completions are made, with the file that each one looks for.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "onward"), ("zsh", "_onward"), ("fish", "onward.fish")];

/// The largest size of the binary.
const MAX_MEGABYTES: f64 = 15.0;

/// The parts of a package or an image.
struct Parts {
    /// The workspace, whose `deploy/` has the files that are handed out as they are.
    root: PathBuf,
    dist: PathBuf,
    binary: PathBuf,
}

pub fn run(root: &Path) -> Result<()> {
    let built = binary::build(root)?;
    let dist = root.join("dist");
    // Nothing of an earlier version is handed out with this one.
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("cannot remove {}", dist.display()))?;
    }
    let binary = dist.join("onward");
    copy(&built, &binary)?;
    binary::strip(&binary)?;
    let parts = Parts { root: root.to_owned(), dist, binary };
    write_completions(&parts)?;
    write_manual(&parts)?;
    write_container(&parts)?;
    let package = debian::build(&parts)?;
    let megabytes = |path: &Path| fs::metadata(path).map(|about| about.len() as f64 / 1e6);
    let size = megabytes(&parts.binary)?;
    println!("onward: dist/onward          {size:.1} MB, static");
    println!("onward: {}  {:.1} MB", relative(&parts, &package), megabytes(&package)?);
    println!("onward: dist/container       docker build -t onward dist/container");
    println!("onward: dist/completions, dist/man");
    ensure!(size <= MAX_MEGABYTES, "the binary has {size:.1} MB, and {MAX_MEGABYTES} are promised");
    println!("onward: dist green");
    Ok(())
}

fn write_completions(parts: &Parts) -> Result<()> {
    for (shell, name) in COMPLETIONS {
        let script = output_of(parts, &["completions", shell])?;
        write(&parts.dist.join("completions").join(shell).join(name), &script)?;
    }
    Ok(())
}

fn write_manual(parts: &Parts) -> Result<()> {
    let folder = parts.dist.join("man");
    let folder = folder.to_str().context("the path of this folder is not UTF-8")?;
    output_of(parts, &["man", "--out", folder]).map(drop)
}

fn write_container(parts: &Parts) -> Result<()> {
    let folder = parts.dist.join("container");
    copy(&parts.root.join("deploy/container/Dockerfile"), &folder.join("Dockerfile"))?;
    copy(&parts.binary, &folder.join("onward"))?;
    // Copied into the image with its owner, so that a volume that is mounted there belongs to the node's user.
    fs::create_dir_all(folder.join("data")).context("cannot make the container's data folder")
}

fn output_of(parts: &Parts, args: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(&parts.binary).args(args).output().context("the binary does not start")?;
    ensure!(output.status.success(), "`onward {}` failed ({})", args.join(" "), output.status);
    Ok(output.stdout)
}

/// Copies contents and permissions; folders on the way are made.
fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(to: &Path, bytes: &[u8]) -> Result<()> {
    make_parent(to)?;
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))
}

fn make_parent(of: &Path) -> Result<()> {
    let folder = of.parent().expect("a file of ours lies in a folder");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn relative(parts: &Parts, path: &Path) -> String {
    path.strip_prefix(&parts.root).unwrap_or(path).display().to_string()
}
