//! Clients that others generate: the node's description is valid, a Python and a TypeScript client can be generated from
//! it, they compile, and each submits a job to a real node and reads it back. And a collector of traces gets the spans of
//! jobs from a node.
//!
//! The generators come from PyPI and npm, in the versions that the files in `xtask/clients` name, and are kept under
//! `target/clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::node::XtaskNode;
use crate::workspace;

const FILES: &str = "xtask/clients";

/// Builds the node first.
pub fn run(root: &Path) -> Result<()> {
    let mut build = workspace::cargo(root);
    let built = build.args(["build", "--package", "onward-cli", "--locked"]).status()?;
    ensure!(built.success(), "the build of the node failed ({built})");
    check(root)
}

/// Checks clients against the program that the tests were run with.
pub fn check(root: &Path) -> Result<()> {
    let here = root.join("target/clients");
    fs::create_dir_all(&here)?;
    let python = python(root)?;
    let tools = node_modules(root, &here)?;
    let node = XtaskNode::start(&root.join("target/debug/onward"), &fresh(&here.join("data"))?)?;
    let description = here.join("openapi.json");
    run_quietly(
        Command::new(&python)
            .args(["-c", "import sys, urllib.request; urllib.request.urlretrieve(sys.argv[1], sys.argv[2])"])
            .arg(format!("{}/openapi.json", node.url))
            .arg(&description),
    )?;
    run_quietly(Command::new(beside(&python, "openapi-spec-validator")).arg(&description))?;
    println!("onward: clients: the description is valid");
    try_python(root, &here, &python, &description, &node.url)?;
    try_typescript(root, &here, &tools, &description, &node.url)?;
    node.still_serves()?;
    // A collector of traces is a client of a kind, too.
    let data = fresh(&here.join("traces"))?;
    run_loudly(
        Command::new(&python).arg(root.join(FILES).join("traces.py")).arg(root.join("target/debug/onward")).arg(data),
    )
}

fn try_python(root: &Path, here: &Path, python: &Path, description: &Path, url: &str) -> Result<()> {
    let generated = fresh(&here.join("python"))?;
    let config = here.join("python.yml");
    fs::write(&config, "package_name_override: onward_client\nproject_name_override: onward-client\npost_hooks: []\n")?;
    run_quietly(
        Command::new(beside(python, "openapi-python-client"))
            .args(["generate", "--overwrite", "--fail-on-warning", "--path"])
            .arg(description)
            .arg("--output-path")
            .arg(&generated)
            .arg("--config")
            .arg(&config),
    )?;
    run_quietly(Command::new(python).args(["-m", "compileall", "-q"]).arg(&generated))?;
    run_loudly(Command::new(python).env("PYTHONPATH", &generated).arg(root.join(FILES).join("client.py")).arg(url))
}

fn try_typescript(root: &Path, here: &Path, tools: &Path, description: &Path, url: &str) -> Result<()> {
    let generated = here.join("typescript");
    for file in ["client.ts", "tsconfig.json"] {
        fs::copy(root.join(FILES).join(file), generated.join(file))?;
    }
    let schema = generated.join("schema.d.ts");
    run_quietly(Command::new(tools.join("openapi-typescript")).arg(description).arg("--output").arg(&schema))?;
    run_quietly(Command::new(tools.join("tsc")).arg("--project").arg(&generated))?;
    run_loudly(Command::new("node").arg(generated.join("client.js")).arg(url))
}

/// A Python with what `requirements.txt` asks for.
pub fn python(root: &Path) -> Result<PathBuf> {
    let (asked, here) = (root.join(FILES).join("requirements.txt"), root.join("target/clients"));
    fs::create_dir_all(&here)?;
    let (venv, done) = (here.join("venv"), here.join("venv-has.txt"));
    let python = venv.join("bin/python");
    if !is_same(&asked, &done) {
        println!("onward: clients: installing from PyPI into {}", venv.display());
        run_quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        run_quietly(Command::new(beside(&python, "pip")).args(["install", "--quiet", "--requirement"]).arg(&asked))?;
        fs::copy(&asked, &done)?;
    }
    Ok(python)
}

/// The programs of what `package.json` asks for.
fn node_modules(root: &Path, here: &Path) -> Result<PathBuf> {
    let (asked, folder) = (root.join(FILES).join("package.json"), here.join("typescript"));
    let done = here.join("node-modules-have.json");
    if !is_same(&asked, &done) {
        println!("onward: clients: installing from npm into {}", folder.display());
        fs::create_dir_all(&folder)?;
        fs::copy(&asked, folder.join("package.json"))?;
        run_quietly(Command::new("npm").args(["install", "--silent", "--no-audit", "--no-fund"]).current_dir(&folder))?;
        fs::copy(&asked, &done)?;
    }
    Ok(folder.join("node_modules/.bin"))
}

fn is_same(asked: &Path, done: &Path) -> bool {
    matches!((fs::read(asked), fs::read(done)), (Ok(asked), Ok(done)) if asked == done)
}

fn beside(python: &Path, program: &str) -> PathBuf {
    python.with_file_name(program)
}

/// An empty place for what will be made anew.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(folder.to_owned())
}

/// Runs a command whose output matters only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(output.status.success(), "{command:?} failed ({})\n{}", output.status, String::from_utf8_lossy(&said));
    Ok(())
}

pub fn run_loudly(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    ensure!(status.success(), "{command:?} failed ({status})");
    Ok(())
}
