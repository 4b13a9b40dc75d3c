//! Nothing of an attempt's process tree survives its end.

mod rig;

use std::time::{Duration, Instant};

use onward_exec::{Exit, Options, tree};
use rig::{ESCAPE, Life, SHORT_GRACE, all, carriers, kill, line, mark, options, rest, sh, signal_to, start, stubborn};

#[tokio::test]
async fn stop_is_sigterm_to_all_of_the_tree() {
    let script = "sh -c 'trap \"echo child; exit\" TERM; echo $$; while :; do sleep 0.01; done' & \
                  trap 'wait; echo parent; exit 7' TERM; echo $$; while :; do sleep 0.01; done";
    // Only who hears SIGTERM gets to say something.
    let mut running = start(sh(script));
    let mut lives = Vec::new();
    while lives.len() < 2 {
        lives.extend(Life::of_all(&line(&mut running).await));
    }
    running.stop();
    let seen = rest(running).await;
    assert_eq!(seen.exit, Exit::Code(7));
    assert_eq!(String::from_utf8_lossy(&seen.output), "child\nparent\n");
    assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
}

#[tokio::test]
async fn one_that_ignores_sigterm_is_killed_after_the_grace() {
    let mut running = start(stubborn("trap '' TERM; sleep 1000 & echo $$ $!; while :; do wait; done"));
    let lives = Life::of_all(&line(&mut running).await);
    let asked = Instant::now();
    running.stop();
    let seen = rest(running).await;
    assert_eq!(seen.exit, Exit::Signal(9));
    assert!(asked.elapsed() >= SHORT_GRACE, "killed after {:?}", asked.elapsed());
    assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
}

#[tokio::test]
async fn kill_does_not_wait_for_the_grace() {
    let script = "trap 'echo term' TERM; echo $$; while :; do sleep 0.01; done";
    for is_stopped_before in [true, false] {
        let mut running = start(sh(script));
        let lives = Life::of_all(&line(&mut running).await);
        if is_stopped_before {
            running.stop();
            assert_eq!(line(&mut running).await, "term");
        }
        running.kill();
        assert_eq!(rest(running).await.exit, Exit::Signal(9));
        assert!(lives[0].is_gone(), "{lives:?}");
    }
}

#[tokio::test]
async fn a_stopped_process_hears_sigterm_too() {
    let mut running = start(sh("echo $$; kill -STOP $$; exit 5"));
    let lives = Life::of_all(&line(&mut running).await);
    running.stop();
    assert_eq!(rest(running).await.exit, Exit::Signal(15));
    assert!(lives[0].is_gone());
}

#[tokio::test]
async fn one_that_escaped_from_session_and_parent_is_ended() {
    // The command itself heeds SIGTERM, and must have the time for that.
    let grace = Duration::from_secs(12);
    let mut running = start(Options { grace, ..sh(&format!("{ESCAPE} sleep 1000")) });
    let lives = Life::of_all(&line(&mut running).await);
    running.stop();
    assert_eq!(rest(running).await.exit, Exit::Signal(15));
    assert!(lives[0].is_gone(), "{lives:?}");
}

#[tokio::test]
async fn what_the_command_leaves_behind_is_ended_and_does_not_hold_its_output() {
    for left in ["sleep 1000 & echo $!;", ESCAPE] {
        let gate = tempfile::tempdir().expect("a folder");
        let open = gate.path().join("open");
        let script = format!("{left} until [ -e {} ]; do sleep 0.01; done; echo last; exit 4", open.display());
        let mut running = start(stubborn(&script));
        let lives = Life::of_all(&line(&mut running).await);
        std::fs::write(open, "").expect("a file");
        let seen = rest(running).await;
        assert_eq!((seen.exit, &seen.output[..]), (Exit::Code(4), &b"last\n"[..]), "{left}");
        assert!(lives[0].is_gone(), "{left}: {lives:?}");
    }
}

#[tokio::test]
async fn to_drop_an_attempt_ends_it() {
    let mut running = start(sh("sleep 1000 & echo $$ $!; wait"));
    let lives = Life::of_all(&line(&mut running).await);
    drop(running);
    for life in lives {
        life.gone().await;
    }
}

#[tokio::test]
async fn an_attempt_stopped_at_once_ends() {
    let running = start(sh("sleep 1000"));
    running.stop();
    let exit = rest(running).await.exit;
    assert!(matches!(exit, Exit::NotStarted { .. } | Exit::Signal(15)), "{exit:?}");
}

