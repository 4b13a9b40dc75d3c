//! The tools that come with the crate, given to a hostile model.

mod rig;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use onward_agent::metrics::Kind;
use onward_agent::tools::{CommandTool, Files, HttpGet};
use onward_agent::{Agent, CancelWhy, MemorySessions, Sessions, Stopped, Tool, session::SessionEvent};
use rig::server::{Piece, Reply, Server, calls};
use rig::{SOON, ScriptedModel, TestAttempt, call, say};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

/// The answer of a tool to these arguments.
async fn use_tool(tools: impl IntoIterator<Item = Tool>, name: &str, arguments: Value) -> String {
    use_and_count(tools, name, arguments).await.0
}

/// The answer of a tool, and how often its call beat. The agent itself does so when it begins and when it ends.
async fn use_and_count(tools: impl IntoIterator<Item = Tool>, name: &str, arguments: Value) -> (String, u64) {
    let sessions = MemorySessions::new();
    let model = ScriptedModel::of([call(name, &arguments.to_string()), say("done")]);
    let agent = tools.into_iter().fold(Agent::new(model).sessions(sessions.clone()), Agent::tool);
    agent.run_text(&TestAttempt::new(), "go").await.unwrap();
    let entries = sessions.open("job-1", 1).await.unwrap().entries;
    let output = entries.into_iter().find_map(|entry| match entry.event {
        SessionEvent::ToolEnded { output, .. } => Some(output),
        _ => None,
    });
    (output.unwrap(), agent.metrics().of(Kind::Tool, name).beats)
}

#[tokio::test]
async fn a_program_that_prints_is_at_work_and_so_is_a_page_that_drips() {
    let tools = || [CommandTool::programs(["sh"]).tool()];
    let run = |script: &str| json!({ "program": "sh", "arguments": ["-c", script] });
    assert_eq!(use_and_count(tools(), "command", run("exit 0")).await.1, 2, "one that says nothing");
    // At least one read of each of its outputs.
    let (_, beats) = use_and_count(tools(), "command", run("echo out; echo err >&2")).await;
    assert!(beats >= 2 + 2, "{beats} beats");

    let server = Server::start(|_, asked| match asked.head.split(' ').nth(1).unwrap() {
        "/from" => Reply::Plain(302, "location: /page\r\n".into(), String::new()),
        _ => Reply::Stream((0..5).map(|_| Piece::Raw(b"drip ".to_vec())).collect()),
    })
    .await;
    let url = format!("http://{}/from", server.address);
    let tool = HttpGet::new().allow(server.address).tool();
    let (given, beats) = use_and_count([tool], "http_get", json!({ "url": url })).await;
    assert!(given.ends_with("drip drip drip drip drip "), "{given}");
    assert!(beats >= 2 + 2 + 5, "{beats} beats: by each of two requests, and by each drop");
}

fn page(body: &str) -> Reply {
    Reply::Plain(200, "content-type: text/plain\r\n".into(), body.into())
}

#[tokio::test]
async fn only_public_addresses_are_fetched_and_each_redirect_is_judged_again() {
    let secret = Server::start(|_, _| page("the secret")).await;
    let port = secret.address.port();
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://0.0.0.0:{port}/"),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        "http://169.254.169.254/latest/meta-data/".into(),
        "http://[fe80::1]/".into(),
        "http://10.0.0.1/".into(),
    ] {
        let given = use_tool([HttpGet::new().tool()], "http_get", json!({ "url": url })).await;
        assert!(given.contains("is refused: only public addresses"), "{url}: {given}");
    }
    for url in ["file:///etc/passwd", "gopher://x/", "http://user:pass@127.0.0.1/"] {
        let given = use_tool([HttpGet::new().tool()], "http_get", json!({ "url": url })).await;
        assert!(given.starts_with("Error:") && given.contains("not an http or https URL"), "{url}: {given}");
    }

    // A server that is allowed leads to one that is not.
    let to = format!("location: http://127.0.0.1:{port}/\r\n");
    let open = Server::start(move |_, asked| match asked.head.split(' ').nth(1).unwrap() {
        "/away" => Reply::Plain(302, to.clone(), String::new()),
        "/loop" => Reply::Plain(301, "location: /loop\r\n".into(), String::new()),
        "/here" => Reply::Plain(307, "location: there\r\n".into(), String::new()),
        "/there" => page("welcome"),
        _ => page(&"x".repeat(1 << 20)),
    })
    .await;
    let get = |path: &str| {
        let tool = HttpGet::new().allow(open.address).tool();
        let url = format!("http://{}{path}", open.address);
        async move { use_tool([tool], "http_get", json!({ "url": url })).await }
    };
    assert!(get("/away").await.contains("is refused: only public addresses"));
    assert!(get("/loop").await.contains("more than 5 redirects"));
    let given = get("/here").await;
    assert!(given.contains("/there\n200 text/plain\n\nwelcome"), "{given}");
    let huge = get("/huge").await;
    assert!(huge.len() < 258 << 10 && huge.ends_with("[cut: the first 262144 bytes]"), "{} bytes", huge.len());
    assert!(secret.asked().is_empty(), "nobody was asked who must not be");
    timeout(SOON, open.idle()).await.expect("no connection is left");
}

