//! Real commands, under real guards.

mod rig;

use std::time::Duration;

use onward_exec::{AttemptEvent, Exit, GuardProgram, Options, OutputStream, SpawnError, Stdin};
use rig::{All, all, options, sh, start};

#[tokio::test]
async fn exit_codes_and_signals_are_told() {
    for (script, exit) in [
        ("exit 0", Exit::Code(0)),
        ("exit 3", Exit::Code(3)),
        ("exit 75", Exit::Code(75)),
        ("kill -9 $$", Exit::Signal(9)),
        ("kill -15 $$", Exit::Signal(15)),
    ] {
        assert_eq!(all(sh(script)).await.exit, exit, "{script}");
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_why() {
    let All { exit, output, .. } = all(options(["onward-no-such-program"])).await;
    assert!(matches!(&exit, Exit::NotFound { why } if why.contains("onward-no-such-program")), "{exit:?}");
    assert!(output.is_empty());
    for program in ["/", "/etc/passwd"] {
        let exit = all(options([program])).await.exit;
        assert!(matches!(&exit, Exit::NotExecutable { why } if why.contains(program)), "{program}: {exit:?}");
    }
    for cwd in ["/no/such/folder", "/etc/passwd"] {
        let exit = all(Options { cwd: Some(cwd.into()), ..sh("exit 0") }).await.exit;
        assert!(matches!(&exit, Exit::NotStarted { why } if why.contains(cwd)), "{exit:?}");
    }
    let exit = all(options(["sh", "a\0b"])).await.exit;
    assert!(matches!(&exit, Exit::NotStarted { why } if why.contains("nvalid")), "{exit:?}");
}

#[tokio::test]
async fn output_is_byte_exact() {
    let bytes = rig::noise(1024 * 1024);
    for directives in [true, false] {
        let options = Options { stdin: Stdin::Bytes(bytes.clone()), directives, ..sh("cat; printf '\\n@onward pro'") };
        let seen = all(options).await;
        assert!(seen.output == [&bytes[..], b"\n@onward pro"].concat(), "directives {directives}");
        assert_eq!(seen.exit, Exit::Code(0));
    }
}

#[tokio::test]
async fn streams_are_kept_apart_and_started_comes_first() {
    let mut running = start(sh("echo out; echo err >&2"));
    let first = running.next().await;
    assert!(matches!(first, Some(AttemptEvent::Started { pid }) if pid > 1), "{first:?}");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(event) = running.next().await {
        match event {
            AttemptEvent::Output { stream: OutputStream::Stdout, bytes } => out.extend(bytes),
            AttemptEvent::Output { stream: OutputStream::Stderr, bytes } => err.extend(bytes),
            _ => {}
        }
    }
    assert_eq!((out, err), (b"out\n".to_vec(), b"err\n".to_vec()));
    assert!(running.next().await.is_none());
}

#[tokio::test]
async fn directives_are_told_and_taken_out() {
    let script = "echo a; echo '@onward progress 3/10 third'; echo '@onward quiet 1.5'; echo '@onward progress b'";
    let seen = all(sh(script)).await;
    assert_eq!(String::from_utf8_lossy(&seen.output), "a\n@onward progress b\n");
    assert_eq!(seen.progress, [(3, Some(10), Some("third".to_owned()))]);
    assert_eq!(seen.quiet, [Duration::from_millis(1500)]);
    let seen = all(Options { directives: false, ..sh(script) }).await;
    assert!(seen.progress.is_empty());
    assert_eq!(seen.output.split(|&byte| byte == b'\n').count(), 5);
}

#[tokio::test]
async fn the_command_gets_what_it_was_given() {
    let given = Options {
        env: [("A".to_owned(), "b c".to_owned())].into(),
        env_remove: ["HOME", "A", "ONWARD_PAYLOAD_FILE"].map(str::to_owned).to_vec(),
        cwd: Some("/proc".into()),
        payload: Some(b"the payload".to_vec()),
        stdin: Stdin::Bytes(b"input".to_vec()),
        ..sh(
            "echo \"$A|$HOME|$PWD|$PYTHONUNBUFFERED\"; cat $ONWARD_PAYLOAD_FILE -; [ -S $ONWARD_SOCKET ] && echo :socket",
        )
    };
    let seen = all(given).await;
    assert_eq!(String::from_utf8_lossy(&seen.output), "b c||/proc|1\nthe payloadinput:socket\n");
}

#[tokio::test]
async fn a_folder_is_private_and_goes_with_its_attempt() {
    let base = tempfile::tempdir().expect("a folder");
    let folder = Some(base.path().to_owned());
    let seen = all(Options { folder, ..sh("stat -c %a $(dirname $ONWARD_SOCKET)") }).await;
    assert_eq!(seen.output, b"700\n");
    assert_eq!(std::fs::read_dir(base.path()).expect("the folder").count(), 0);
}

#[tokio::test]
async fn a_guard_that_is_none_is_reported() {
    let guard = |program: &str| GuardProgram { program: program.into(), args: vec!["no-such-file".to_owned()] };
    let exit = all(Options { guard: guard("/bin/cat"), ..sh("exit 0") }).await.exit;
    assert!(matches!(&exit, Exit::NotStarted { why } if why.contains("no-such-file")), "{exit:?}");
    let error = onward_exec::spawn(Options { guard: guard("/no/such/guard"), ..sh("exit 0") }).expect_err("no guard");
    assert!(matches!(&error, SpawnError::Guard { .. }), "{error}");
}
