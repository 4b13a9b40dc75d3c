//! The README's first ten minutes, done literally: every command is run, and what it prints is compared with what the
//! README says that it prints.
//!
//! Both sides are brought to the same form first: ids, times, addresses and fences differ from run to run. And where a
//! reader sleeps until something has happened, this waits until it has; a computer may be slower than any reader. Where
//! `ONWARD_SOAK_CASES` is set it is not, and the commands are run word for word.

mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A block of commands, and what the README says that they print.
struct Block {
    commands: String,
    printed: Option<String>,
}

#[test]
fn the_first_ten_minutes_are_as_the_readme_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("there is a README");
    let blocks = blocks(section(&readme, "## The first ten minutes"));
    assert!(blocks.len() >= 8, "only {} blocks were found", blocks.len());
    let folder = tempfile::tempdir().expect("a folder");
    let printed = run(&blocks, root, folder.path());
    let mut wrong = String::new();
    for (n, block) in blocks.iter().enumerate() {
        let Some(said) = &block.printed else { continue };
        let (said, seen) = (normal(said), normal(&printed[n]));
        if said != seen {
            let _ = writeln!(wrong, "--- the README says of\n{}{said}\n--- and it is\n{seen}\n", block.commands);
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nThe real output is:\n{}", printed.join("\n@@\n"));
}

fn section<'a>(text: &'a str, title: &str) -> &'a str {
    let start = text.find(title).expect("the section is there") + title.len();
    let rest = &text[start..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line != "```sh" && line != "```text" {
            continue;
        }
        let body: String = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        if line == "```sh" {
            blocks.push(Block { commands: body, printed: None });
        } else {
            blocks.last_mut().expect("commands come before what they print").printed = Some(body);
        }
    }
    blocks
}