#[tokio::test]
async fn a_tree_that_forks_while_it_is_killed_is_ended() {
    // In the command's group and in a session of its own, something is born every few milliseconds.
    let script = "trap '' TERM; \
                  setsid sh -c 'trap \"\" TERM; while :; do sleep 0.01 & sleep 0.002; done' & \
                  echo $$ $!; while :; do (sh -c 'sleep 0.05' &); sleep 0.005; done";
    let mut running = start(stubborn(script));
    let lives = Life::of_all(&line(&mut running).await);
    let mark = mark(lives[0].pid);
    assert!(carriers(&mark).len() >= 2);
    running.stop();
    assert_eq!(rest(running).await.exit, Exit::Signal(9));
    assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
    assert_eq!(carriers(&mark), Vec::<i32>::new());
}

#[tokio::test]
async fn a_killed_guard_is_noticed_and_its_tree_is_ended() {
    let mut running = start(stubborn(&format!("{ESCAPE} sleep 1000 & echo $$ $!; wait")));
    let mut lives = Life::of_all(&line(&mut running).await);
    while lives.len() < 3 {
        lives.extend(Life::of_all(&line(&mut running).await));
    }
    let command = lives.iter().map(|life| tree::read(life.pid).expect("alive"));
    let guard = command.map(|process| process.parent).find(|&parent| name(parent) == "onward-guard").expect("a guard");
    kill(guard);
    let exit = rest(running).await.exit;
    assert!(matches!(&exit, Exit::Lost { why } if why.contains("9")), "{exit:?}");
    for life in lives {
        life.gone().await;
    }
}

fn name(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

#[tokio::test]
async fn output_of_the_last_moment_is_told() {
    let mut running =
        start(sh("trap 'head -c 30000 /dev/zero; echo end; exit 0' TERM; echo ready; while :; do sleep 0.01; done"));
    assert_eq!(line(&mut running).await, "ready");
    running.stop();
    let seen = rest(running).await;
    assert_eq!((seen.output.len(), seen.exit), (30004, Exit::Code(0)));
}

#[tokio::test]
async fn a_slow_reader_slows_the_command_and_stops_it_all_the_same() {
    let mut running = start(options(["yes"]));
    let first = line(&mut running).await;
    assert!(first.starts_with("y\ny"));
    running.stop();
    let seen = rest(running).await;
    assert_eq!(seen.exit, Exit::Signal(15));
    // The pipe, the queue and the chunks under way; not what `yes` writes in the time that it had.
    assert!(seen.output.len() < 1024 * 1024, "{} bytes", seen.output.len());
}

#[tokio::test]
async fn in_the_foreground_the_command_shares_our_group_and_its_end_is_not_ours() {
    for foreground in [true, false] {
        let mut running =
            start(Options { foreground, ..stubborn("trap '' TERM; sleep 1000 & echo $$ $!; while :; do wait; done") });
        let lives = Life::of_all(&line(&mut running).await);
        let group = |pid: i32| tree::read(pid).expect("alive").group;
        let own = group(std::process::id() as i32);
        let guard = tree::read(lives[0].pid).expect("alive").parent;
        assert_eq!(group(lives[0].pid) == own, foreground);
        assert_eq!(group(guard) == own, foreground);
        assert_eq!(group(lives[0].pid) == group(guard), foreground, "its group can be killed without the guard");
        running.stop();
        assert_eq!(rest(running).await.exit, Exit::Signal(9));
        assert!(lives.iter().all(|life| life.is_gone()), "{lives:?}");
    }
}

#[tokio::test]
async fn what_a_terminal_sends_to_all_ends_the_command_and_not_its_guard() {
    let mut running = start(sh("echo $$; exec sleep 1000"));
    let life = Life::of_all(&line(&mut running).await)[0];
    let guard = tree::read(life.pid).expect("alive").parent;
    for signal in ["-INT", "-TERM", "-HUP", "-QUIT"] {
        signal_to(guard, signal);
    }
    // The guard has not handed its own way with signals down.
    signal_to(life.pid, "-INT");
    assert_eq!(rest(running).await.exit, Exit::Signal(2));
    for (signal, number) in [("-HUP", 1), ("-QUIT", 3), ("-PIPE", 13)] {
        let seen = all(sh(&format!("kill {signal} $$; exit 0"))).await;
        assert_eq!(seen.exit, Exit::Signal(number), "{signal}");
    }
}
