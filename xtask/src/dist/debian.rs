//! The Debian package, by `dpkg-deb`: binary, manual pages, completions, systemd units and a settings file that upgrades
//! leave alone.

use std::env::consts::ARCH;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{COMPLETIONS, Parts, copy, write};

const SETTINGS: &str = "etc/onward/onward.toml";

pub fn build(parts: &Parts) -> Result<PathBuf> {
    let staging = parts.root.join("target/debian");
    if staging.exists() {
        fs::remove_dir_all(&staging).with_context(|| format!("cannot remove {}", staging.display()))?;
    }
    stage(parts, &staging)?;
    let name = format!("onward_{}_{}.deb", env!("CARGO_PKG_VERSION"), architecture());
    let package = parts.dist.join(name);
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--build", "--root-owner-group", "-Zxz"])
        .arg(&staging)
        .arg(&package)
        .stdout(std::process::Stdio::null());
    let status = pack.status().context("dpkg-deb is needed: apt-get install dpkg")?;
    ensure!(status.success(), "dpkg-deb failed ({status})");
    Ok(package)
}

fn stage(parts: &Parts, staging: &Path) -> Result<()> {
    let deploy = parts.root.join("deploy");
    copy(&parts.binary, &staging.join("usr/bin/onward"))?;
    for unit in ["onward.service", "onward-worker.service"] {
        copy(&deploy.join("systemd").join(unit), &staging.join("lib/systemd/system").join(unit))?;
    }
    copy(&deploy.join("debian/onward.toml"), &staging.join(SETTINGS))?;
    for page in fs::read_dir(parts.dist.join("man")).context("the manual pages are not there")? {
        let page = page?;
        copy(&page.path(), &staging.join("usr/share/man/man1").join(page.file_name()))?;
    }
    for ((shell, name), folder) in COMPLETIONS.into_iter().zip([
        "usr/share/bash-completion/completions",
        "usr/share/zsh/vendor-completions",
        "usr/share/fish/vendor_completions.d",
    ]) {
        copy(&parts.dist.join("completions").join(shell).join(name), &staging.join(folder).join(name))?;
    }
    write(&staging.join("usr/share/doc/onward/copyright"), COPYRIGHT.as_bytes())?;
    let control = staging.join("DEBIAN");
    write(&control.join("control"), control_text(installed_kib(staging)?).as_bytes())?;
    write(&control.join("conffiles"), format!("/{SETTINGS}\n").as_bytes())?;
    for script in ["postinst", "prerm"] {
        copy(&deploy.join("debian").join(script), &control.join(script))?;
        fs::set_permissions(control.join(script), Permissions::from_mode(0o755))?;
    }
    Ok(())
}

const COPYRIGHT: &str = "Onward is licensed under the Apache License 2.0 or the MIT licence, at your choice.\n";

/// The size of the package on the disk, which `apt` tells before it installs it.
fn installed_kib(folder: &Path) -> Result<u64> {
    let mut kib = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        kib += match entry.file_type()?.is_dir() {
            true => installed_kib(&entry.path())?,
            false => entry.metadata()?.len().div_ceil(1024),
        };
    }
    Ok(kib)
}

fn control_text(installed_kib: u64) -> String {
    format!(
        "Package: onward\nVersion: {}\nArchitecture: {}\nMaintainer: The Onward authors <onward@example.org>\n\
         Installed-Size: {installed_kib}\nDepends: adduser\nSection: admin\nPriority: optional\n\
         Description: job platform in which health means forward progress\n \
         One binary, no database, workers in any language. A worker keeps its jobs only\n \
         while they advance; being alive is not enough.\n",
        env!("CARGO_PKG_VERSION"),
        architecture()
    )
}

/// The architecture as Debian calls it.
fn architecture() -> &'static str {
    match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
