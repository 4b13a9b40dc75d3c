//! The static binary: stripped, and with no need of a loader.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

/// Builds it, and gives its path. A binary that does not start or needs a loader is an error.
pub fn build(root: &Path) -> Result<PathBuf> {
    let target = target();
    println!("onward: dist: a static binary for {target}");
    let mut build = workspace::cargo(root);
    build.args(["build", "--profile", "dist", "--locked", "--package", "onward-cli", "--target", &target]);
    build.env("RUSTFLAGS", flags(&target).join(" "));
    let status = build.status().context("cannot start cargo")?;
    ensure!(status.success(), "the build failed ({status})");
    let built = root.join("target").join(&target).join("dist/onward");
    let version = Command::new(&built).arg("--version").output().context("the binary does not start")?;
    ensure!(version.status.success(), "the binary does not start ({})", version.status);
    if !is_static(&built)? {
        bail!("{} needs a dynamic loader; is `libc.a` (Debian: libc6-dev) there?", built.display());
    }
    Ok(built)
}

/// Takes away the names of functions, which are a seventh of it.
pub fn strip(binary: &Path) -> Result<()> {
    let status = Command::new("strip").arg("--strip-all").arg(binary).status();
    let status = status.context("strip is needed: apt-get install binutils")?;
    ensure!(status.success(), "strip failed ({status})");
    Ok(())
}

fn flags(target: &str) -> Vec<&'static str> {
    // musl is static by itself. Without a loader nobody can look for `getrandom` in the C library, and containers may
    // have no /dev: the system is asked directly.
    let mut flags = vec!["-C target-feature=+crt-static", "--cfg getrandom_backend=\"linux_getrandom\""];
    if target == "x86_64-unknown-linux-gnu" {
        // Here rustc links with LLD, which knows how: equal functions become one, and relocations take bits, not words.
        flags.extend(["-C link-arg=-Wl,--icf=all", "-C link-arg=-Wl,-z,pack-relative-relocs"]);
    }
    flags
}

/// musl where the toolchain and the C compiler for it are there, else glibc.
fn target() -> String {
    let musl = format!("{ARCH}-unknown-linux-musl");
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", &musl]).output();
    let has_library = output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir());
    let has_compiler = Command::new("musl-gcc").arg("--version").output().is_ok_and(|output| output.status.success());
    if has_library && has_compiler { musl } else { format!("{ARCH}-unknown-linux-gnu") }
}

/// An ELF file without an interpreter: its program headers hold no `PT_INTERP`.
fn is_static(binary: &Path) -> Result<bool> {
    let bytes = std::fs::read(binary)?;
    let word = |at: usize, size: usize| -> Option<usize> {
        let slice = bytes.get(at..at + size)?;
        Some(slice.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "{} is not a 64-bit little-endian ELF file", binary.display());
    let headers = (word(0x20, 8), word(0x36, 2), word(0x38, 2));
    let (Some(start), Some(size), Some(count)) = headers else { bail!("{} is cut short", binary.display()) };
    const PT_INTERP: usize = 3;
    Ok((0..count).all(|n| word(start + n * size, 4) != Some(PT_INTERP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_is_not_static() {
        // This very test runs from a binary that a dynamic loader has loaded.
        let here = std::env::current_exe().expect("it has a path");
        assert!(!is_static(&here).expect("an ELF file"));
    }

    #[test]
    fn what_is_no_binary_is_refused() {
        assert!(is_static(Path::new(file!())).is_err());
    }
}
