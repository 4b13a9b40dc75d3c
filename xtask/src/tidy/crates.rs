//! Which crates ours may depend on.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Finding;
use crate::workspace;

const CORE: &str = "onward-core";

/// Crates that core may use: it does no I/O, reads no clock, and gives the same answer to the same input.
const CORE_MAY_USE: &[&str] =
    &["foldhash", "hashbrown", "prefetch-index", "rand", "rand_chacha", "sha2", "thiserror", "uuid"];

/// Our crates from the innermost out. One may use its own layer and those before it.
/// A crate that is not here (the simulator, the benchmark, the test kit, this one) may use any, and none of these may use it.
const LAYERS: &[&[&str]] = &[
    &[CORE],
    &[
        "onward-api",
        "onward-database",
        "onward-exec",
        "onward-gossip",
        "onward-health",
        "onward-lease",
        "onward-log",
        "onward-proto",
    ],
    &["onward-agent", "onward-nats", "onward-outbox", "onward-postgres", "onward-redis", "onward-sqs"],
    &["onward"],
    &["onward-node"],
    &["onward-cli"],
];

const CORE_REMEDY: &str = "core may use only what does no I/O, reads no clock and is the same on every run; \
                           if this does, add it to CORE_MAY_USE in xtask/src/tidy/crates.rs, with the reason in the commit";
const DIRECTION_REMEDY: &str = "our crates depend one way (see LAYERS in xtask/src/tidy/crates.rs): \
                                move the code inwards, or hand it in as an argument";

#[derive(Debug)]
pub struct Crate {
    name: String,
    /// Relative to the root.
    manifest: String,
    manifest_text: String,
    uses: Vec<Use>,
}

#[derive(Debug)]
struct Use {
    name: String,
    /// Only tests, examples and benchmarks see it.
    is_dev: bool,
}

/// The workspace as cargo itself understands it, optional and platform-only dependencies included.
pub fn read(root: &Path) -> Result<Vec<Crate>> {
    let output = workspace::cargo(root)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .output()
        .context("cannot start cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata gave no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no `packages`")?;
    packages.iter().map(|package| read_crate(root, package)).collect()
}

fn read_crate(root: &Path, package: &Value) -> Result<Crate> {
    let text = |value: &Value, field: &str| -> Result<String> {
        Ok(value[field].as_str().with_context(|| format!("cargo metadata has no text `{field}`"))?.to_owned())
    };
    let manifest = text(package, "manifest_path")?;
    let manifest_text = std::fs::read_to_string(&manifest).with_context(|| format!("cannot read {manifest}"))?;
    let dependencies = package["dependencies"].as_array().context("cargo metadata has no `dependencies`")?;
    let uses = dependencies
        .iter()
        .map(|one| Ok(Use { name: text(one, "name")?, is_dev: one["kind"].as_str() == Some("dev") }))
        .collect::<Result<_>>()?;
    let relative = Path::new(&manifest).strip_prefix(root).map(|path| path.display().to_string());
    Ok(Crate { name: text(package, "name")?, manifest: relative.unwrap_or(manifest), manifest_text, uses })
}

pub fn check(crates: &[Crate]) -> Vec<Finding> {
    let ours: Vec<&str> = crates.iter().map(|one| one.name.as_str()).collect();
    let mut findings = Vec::new();
    for one in crates {
        for used in &one.uses {
            let broken = if ours.contains(&used.name.as_str()) {
                (!may_point_to(&one.name, used)).then_some(DIRECTION_REMEDY)
            } else {
                let is_foreign_to_core = !used.is_dev && !CORE_MAY_USE.contains(&used.name.as_str());
                (one.name == CORE && is_foreign_to_core).then_some(CORE_REMEDY)
            };
            findings.extend(broken.map(|remedy| Finding {
                path: one.manifest.clone(),
                line: line_of(&one.manifest_text, &used.name),
                what: format!("{} depends on {}", one.name, used.name),
                remedy,
            }));
        }
    }
    findings
}

/// Tests of the outer crates may reach further; core's may not, or they would compile core twice.
fn may_point_to(user: &str, used: &Use) -> bool {
    let Some(from) = layer(user) else { return true };
    if from == 0 {
        return false;
    }
    used.is_dev || layer(&used.name).is_some_and(|to| to <= from)
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// The line of the manifest that names the dependency; its first line if it does so in a way that we do not know.
fn line_of(manifest: &str, dependency: &str) -> usize {
    let names_it = |line: &str| {
        let key = line.trim_start().trim_start_matches("[dependencies.");
        key.strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=', ']']))
    };
    manifest.lines().position(names_it).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, normal: &[&str], dev: &[&str]) -> Crate {
        let used = |names: &[&str], is_dev| -> Vec<Use> {
            names.iter().map(|name| Use { name: (*name).to_owned(), is_dev }).collect()
        };
        let lines: String = normal.iter().chain(dev).map(|name| format!("{name}.workspace = true\n")).collect();
        Crate {
            name: name.to_owned(),
            manifest: format!("{name}/Cargo.toml"),
            manifest_text: format!("[dependencies]\n{lines}"),
            uses: used(normal, false).into_iter().chain(used(dev, true)).collect(),
        }
    }

    fn told(crates: &[Crate]) -> Vec<String> {
        check(crates).iter().map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what)).collect()
    }

    #[test]
    fn core_uses_only_what_is_on_its_list() {
        assert!(told(&[one(CORE, CORE_MAY_USE, &["proptest"])]).is_empty());
        let found = told(&[one(CORE, &["sha2", "tokio"], &[])]);
        assert_eq!(found, ["onward-core/Cargo.toml:3 onward-core depends on tokio"]);
        assert!(told(&[one("onward-node", &["tokio"], &[])]).is_empty());
    }

    #[test]
    fn core_uses_none_of_ours_not_even_in_tests() {
        let core = one(CORE, &["onward-log"], &["onward-sim"]);
        let found = told(&[core, one("onward-log", &[], &[]), one("onward-sim", &[], &[])]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn layers_point_inwards() {
        let all = |log_uses: &[&str], log_tests_use: &[&str]| {
            [
                one(CORE, &[], &[]),
                one("onward-log", log_uses, log_tests_use),
                one("onward-proto", &[CORE], &[]),
                one("onward-node", &["onward-log", CORE], &[]),
                one("onward-sim", &["onward-node"], &[]),
            ]
        };
        assert!(told(&all(&[CORE, "onward-proto"], &["onward-sim"])).is_empty());
        assert_eq!(told(&all(&["onward-node"], &[])).len(), 1);
        assert_eq!(told(&all(&["onward-sim"], &[])).len(), 1);
    }
}