fn files(root: &Path) -> Vec<Tool> {
    Files::beneath(root).unwrap().writable().tools()
}

#[tokio::test]
async fn no_path_and_no_link_leads_out_of_the_folder() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "the secret").unwrap();
    let root = outside.path().join("root");
    std::fs::create_dir_all(root.join("inner")).unwrap();
    std::fs::write(root.join("inner/note"), "hello").unwrap();
    symlink(&secret, root.join("link")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink("../secret", root.join("relative")).unwrap();
    symlink("inner/note", root.join("inside")).unwrap();
    symlink("/proc/self/root", root.join("magic")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(root.join("fifo")).status().unwrap();
    assert!(fifo.success());
    let absolute = secret.to_str().unwrap().to_owned();
    for path in [
        "../secret",
        "inner/../../secret",
        "link",
        "relative",
        "up/secret",
        &absolute,
        "magic/etc/passwd",
        "/etc/passwd",
        "inner/../up/../secret",
        "",
    ] {
        let read = use_tool(files(&root), "read_file", json!({ "path": path })).await;
        assert!(read.starts_with("Error:") && !read.contains("the secret"), "{path}: {read}");
        let written = use_tool(files(&root), "write_file", json!({ "path": path, "text": "mine" })).await;
        assert!(written.starts_with("Error:"), "{path}: {written}");
    }
    for path in ["..", "up", "/", "magic"] {
        let listed = use_tool(files(&root), "list_files", json!({ "path": path })).await;
        assert!(listed.contains("the path leads out of the folder"), "{path}: {listed}");
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "the secret");
    for path in ["fifo", "inner"] {
        let read = use_tool(files(&root), "read_file", json!({ "path": path })).await;
        assert!(read.contains("not an ordinary file"), "{path}: {read}");
    }
    assert_eq!(use_tool(files(&root), "read_file", json!({ "path": "inside" })).await, "hello");
    assert_eq!(
        use_tool(files(&root), "write_file", json!({ "path": "inner/new", "text": "new" })).await,
        "3 bytes written"
    );
    assert_eq!(
        use_tool(files(&root), "write_file", json!({ "path": "inner/note", "text": "" })).await,
        "0 bytes written"
    );
    assert_eq!(use_tool(files(&root), "list_files", json!({ "path": "inner" })).await, "new\nnote");
    assert_eq!(std::fs::read_to_string(root.join("inner/note")).unwrap(), "");
    let huge = "x".repeat((64 << 10) + 1);
    let written = use_tool(files(&root), "write_file", json!({ "path": "huge", "text": huge })).await;
    assert!(written.contains("too many") && !root.join("huge").exists(), "{written}");
    let only_read = Files::beneath(&root).unwrap().tools();
    assert!(only_read.iter().all(|tool| tool.spec().name != "write_file"));
}

#[tokio::test]
async fn a_large_file_is_read_in_parts() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("large"), [b'x'; 100_000]).unwrap();
    let read = use_tool(files(root.path()), "read_file", json!({ "path": "large" })).await;
    assert!(read.ends_with("x\n[bytes 0 to 65536 of 100000]"), "{}", &read[read.len() - 60..]);
    let rest = use_tool(files(root.path()), "read_file", json!({ "path": "large", "offset": 65_536 })).await;
    assert_eq!(rest, "x".repeat(100_000 - 65_536));
}

#[tokio::test]
async fn a_command_runs_without_our_secrets_and_only_if_it_is_named() {
    let tools = || [CommandTool::programs(["sh", "env"]).tool()];
    let env = use_tool(tools(), "command", json!({ "program": "env" })).await;
    let names: Vec<&str> = env.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    assert!(names.contains(&"PATH") && names.contains(&"ONWARD_TOOL_CALL"), "{env}");
    assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{env}");
    let refused = use_tool(tools(), "command", json!({ "program": "/bin/sh", "arguments": ["-c", "id"] })).await;
    assert_eq!(refused, "Error: `/bin/sh` is not allowed; use sh, env");
    let script = "echo out; echo err >&2; exit 3";
    let failed = use_tool(tools(), "command", json!({ "program": "sh", "arguments": ["-c", script] })).await;
    assert_eq!(failed, "exit status: 3\nstdout:\nout\n\nstderr:\nerr\n\n");
    let much =
        use_tool(tools(), "command", json!({ "program": "sh", "arguments": ["-c", "yes | head -c 1000000"] })).await;
    assert!(much.len() < 32 << 10 && much.contains("without the first 969280 bytes"), "{} bytes", much.len());
}

