//! Thousands of requests made up from the node's own description, against a real node: none may bring it down, and no
//! answer may be one that the description does not know. The requests are schemathesis's, from PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::node::XtaskNode;
use crate::workspace;

const TOOL: &str = "schemathesis==4.32.5";
const EXAMPLES: &str = "300";
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

pub fn run(root: &Path) -> Result<()> {
    let target = root.join("target").join("api-check");
    let tool = installed(&target)?;
    let built = workspace::cargo(root).args(["build", "--release", "--locked", "--package", "onward-cli"]).status()?;
    ensure!(built.success(), "soak RED: the build of the node failed ({built})");
    let data = target.join("data");
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    let node = XtaskNode::start(&root.join("target/release/onward"), &data)?;
    println!("onward: soak: requests by {TOOL} against {}", node.url);
    let run = Command::new(tool)
        .args(["run", &format!("{}/openapi.json", node.url)])
        .args(["--max-examples", EXAMPLES, "--request-timeout", "10", "--checks", CHECKS])
        .args(["--phases", "fuzzing,stateful", "--suppress-health-check", "all"])
        // A stream never ends, and a backup writes where it is told to.
        .args(["--exclude-path-regex", "events|backup"])
        .current_dir(&target)
        .status()?;
    ensure!(run.success(), "soak RED: the node did not answer as it describes itself ({run}); see above");
    node.still_serves()
}

/// Installs the tool in an environment of its own under `target`.
fn installed(target: &Path) -> Result<PathBuf> {
    let tool = target.join("venv/bin/schemathesis");
    if !tool.exists() {
        println!("onward: soak: installing {TOOL} into {}", target.join("venv").display());
        fs::create_dir_all(target)?;
        let made = Command::new("python3").args(["-m", "venv"]).arg(target.join("venv")).status();
        let made = made.context("python3 is needed: apt-get install python3 python3-venv")?;
        ensure!(made.success(), "python3 -m venv failed: apt-get install python3-venv");
        let got = Command::new(target.join("venv/bin/pip")).args(["install", "--quiet", TOOL]).status()?;
        ensure!(got.success(), "pip could not install {TOOL} ({got})");
    }
    Ok(tool)
}
