//! What the test command needs on a machine, how to see whether it is there, and how to get it.
//!
//! To need one more thing, add a row to [`NEEDS`].

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::workspace;

#[derive(Debug)]
struct Need {
    name: &'static str,
    why: &'static str,
    seen_by: Detect,
    comes_from: Source,
}

#[derive(Debug)]
enum Detect {
    /// A program of this name is on `PATH`.
    OnPath(&'static str),
    /// The program with these arguments succeeds.
    Runs(&'static str, &'static [&'static str]),
    /// `cargo <this> --version` works.
    Cargo(&'static str),
}

#[derive(Debug)]
enum Source {
    /// Debian packages, which we install.
    Debian(&'static [&'static str]),
    /// A component of the Rust toolchain, which we only name: the toolchain belongs to the developer.
    Toolchain(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        name: "cc",
        why: "links every binary",
        seen_by: Detect::OnPath("cc"),
        comes_from: Source::Debian(&["gcc", "libc6-dev"]),
    },
    Need {
        name: "git",
        why: "tidy asks it which files are ours",
        seen_by: Detect::OnPath("git"),
        comes_from: Source::Debian(&["git"]),
    },
    Need {
        name: "curl",
        why: "the worker in `examples` is made of it",
        seen_by: Detect::OnPath("curl"),
        comes_from: Source::Debian(&["curl"]),
    },
    Need {
        name: "python3 with venv",
        why: "generates and runs a Python client",
        seen_by: Detect::Runs("python3", &["-c", "import ensurepip, venv"]),
        comes_from: Source::Debian(&["python3", "python3-venv"]),
    },
    Need {
        name: "npm",
        why: "generates and runs a TypeScript client",
        seen_by: Detect::OnPath("npm"),
        comes_from: Source::Debian(&["nodejs", "npm"]),
    },
    Need {
        name: "promtool",
        why: "checks the metrics and the alert rules",
        seen_by: Detect::OnPath("promtool"),
        comes_from: Source::Debian(&["prometheus"]),
    },
    Need {
        name: "python3",
        why: "the Python worker in `examples` runs on it",
        seen_by: Detect::OnPath("python3"),
        comes_from: Source::Debian(&["python3", "python3-venv"]),
    },
    Need {
        name: "node",
        why: "the JavaScript worker in `examples` runs on it",
        seen_by: Detect::OnPath("node"),
        comes_from: Source::Debian(&["nodejs"]),
    },
    Need {
        name: "go",
        why: "builds the Go worker in `examples`",
        seen_by: Detect::OnPath("go"),
        comes_from: Source::Debian(&["golang-go"]),
    },
    Need {
        name: "systemd-analyze",
        why: "reads the units in `deploy`",
        seen_by: Detect::OnPath("systemd-analyze"),
        comes_from: Source::Debian(&["systemd"]),
    },
    Need {
        name: "PostgreSQL",
        why: "a real database for tests of what is stored in one",
        // Debian keeps it out of the search path.
        seen_by: Detect::Runs("sh", &["-c", "command -v initdb || ls /usr/lib/postgresql/*/bin/initdb"]),
        comes_from: Source::Debian(&["postgresql"]),
    },
    Need {
        name: "redis-server",
        why: "a real Redis for the tests of the mailbox on it",
        seen_by: Detect::OnPath("redis-server"),
        comes_from: Source::Debian(&["redis-server"]),
    },
    Need {
        name: "pgbouncer",
        why: "a real pooler for the tests of what is stored in PostgreSQL",
        seen_by: Detect::Runs("sh", &["-c", "command -v pgbouncer || ls /usr/sbin/pgbouncer"]),
        comes_from: Source::Debian(&["pgbouncer"]),
    },
    Need {
        name: "cargo fmt",
        why: "checks the formatting",
        seen_by: Detect::Cargo("fmt"),
        comes_from: Source::Toolchain("rustfmt"),
    },
    Need {
        name: "cargo clippy",
        why: "lints",
        seen_by: Detect::Cargo("clippy"),
        comes_from: Source::Toolchain("clippy"),
    },
];

/// Makes sure that everything in [`NEEDS`] is there; else the error says what is not and what to run by hand.
pub fn ensure_present(root: &Path, may_install: bool) -> Result<()> {
    let missing = missing(NEEDS, |need| is_present(root, &need.seen_by));
    if missing.is_empty() {
        return Ok(());
    }
    for need in &missing {
        println!("onward: missing: {} ({})", need.name, need.why);
    }
    let packages = packages(&missing);
    let components = components(&missing);
    ensure!(may_install && components.is_empty(), by_hand(&packages, &components));

    println!("onward: installing the Debian packages {}", packages.join(" "));
    apt_install(&packages).map_err(|error| anyhow!("{error:#}; {}", by_hand(&packages, &components)))?;
    for need in missing {
        ensure!(
            is_present(root, &need.seen_by),
            "{} is still missing after the installation of its package; is it on PATH?",
            need.name
        );
    }
    Ok(())
}

/// Also tells the test step whether cargo-nextest, which is welcome but not needed, is there.
pub fn has_cargo_command(root: &Path, name: &str) -> bool {
    workspace::cargo(root)
        .args([name, "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn missing(needs: &'static [Need], is_present: impl Fn(&Need) -> bool) -> Vec<&'static Need> {
    needs.iter().filter(|need| !is_present(need)).collect()
}

fn packages(missing: &[&Need]) -> Vec<&'static str> {
    let of_one = |need: &&Need| match need.comes_from {
        Source::Debian(packages) => packages,
        Source::Toolchain(_) => &[],
    };
    missing.iter().flat_map(of_one).copied().collect()
}

fn components(missing: &[&Need]) -> Vec<&'static str> {
    let of_one = |need: &&Need| match need.comes_from {
        Source::Toolchain(component) => Some(component),
        Source::Debian(_) => None,
    };
    missing.iter().filter_map(of_one).collect()
}

fn by_hand(packages: &[&str], components: &[&str]) -> String {
    let mut commands = Vec::new();
    if !packages.is_empty() {
        commands.push(format!("apt-get install {}", packages.join(" ")));
    }
    if !components.is_empty() {
        commands.push(format!("rustup component add {}", components.join(" ")));
    }
    format!("nothing was tested, because something is missing; run by hand: {}", commands.join(" && "))
}

fn is_present(root: &Path, detect: &Detect) -> bool {
    match detect {
        Detect::OnPath(program) => find_program(program).is_some(),
        Detect::Runs(program, args) => {
            let run = Command::new(program).args(*args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            run.is_ok_and(|status| status.success())
        }
        Detect::Cargo(name) => has_cargo_command(root, name),
    }
}

fn find_program(program: &str) -> Option<PathBuf> {
    find_in(env::var_os("PATH").as_deref()?, program)
}

fn find_in(path: &OsStr, program: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn apt_install(packages: &[&str]) -> Result<()> {
    ensure!(find_program("apt-get").is_some(), "there is no apt-get here, so nothing can be installed for you");
    let prefix: &[&str] = if is_root()? {
        &[]
    } else if find_program("sudo").is_some() {
        &["sudo"]
    } else {
        bail!("installing needs root, and there is no sudo here");
    };
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    if has_package_lists(Path::new("/var/lib/apt/lists")) && apt_get(prefix, &install).is_ok() {
        return Ok(());
    }
    // No package lists, or stale ones that name versions the mirror has dropped.
    apt_get(prefix, &["update"])?;
    apt_get(prefix, &install)
}

fn apt_get(prefix: &[&str], args: &[&str]) -> Result<()> {
    let line = [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"], args].concat();
    println!("onward: {}", line.join(" "));
    let status = Command::new(line[0])
        .args(&line[1..])
        .stdin(Stdio::inherit())
        .status()
        .with_context(|| format!("cannot start {}", line[0]))?;
    ensure!(status.success(), "`{}` failed ({status})", line.join(" "));
    Ok(())
}

fn is_root() -> Result<bool> {
    let id = Command::new("id").arg("-u").output().context("cannot start `id -u` to see whether we are root")?;
    Ok(id.stdout.trim_ascii() == b"0")
}

/// Fresh container images come without package lists.
fn has_package_lists(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.path().is_file() && entry.file_name().as_os_str() != OsStr::new("lock"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_missing_where_everything_is_there() {
        assert!(missing(NEEDS, |_| true).is_empty());
    }

    #[test]
    fn what_is_missing_is_named_with_the_command_to_run() {
        let lacking = missing(NEEDS, |need| !matches!(need.name, "cc" | "cargo clippy"));
        let text = by_hand(&packages(&lacking), &components(&lacking));
        assert!(text.ends_with("apt-get install gcc libc6-dev && rustup component add clippy"), "{text}");

        let lacking = missing(NEEDS, |need| need.name != "git");
        let text = by_hand(&packages(&lacking), &components(&lacking));
        assert!(text.ends_with("run by hand: apt-get install git"), "{text}");
    }

    #[test]
    fn a_program_is_found_only_on_the_given_path() {
        let here = env::current_exe().unwrap();
        let name = here.file_name().unwrap().to_str().unwrap();
        let dir = here.parent().unwrap();
        assert_eq!(find_in(dir.as_os_str(), name), Some(here.clone()));
        assert_eq!(find_in(dir.as_os_str(), "no-such-program"), None);
        assert_eq!(find_in(OsStr::new(""), name), None);
    }
}