/// The processes whose environment has this word.
fn marked(word: &str) -> Vec<i32> {
    let carries = |process: &onward_exec::tree::Process| {
        let environ = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        process.is_alive() && String::from_utf8_lossy(&environ).contains(word)
    };
    onward_exec::tree::all().iter().filter(|process| carries(process)).map(|process| process.pid).collect()
}

/// Processes in a session of their own, orphaned, and in the group; each writes its pid, so that the test knows it is
/// there.
const TREE: &str = "
    setsid sh -c 'echo $$ >> pids; exec sleep 1000' &
    (setsid sh -c 'echo $$ >> pids; trap \"\" TERM; while :; do sleep 1000; done' &) 
    sh -c 'echo $$ >> pids; trap \"\" TERM; sleep 1000; sleep 1000' &
    while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done
    echo ready | tee fifo
    WAIT
";

/// A folder with what the scripts here write to, and a pipe in which they say that all of their processes are there.
fn stage() -> (tempfile::TempDir, pipe::Receiver) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pids"), "").unwrap();
    let fifo = folder.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    // For writing too: it has no end when a writer goes.
    let ready = pipe::OpenOptions::new().read_write(true).open_receiver(fifo).unwrap();
    (folder, ready)
}

async fn is_ready(pipe: &mut pipe::Receiver) {
    timeout(SOON, pipe.read_exact(&mut [0; 6])).await.expect("all are there").unwrap();
}

/// Waits until a process has ended.
async fn has_ended(pid: i32) {
    let wait = move || {
        // Readable at its end. One that is gone has ended.
        let Ok(process) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) else { return true };
        let soon = Timespec::try_from(SOON).unwrap();
        poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&soon)).unwrap() > 0
    };
    assert!(tokio::task::spawn_blocking(wait).await.unwrap(), "{pid} is still there");
}

async fn nobody_is_left(session: &str) {
    while let Some(pid) = marked(session).first() {
        has_ended(*pid).await;
    }
}

#[tokio::test]
async fn whatever_a_command_started_is_gone_when_it_has_ended_was_cancelled_or_dropped() {
    for how in ["end", "cancel", "drop"] {
        // Known by this process only: what another run of the tests left is not this one's.
        let session = format!("tree-{how}-{}", std::process::id());
        let session = session.as_str();
        let (folder, mut ready) = stage();
        let script = TREE.replace("WAIT", if how == "end" { "" } else { "wait" });
        let arguments = json!({ "program": "sh", "arguments": ["-c", script] });
        let model = ScriptedModel::of([call("command", &arguments.to_string()), say("done")]);
        let agent = Agent::new(model).tool(CommandTool::programs(["sh"]).folder(folder.path()).tool());
        let mut attempt = TestAttempt::new();
        attempt.session = session.into();
        let running = {
            let (agent, attempt) = (agent.clone(), attempt.clone());
            tokio::spawn(async move { agent.run_text(&attempt, "go").await })
        };
        if how != "end" {
            is_ready(&mut ready).await;
            assert!(marked(session).len() >= 4, "the shell and its three");
        }
        match how {
            "cancel" => {
                attempt.heartbeat.cancel(CancelWhy::LeaseExpired);
                let stopped = running.await.unwrap();
                assert!(matches!(stopped, Err(Stopped::Lost(CancelWhy::LeaseExpired))), "{stopped:?}");
                assert_eq!(marked(session), [0_i32; 0], "when the run has ended, they are gone");
            }
            "drop" => {
                running.abort();
                assert!(running.await.unwrap_err().is_cancelled());
            }
            _ => {
                assert_eq!(running.await.unwrap().unwrap().output, "done");
                assert_eq!(marked(session), [0_i32; 0], "what it left behind is gone when it has ended");
            }
        }
        nobody_is_left(session).await;
    }
}

/// Processes outside the group, without the mark: below the command without its outputs, orphaned with one of them, or
/// orphaned without any.
const UNMARKED: [&str; 4] = [
    "env -i setsid sh -c 'echo $$ >> pids; exec sleep 1000' > /dev/null 2>&1 &",
    "(env -i setsid sh -c 'echo $$ >> pids; exec sleep 1000' 2> /dev/null &)",
    "(env -i setsid sh -c 'echo $$ >> pids; exec sleep 1000' > /dev/null &)",
    "(env -i setsid sh -c 'echo $$ >> pids; exec sleep 1000' > /dev/null 2>&1 &)",
];

