//! One static binary to copy anywhere: `dist/onward`.

use std::env::consts::ARCH;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace;

pub fn run(root: &Path) -> Result<()> {
    let target = target();
    println!("onward: dist: a static binary for {target}");
    let mut build = workspace::cargo(root);
    build.args(["build", "--release", "--locked", "--package", "onward-cli", "--target", &target]);
    build.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    // musl is static by itself.
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    let status = build.status().context("cannot start cargo")?;
    ensure!(status.success(), "the build failed ({status})");

    let folder = root.join("dist");
    let (built, copy) = (root.join("target").join(&target).join("release/onward"), folder.join("onward"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Not written over: a copy of it may be running.
    let _ = std::fs::remove_file(&copy);
    std::fs::copy(&built, &copy).with_context(|| format!("cannot copy {} to {}", built.display(), copy.display()))?;
    let version = Command::new(&copy).arg("--version").output().context("the binary does not start")?;
    ensure!(version.status.success(), "the binary does not start ({})", version.status);
    if !is_static(&copy)? {
        bail!("{} needs a dynamic loader; is `libc.a` (Debian: libc6-dev) there?", copy.display());
    }
    let megabytes = std::fs::metadata(&copy)?.len() as f64 / 1e6;
    let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
    println!("onward: dist green: dist/onward is {version}, static, {megabytes:.1} MB");
    Ok(())
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