/// Runs all of it in one shell, as a reader would, and gives what each block printed.
fn run(blocks: &[Block], root: &Path, folder: &Path) -> Vec<String> {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_onward"));
    let bin = binary.parent().expect("it lies in a folder");
    let mut script = String::new();
    for block in blocks {
        // The reader has built for release; this is the same binary, from elsewhere.
        let commands = block.commands.replace("$PWD/target/release", &bin.display().to_string());
        let commands =
            commands.replace("examples/curl-worker.sh", &root.join("examples/curl-worker.sh").display().to_string());
        let _ = writeln!(script, "{commands}printf '@@\\n'");
    }
    let script = script.replace("127.0.0.1", &own_loopback());
    let script = if std::env::var_os("ONWARD_SOAK_CASES").is_some() { script } else { patient(&script) };
    // Whatever goes wrong, nothing is left running.
    let guard = "trap 'kill -9 $NODE $FIRST $SECOND 2>/dev/null' EXIT\n";
    let mut command = support::in_own_environment(Command::new("sh"));
    // From a file: the commands look for their own text among the arguments of all processes.
    let file = folder.join("script.sh");
    std::fs::write(&file, format!("exec 2>&1\n{guard}{script}")).expect("it can be written");
    let output = command
        .arg(&file)
        .current_dir(folder)
        .env("ONWARD_LISTEN", format!("{}:7400", own_loopback()))
        .env("ONWARD_SERVER", format!("http://{}:7400", own_loopback()))
        .env("ONWARD_DATA", folder.join("data"))
        .stdin(Stdio::null())
        .output()
        .expect("sh starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut printed: Vec<String> = text.split("@@\n").map(str::to_owned).collect();
    printed.resize(blocks.len(), String::new());
    printed
}

/// Events instead of sleeps, spans so long that nothing is late by as much, and commands that are nobody else's.
fn patient(script: &str) -> String {
    let pid = std::process::id();
    let (four, eight) = (format!("for n in 1 2 3 {pid};"), format!("for n in 1 2 3 4 5 6 7 {pid};"));
    // The pattern does not find itself.
    let running = |command: &str| format!("grep -ls '[f]{}' /proc/[0-9]*/cmdline", &command[1..]);
    // What does not happen in five minutes will not.
    let until =
        |holds: &str| format!("N=0; until {holds}; do N=$((N + 1)); [ $N -lt 3000 ] || exit 1; sleep 0.1; done\n");
    // The node says `running` before the worker has heard of it; the process is there when it has.
    let has_begun = |command: &str| until(&format!("{} > begun.log", running(command)));
    // A process that is just being replaced by another program has no command line for a moment, and is not gone by that.
    let is_gone = format!(
        "GONE=0; for n in $(seq 600); do if {} > gone.log; then GONE=0; else GONE=$((GONE + 1)); fi; \
         [ $GONE -lt 5 ] || break; sleep 0.1; done\n",
        running(&four)
    );
    // The second has begun, the command of the first has ended, and the second goes on until the first was refused.
    let is_zombie =
        until("onward show $ID | grep -q second") + &until(&format!("[ $({} | wc -l) = 1 ]", running(&eight)));
    let is_refused = until("onward explain $ID | grep -q 'a `succeed` under .* was refused'") + "touch refused\n";
    let eight_and_on = "sleep 1; done; [ $ONWARD_ATTEMPT = 1 ] || until [ -e refused ]; do echo; sleep 0.2; done'";
    let mut text = script.to_owned();
    for (from, to) in [
        (
            "--stuck-after 3s -- sh -c 'for n in 1 2 3 4 5; do sleep 1;",
            "--stuck-after 12s -- sh -c 'for n in 1 2 3 4 5; do sleep 3;".to_owned(),
        ),
        ("for n in 1 2 3 4; do echo $n; sleep 1;", format!("{four} do echo $n; sleep 3;")),
        ("[f]or n in 1 2 3 4;", format!("[f]{}", &four[1..])),
        ("for n in 1 2 3 4 5 6 7 8; do echo $n; sleep 1; done'", format!("{eight} do echo $n; {eight_and_on}")),
        ("sleep 2\nkill -9 $NODE\nsleep 1\n", format!("{}kill -9 $NODE\n{is_gone}", has_begun(&four))),
        ("INITIAL=6s ONWARD_LEASE_EXTENSION=6s", "INITIAL=12s ONWARD_LEASE_EXTENSION=12s".to_owned()),
        ("sleep 3\nkill -STOP", format!("{}kill -STOP", has_begun(&eight))),
        ("sleep 10\nkill -CONT $FIRST\n", format!("{is_zombie}kill -CONT $FIRST\n{is_refused}")),
    ] {
        assert!(text.contains(from), "the README has changed, and has no more: {from}");
        text = text.replace(from, &to);
    }
    text
}

/// A loopback address of this process alone, so that the port is free.
fn own_loopback() -> String {
    support::own_loopback().trim_end_matches(":0").to_owned()
}

/// The text without what differs from run to run: ids, instants, spans, numbers of more than three digits, names with a
/// pid.
fn normal(text: &str) -> String {
    let text = text.replace(&own_loopback(), "127.0.0.1");
    let lines = text.lines().map(|line| {
        let mut words: Vec<String> = line.split_whitespace().map(word).collect();
        // `1m 2s` is one span.
        words.dedup_by(|next, before| next == "SPAN" && before == "SPAN");
        words.join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Runs of digits that are long, or belong to a span, an instant or an id, become `#`.
fn word(word: &str) -> String {
    let is_span = |text: &str| {
        let text = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let digits = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').count();
        digits > 0 && matches!(&text[digits..], "s" | "ms" | "m" | "h" | "d")
    };
    if is_span(word) {
        return "SPAN".to_owned();
    }
    let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if bare.len() >= 20 && bare.ends_with('Z') && bare.contains('T') && bare.starts_with("20") {
        return "INSTANT".to_owned();
    }
    // A name with the number of a process, which may be as short as it likes.
    if let Some((name, number)) = bare.rsplit_once('-')
        && name.chars().all(|c| c.is_ascii_alphabetic())
        && number.chars().all(|c| c.is_ascii_digit())
    {
        return format!("{name}-#");
    }
    let mut out = String::new();
    let mut digits = String::new();
    for c in word.chars().chain(['\n']) {
        if c.is_ascii_hexdigit() {
            digits.push(c);
            continue;
        }
        let numbers = digits.chars().filter(char::is_ascii_digit).count();
        out.push_str(if numbers > 3 { "#" } else { &digits });
        digits.clear();
        out.push(c);
    }
    let out = out.trim_end_matches('\n').to_owned();
    // An id, and what is left of one whose parts have few digits.
    let parts = bare.split('-').map(str::len).collect::<Vec<_>>();
    if parts == [8, 4, 4, 4, 12] { "ID".to_owned() } else { out }
}
