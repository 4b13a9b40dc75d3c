//! Runs the test binaries that cargo built, several at a time: what nextest does, where it is not installed.
//!
//! Tests of a program mostly wait for it, other tests mostly compute. So one lane takes from one end of the list and the
//! others from the other end, which keeps the cores busy without two of the computing kind slowing a waiting one down.
//! What a binary prints goes to a file beside it, and is shown whole when it has ended.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::steps::short;
use crate::stream::{self, TestCounts};
use crate::workspace;

/// Builds with `cargo test <args>`, then runs what was built. An error if one test or binary is red.
pub fn run(root: &Path, args: &[&str]) -> Result<TestCounts> {
    let mut build = workspace::cargo(root);
    build.args(args).args(["--no-run", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let built = build.output().with_context(|| format!("cannot start {build:?}"))?;
    ensure!(built.status.success(), "the build: {}", built.status);
    let binaries = in_order(&String::from_utf8_lossy(&built.stdout));

    let lanes = 1 + thread::available_parallelism().map_or(1, usize::from);
    println!("onward: tests: {} binaries, {lanes} at a time", binaries.len());
    let state = Mutex::new(State { all: binaries.len(), waiting: binaries.into(), ..State::default() });
    thread::scope(|scope| {
        for lane in 0..lanes {
            let state = &state;
            scope.spawn(move || work(root, state, lane == 0));
        }
    });
    let State { waiting, counts, failures, .. } = state.into_inner().expect("no lane panicked");
    if failures.is_empty() {
        return Ok(counts);
    }
    println!("{} passed, {} failed", counts.passed, counts.failed);
    for failure in &failures {
        println!("{failure}");
    }
    bail!("{} of the binaries failed, {} were not started after that", failures.len(), waiting.len());
}

/// Runs a lane of binaries until there is none left or one is red.
fn work(root: &Path, state: &Mutex<State>, from_the_end: bool) {
    // Not `while let`, whose condition would hold the lock until the binary has ended.
    loop {
        let next = lock(state).next(from_the_end);
        let Some(binary) = next else { return };
        let label = binary.source.strip_prefix(root).unwrap_or(&binary.source).display().to_string();
        println!("     Running {label}");
        let began = Instant::now();
        let ended = execute(&binary, &binary.executable.with_extension("out"));
        let took = short(began.elapsed());

        let mut state = lock(state);
        state.ended += 1;
        let so_far = format!("{}/{}", state.ended, state.all);
        match ended {
            Ok((status, output)) => {
                let counts = stream::counts(&output);
                state.counts.add(counts);
                let TestCounts { passed, failed } = counts;
                println!("{output}onward: {so_far}: {label}: {passed} passed, {failed} failed ({took})\n");
                if !status.success() || failed > 0 {
                    state.failures.push(failure(&label, &status.to_string(), &output));
                }
            }
            Err(error) => state.failures.push(failure(&label, &format!("{error:#}"), "")),
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("no lane panicked")
}

#[derive(Debug, Default)]
struct State {
    all: usize,
    waiting: VecDeque<Binary>,
    ended: usize,
    counts: TestCounts,
    /// Failures to repeat at the end.
    failures: Vec<String>,
}

impl State {
    fn next(&mut self, from_the_end: bool) -> Option<Binary> {
        if !self.failures.is_empty() {
            return None;
        }
        if from_the_end { self.waiting.pop_back() } else { self.waiting.pop_front() }
    }
}

fn execute(binary: &Binary, path: &Path) -> Result<(ExitStatus, String)> {
    let unwritable = || format!("cannot write {}", path.display());
    let out = File::create(path).with_context(unwritable)?;
    let err = out.try_clone().with_context(unwritable)?;
    let mut command = Command::new(&binary.executable);
    // As under `cargo test`. We have the variables of our own package, since cargo runs us too.
    env::vars_os()
        .filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_"))
        .for_each(|(name, _)| _ = command.env_remove(name));
    let status = command
        .current_dir(&binary.package)
        .env("CARGO_MANIFEST_DIR", &binary.package)
        .env("CARGO_MANIFEST_PATH", binary.package.join("Cargo.toml"))
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .with_context(|| format!("cannot start {}", binary.executable.display()))?;
    let output = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok((status, String::from_utf8_lossy(&output).into_owned()))
}

/// The tests that failed, or the end of the binary if none says so.
fn failure(label: &str, ended: &str, output: &str) -> String {
    let failed: Vec<&str> =
        output.lines().filter_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED")).collect();
    format!("FAILED: {label}: {}", if failed.is_empty() { ended.to_owned() } else { failed.join(", ") })
}

#[derive(Debug, PartialEq, Eq)]
struct Binary {
    executable: PathBuf,
    /// The folder of its package, which it runs in.
    package: PathBuf,
    source: PathBuf,
    is_integration: bool,
}

/// The test binaries among cargo's messages: tests of programs at one end, other integration tests at the other, and in
/// the middle unit tests, which are quick, so that the lanes end together.
fn in_order(messages: &str) -> Vec<Binary> {
    let (mut binaries, mut programs) = (Vec::new(), Vec::new());
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(binary) = artifact(&message) else { continue };
        if message["profile"]["test"] == true {
            binaries.push(binary);
        } else {
            programs.push(binary.package);
        }
    }
    binaries.sort_by_cached_key(|binary| {
        let waits = binary.is_integration && programs.contains(&binary.package);
        (!waits, binary.is_integration, binary.source.clone())
    });
    binaries
}

fn artifact(message: &Value) -> Option<Binary> {
    let path = |value: &Value| value.as_str().map(PathBuf::from);
    Some(Binary {
        executable: path(&message["executable"])?,
        package: path(&message["manifest_path"])?.parent()?.to_owned(),
        source: path(&message["target"]["src_path"])?,
        is_integration: message["target"]["kind"][0] == "test",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, source: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/w/{package}/Cargo.toml"),
            "target": { "kind": [kind], "src_path": format!("/w/{package}/{source}") },
            "profile": { "test": test },
            "executable": format!("/t/{package}-{kind}"),
        })
        .to_string()
    }

    #[test]
    fn unit_tests_are_between_those_of_programs_and_the_others() {
        let messages = [
            message("core", "lib", "src/lib.rs", true),
            message("core", "test", "tests/chaos.rs", true),
            message("cli", "test", "tests/run.rs", true),
            message("cli", "test", "tests/kill/main.rs", true),
            message("cli", "bin", "src/main.rs", true),
            message("cli", "bin", "src/main.rs", false),
            r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"kind":["lib"],"src_path":"/w/a/src/lib.rs"},"profile":{"test":false},"executable":null}"#.to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "what a build script says".to_owned(),
        ];
        let binaries = in_order(&messages.join("\n"));
        let sources: Vec<&str> = binaries.iter().map(|binary| binary.source.to_str().unwrap()).collect();
        let expected =
            ["cli/tests/kill/main.rs", "cli/tests/run.rs", "cli/src/main.rs", "core/src/lib.rs", "core/tests/chaos.rs"];
        assert_eq!(sources, expected.map(|source| format!("/w/{source}")));
        assert_eq!(binaries[0].package, Path::new("/w/cli"));
        assert_eq!(binaries[0].executable, Path::new("/t/cli-test"));
    }

    #[test]
    fn lanes_take_from_both_ends_until_one_is_red() {
        let messages = ["a", "b", "c"].map(|name| message("core", "test", name, true)).join("\n");
        let mut state = State { waiting: in_order(&messages).into(), ..State::default() };
        assert!(state.next(true).unwrap().source.ends_with("c"));
        assert!(state.next(false).unwrap().source.ends_with("a"));
        state.failures.push("red".to_owned());
        assert_eq!(state.next(false), None);
        assert_eq!(state.waiting.len(), 1);
    }

    #[test]
    fn a_failure_names_its_tests_or_how_the_binary_ended() {
        let output = "test fences::hold ... FAILED\ntest a ... ok\ntest b - should panic ... FAILED\n";
        assert_eq!(
            failure("core/src/lib.rs", "exit status: 101", output),
            "FAILED: core/src/lib.rs: fences::hold, b - should panic"
        );
        assert_eq!(failure("core/src/lib.rs", "signal: 6", "running 3 tests\n"), "FAILED: core/src/lib.rs: signal: 6");
    }

    #[test]
    fn a_lane_goes_on_to_the_next_until_one_is_red() {
        let folder = env::temp_dir().join(format!("onward-xtask-lane-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = |name: &str| {
            let executable = folder.join(name);
            std::os::unix::fs::symlink(format!("/bin/{name}"), &executable).unwrap();
            Binary { executable, package: folder.clone(), source: name.into(), is_integration: true }
        };
        let waiting = VecDeque::from([program("true"), program("pwd"), program("false"), program("env")]);
        let state = Mutex::new(State { all: waiting.len(), waiting, ..State::default() });
        work(&folder, &state, false);
        let state = state.into_inner().unwrap();
        assert_eq!((state.ended, state.waiting.len()), (3, 1));
        assert_eq!(state.failures, ["FAILED: false: exit status: 1"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_binary_runs_where_and_as_cargo_would_run_it() {
        let folder = env::temp_dir().join(format!("onward-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let package = folder.canonicalize().unwrap();
        let run = |program: &str| {
            let binary = Binary {
                executable: program.into(),
                package: package.clone(),
                source: PathBuf::new(),
                is_integration: true,
            };
            execute(&binary, &folder.join(program)).unwrap()
        };
        let (status, output) = run("pwd");
        assert!(status.success());
        assert_eq!(output.trim_end(), package.to_str().unwrap());
        let (_, variables) = run("env");
        assert!(
            variables.lines().any(|line| line == format!("CARGO_MANIFEST_DIR={}", package.display())),
            "{variables}"
        );
        assert!(!variables.contains("CARGO_PKG_"), "{variables}");
        assert!(!run("false").0.success());
        fs::remove_dir_all(&folder).unwrap();
    }
}