/// A process that is older than the command, has its environment from nobody, and is given one of the command's outputs.
fn older_stranger(folder: &Path) -> tokio::process::Child {
    assert!(std::process::Command::new("mkfifo").arg(folder.join("who")).status().unwrap().success());
    let script = "read pid < who; exec 3> /proc/$pid/fd/2; echo ready > fifo; exec sleep 1000";
    let mut stranger = tokio::process::Command::new("sh");
    stranger.args(["-c", script]).current_dir(folder).env_clear().stdout(Stdio::null()).kill_on_drop(true);
    let stranger = stranger.spawn().unwrap();
    let started = |pid: u32| onward_exec::tree::read(i32::try_from(pid).unwrap()).unwrap().started;
    // The clock that says when processes were started has wide ticks.
    loop {
        let mut probe = std::process::Command::new("true").spawn().unwrap();
        let is_later = started(probe.id()) > started(stranger.id().unwrap());
        probe.wait().unwrap();
        if is_later {
            return stranger;
        }
    }
}

#[tokio::test]
async fn a_process_without_the_mark_is_found_below_the_command_or_by_its_outputs() {
    for (how, escapes) in [("end", &UNMARKED[1..3]), ("cancel", &UNMARKED[..]), ("drop", &UNMARKED[..])] {
        let (folder, mut ready) = stage();
        let count = escapes.len();
        let started = format!("while [ $(wc -l < pids) -lt {count} ]; do sleep 0.01; done; echo ready | tee fifo");
        let script = format!(
            "echo $$ > who\n{}\n{started}\n{}",
            escapes.join("\n"),
            if how == "end" { "" } else { "wait; sleep 1000" }
        );
        let arguments = json!({ "program": "sh", "arguments": ["-c", script] });
        let model = ScriptedModel::of([call("command", &arguments.to_string()), say("done")]);
        let agent = Agent::new(model).tool(CommandTool::programs(["sh"]).folder(folder.path()).tool());
        let attempt = TestAttempt::new();
        let mut stranger = older_stranger(folder.path());
        let running = {
            let (agent, attempt) = (agent.clone(), attempt.clone());
            tokio::spawn(async move { agent.run_text(&attempt, "go").await })
        };
        is_ready(&mut ready).await;
        is_ready(&mut ready).await;
        match how {
            "cancel" => {
                attempt.heartbeat.cancel(CancelWhy::LeaseExpired);
                running.await.unwrap().unwrap_err();
            }
            "drop" => {
                running.abort();
                assert!(running.await.unwrap_err().is_cancelled());
            }
            _ => assert_eq!(running.await.unwrap().unwrap().output, "done"),
        }
        let pids = std::fs::read_to_string(folder.path().join("pids")).unwrap();
        for pid in pids.lines() {
            has_ended(pid.parse().unwrap()).await;
        }
        assert_eq!(pids.lines().count(), count, "{how}");
        assert!(stranger.try_wait().unwrap().is_none(), "{how}: it is not the command's");
        stranger.kill().await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_run_that_ends_in_the_middle_of_everything() {
    let session = format!("left-{}", std::process::id());
    let (folder, mut ready) = stage();
    let arguments = json!({ "program": "sh", "arguments": ["-c", TREE.replace("WAIT", "wait")] }).to_string();
    // A page that never ends, and a command that never ends, called side by side.
    let model = Server::start(move |_, asked| match asked.head.split(' ').nth(1).unwrap() {
        "/page" => Reply::Stream(vec![Piece::Raw(b"x".to_vec()), Piece::Hang]),
        _ => calls(&[
            ("command", &arguments),
            ("http_get", &json!({ "url": format!("http://{}/page", asked.host()) }).to_string()),
        ]),
    })
    .await;
    let agent = Agent::new(onward_agent::ChatCompletions::at(&model.url, "m").unwrap())
        .tool(CommandTool::programs(["sh"]).folder(folder.path()).tool())
        .tool(HttpGet::new().allow(model.address).tool());
    let mut attempt = TestAttempt::new();
    attempt.session.clone_from(&session);
    let under_way = async {
        is_ready(&mut ready).await;
        timeout(SOON, model.asked_times(2)).await.expect("the page is asked for");
        attempt.heartbeat.cancel(CancelWhy::Stuck);
    };
    let (stopped, ()) = tokio::join!(agent.run_text(&attempt, "go"), under_way);
    assert!(matches!(stopped, Err(Stopped::Stuck { .. })), "{stopped:?}");
    assert_eq!(marked(&session), [0_i32; 0], "no process is left");
    timeout(SOON, model.idle()).await.expect("no connection is left");
    drop(model);
    let alone = async {
        while tokio::runtime::Handle::current().metrics().num_alive_tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, alone).await.expect("no task is left");
}
