//! Installing the peers, on Debian and what descends from it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use super::super::{Contender, ContestError};
use super::nats::{self, NatsPeer};
use super::{bullmq, rabbitmq, server, text};

/// Packages, with the contenders that each is for.
const PACKAGES: &[(&str, &[&str])] = &[
    ("beanstalkd", &["beanstalkd"]),
    ("nats-server", &[nats::PROGRAM]),
    ("rabbitmq-server", &[rabbitmq::PROGRAM]),
    ("postgresql", &["initdb", "postgres"]),
    ("redis-server", &["redis-server"]),
    ("nodejs", &["node"]),
    ("npm", &["npm"]),
];

/// Debian's tools ask this program before they start a service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// A Debian with a NATS that can sync before it answers.
const NEWER_DEBIAN: &str = "trixie";

/// The folder for programs that no package manager keeps: `bench-peers` in the folder that this program was built into.
pub fn cache() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().nth(2).unwrap_or(Path::new("target")).join("bench-peers")
}

/// Installs every peer that is missing, and says what before it does.
pub fn install() -> Result<(), ContestError> {
    let absent = |(_, programs): &&(&str, &[&str])| server::missing(programs).is_some();
    let packages: Vec<&str> = PACKAGES.iter().filter(absent).map(|(package, _)| *package).collect();
    if !packages.is_empty() {
        install_packages(&packages)?;
    }
    if NatsPeer::synced().missing().is_some() {
        install_newer_nats()?;
    }
    if bullmq::module_missing() {
        let folder = bullmq::folder();
        println!("installing with npm into {}: {}", folder.display(), bullmq::MODULES.join(", "));
        std::fs::create_dir_all(&folder)?;
        // Without it npm would look for a project in the folders above.
        std::fs::write(folder.join("package.json"), "{\"private\": true}\n")?;
        let mut npm = Command::new(server::needed("npm")?);
        npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"]).args(bullmq::MODULES);
        npm.current_dir(&folder);
        server::run(npm)?;
    }
    println!("every peer is installed");
    Ok(())
}

fn install_packages(packages: &[&str]) -> Result<(), ContestError> {
    let names = packages.join(" ");
    if server::program("apt-get").is_none() {
        return Err(format!("there is no apt-get here; install by hand: {names}").into());
    }
    if !geteuid().is_root() {
        let command = format!("sudo apt-get install -y --no-install-recommends {names}");
        return Err(format!("installing packages needs root; run: {command}").into());
    }
    println!("installing with apt-get: {names}");
    let _quiet = NoServices::new()?;
    server::run(apt(&["update"]))?;
    let mut install = apt(&["install", "-y", "--no-install-recommends"]);
    install.args(packages).env("DEBIAN_FRONTEND", "noninteractive");
    server::run(install)
}

fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.args(arguments);
    command
}

/// While this lives, what gets installed does not start its service.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn new() -> Result<Self, ContestError> {
        if Path::new(POLICY).exists() {
            return Ok(Self { is_ours: false });
        }
        std::fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self { is_ours: true })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours
            && let Err(error) = std::fs::remove_file(POLICY)
        {
            println!("cannot remove {POLICY}: {error}; while it is there, no package starts its service: remove it");
        }
    }
}

/// Unpacks the package of a newer Debian beside this program. Nothing of the system changes, and apt checks the
/// signature against Debian's keys.
fn install_newer_nats() -> Result<(), ContestError> {
    let folder = cache();
    println!("unpacking nats-server of Debian {NEWER_DEBIAN} into {}", folder.display());
    let apt_folder = folder.join("apt");
    for name in ["lists/partial", "cache/archives/partial", "unpacked"] {
        std::fs::create_dir_all(apt_folder.join(name))?;
    }
    let sources = apt_folder.join("sources.list");
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    std::fs::write(&sources, format!("deb [signed-by={keys}] http://deb.debian.org/debian {NEWER_DEBIAN} main\n"))?;
    let apart = |arguments: &[&str]| -> Result<Command, ContestError> {
        let mut command = apt(arguments);
        command.current_dir(&apt_folder).arg("-o").arg("Dir::Etc::SourceParts=/dev/null");
        // It may not be able to enter the folder as the user that it otherwise downloads as.
        command.arg("-o").arg("APT::Sandbox::User=root");
        for (setting, path) in [("Etc::SourceList", &sources), ("State::Lists", &apt_folder.join("lists"))] {
            command.arg("-o").arg(format!("Dir::{setting}={}", text(path)?));
        }
        command.arg("-o").arg(format!("Dir::Cache={}", text(&apt_folder.join("cache"))?));
        Ok(command)
    };
    server::run(apart(&["update"])?)?;
    server::run(apart(&["download", "nats-server"])?)?;
    let files = std::fs::read_dir(&apt_folder)?.flatten().map(|entry| entry.path());
    let package = files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let unpacked = apt_folder.join("unpacked");
    let mut unpack = Command::new("dpkg-deb");
    unpack.arg("-x").arg(package.ok_or("apt-get downloaded nothing")?).arg(&unpacked);
    server::run(unpack)?;
    std::fs::create_dir_all(folder.join("bin"))?;
    std::fs::copy(unpacked.join("usr/sbin").join(nats::PROGRAM), folder.join("bin").join(nats::PROGRAM))?;
    std::fs::remove_dir_all(&apt_folder)?;
    Ok(())
}
