//! What `onward run` does when nobody takes what its command prints.

mod support;

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use support::process::{Mark, ended};
use support::{PATIENCE, onward};

fn command(mark: &Mark, args: &[&str]) -> Command {
    let mut command = onward(&["run"]);
    mark.put(&mut command).args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Ends it, if the test does not get that far.
struct Run(Child);

impl Run {
    fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the binary is there"))
    }

    async fn code(&mut self) -> Option<i32> {
        ended(&mut self.0, PATIENCE).await
    }

    fn err(&mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        support::end(&mut self.0);
    }
}

#[tokio::test]
async fn a_command_ends_with_the_reader_of_its_output() {
    let mark = Mark::new();
    for script in ["yes", "yes >&2"] {
        let mut run = Run::start(command(&mark, &["--", "sh", "-c", script]));
        let mut first = [0; 2];
        match script.contains(">&2") {
            true => run.0.stderr.take().expect("piped").read_exact(&mut first).expect("a line"),
            false => run.0.stdout.take().expect("piped").read_exact(&mut first).expect("a line"),
        }
        assert_eq!(&first, b"y\n");
        assert_eq!(run.code().await, Some(128 + 13), "{script}: as the command itself would have");
        mark.gone(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_command_that_does_not_write_any_more_goes_on_without_a_reader() {
    let (mark, folder) = (Mark::new(), tempfile::tempdir().unwrap());
    let script =
        format!("cd '{}'; echo a; until [ -e go ]; do sleep 0.05; done; echo done > file", folder.path().display());
    let mut run = Run::start(command(&mark, &["--", "sh", "-c", &script]));
    run.0.stdout.take().expect("piped").read_exact(&mut [0; 2]).expect("a line");
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(run.code().await, Some(0), "{}", run.err());
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "done\n");
}

#[tokio::test]
async fn a_command_is_not_tried_again_without_a_reader() {
    let (mark, folder) = (Mark::new(), tempfile::tempdir().unwrap());
    let script = format!("echo x >> '{}'; yes", folder.path().join("file").display());
    let mut run = Run::start(command(&mark, &["--retries", "3", "--", "sh", "-c", &script]));
    run.0.stdout.take().expect("piped").read_exact(&mut [0; 2]).expect("a line");
    assert_eq!(run.code().await, Some(128 + 13), "{}", run.err());
    assert_eq!(std::fs::read_to_string(folder.path().join("file")).unwrap(), "x\n");
}

#[tokio::test]
async fn output_that_cannot_be_written_is_an_error() {
    let mark = Mark::new();
    for script in ["echo hi", "echo hi; sleep 1000"] {
        let mut full = command(&mark, &["--", "sh", "-c", script]);
        full.stdout(File::options().write(true).open("/dev/full").unwrap());
        let mut run = Run::start(full);
        assert_eq!(run.code().await, Some(125), "{script}");
        let err = run.err();
        assert!(err.contains("output") && err.contains("No space left"), "{err}");
        mark.gone(PATIENCE).await;
    }
}

#[tokio::test]
async fn a_timeout_comes_in_time_although_nobody_reads() {
    for script in ["yes", "yes >&2", "exec 2>&1; yes"] {
        let mark = Mark::new();
        // Nobody waits for the grace of a command that ends when it is told to.
        let mut both = command(&mark, &["--timeout", "2s", "--grace", "1h", "--", "sh", "-c", script]);
        let (reader, writer) = std::io::pipe().unwrap();
        both.stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut run = Run::start(both);
        assert_eq!(run.code().await, Some(124), "{script}");
        assert_eq!(mark.carriers(), [], "{script}");
        drop(reader);
    }
}

#[tokio::test]
async fn a_slow_reader_gets_every_byte() {
    let mark = Mark::new();
    let mut run = Run::start(command(&mark, &["--", "sh", "-c", "head -c 3000000 /dev/zero; echo end"]));
    let mut out = run.0.stdout.take().expect("piped");
    // The first few bytes, and the rest when the command has long filled every buffer.
    let mut all = vec![0; 10];
    out.read_exact(&mut all).expect("output");
    mark.runs("head", 1).await;
    out.read_to_end(&mut all).expect("output");
    assert_eq!((run.code().await, all.len()), (Some(0), 3_000_004));
    assert!(all.ends_with(b"end\n"));
}
