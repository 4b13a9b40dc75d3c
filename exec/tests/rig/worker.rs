//! A worker for tests that kill it: runs `sh -c SCRIPT` as an attempt, and passes on what it writes.
//!
//! `onward-exec-worker GUARD FOLDER GRACE_MS SCRIPT`

use std::io::Write;
use std::time::Duration;

use onward_exec::{AttemptEvent, AttemptIdentity, GuardProgram, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [guard, folder, grace_ms, script] = args.as_slice() else { panic!("four arguments, not {args:?}") };
    let options = Options {
        guard: GuardProgram { program: guard.into(), args: vec![] },
        folder: Some(folder.into()),
        // Of a job that no other test has.
        identity: Some(AttemptIdentity { job: folder.clone(), workflow: "main".into(), fence: 1 }),
        grace: Duration::from_millis(grace_ms.parse().expect("milliseconds")),
        ..Options::new(["sh", "-c", script])
    };
    let mut running = onward_exec::spawn(options).expect("a guard can be started");
    while let Some(event) = running.next().await {
        if let AttemptEvent::Output { bytes, .. } = event {
            std::io::stdout().write_all(&bytes).expect("the test listens");
            std::io::stdout().flush().expect("the test listens");
        }
    }
}
