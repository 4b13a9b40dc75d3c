//! The suite that every kind of [`Sessions`] must pass.

use serde_json::json;

use super::*;
use crate::budget::Usage;

fn entry(text: &str) -> Entry {
    let event = SessionEvent::Asked { messages: vec![ChatMessage::User { content: text.into() }], input_tokens: 3 };
    Entry { at_ms: 1, active_ms: 2, event }
}

fn entries() -> Vec<Entry> {
    let message = json!({ "role": "assistant", "content": "ä\n", "odd field": [1.5, null] });
    let usage = Usage { input_tokens: 3, output_tokens: 4, estimated: true };
    let calls = vec![crate::model::ToolCall { id: "a".into(), name: "b".into(), arguments: "{".into() }];
    let answer = ModelAnswer { message, text: "ä\n".into(), refusal: None, calls, usage, truncated: false, cut: None };
    let ended = SessionEvent::ToolEnded { call: 0, output: "x\u{2028}\r\n".into(), failed: true, polling: false };
    let events = [SessionEvent::Answered(answer), SessionEvent::ToolBegun { call: 0, key: "k".into() }, ended];
    events.into_iter().map(|event| Entry { at_ms: 7, active_ms: 8, event }).collect()
}

/// `reopen` gives the same sessions as another process would see them.
async fn conforms<S: Sessions>(sessions: S, reopen: impl Fn() -> S) {
    let first = sessions.open("job-1", 5).await.unwrap();
    assert_eq!((first.fence, first.entries.len()), (5, 0));
    let mut all = vec![entry("one")];
    all.extend(entries());
    for one in &all {
        sessions.append(&first, one).await.unwrap();
    }

    let other = reopen();
    assert!(matches!(other.open("job-1", 4).await, Err(SessionError::Stale { newer: 5, fence: 4, .. })));
    let again = other.open("job-1", 5).await.unwrap();
    assert_eq!(again.entries, all, "the same attempt goes on");
    let second = other.open("job-1", u64::MAX - 1).await.unwrap();
    assert_eq!(second.entries, all);
    let stale = sessions.append(&first, &entry("zombie")).await;
    assert!(matches!(stale, Err(SessionError::Stale { newer, .. }) if newer == u64::MAX - 1), "{stale:?}");
    assert!(matches!(sessions.open("job-1", 5).await, Err(SessionError::Stale { .. })));
    other.append(&second, &entry("two")).await.unwrap();
    let stale = sessions.append(&first, &entry("zombie")).await;
    assert!(matches!(stale, Err(SessionError::Stale { .. })));

    let third = reopen().open("job-1", u64::MAX).await.unwrap();
    all.push(entry("two"));
    assert_eq!(third.entries, all, "nothing of the zombie, and nothing lost");
    assert!(reopen().open("job-2", 1).await.unwrap().entries.is_empty(), "sessions are apart");

    for id in ["", ".", "..", "a/b", "../x", "a\0b", ".hidden", "ä", &"x".repeat(201)] {
        assert!(matches!(sessions.open(id, 1).await, Err(SessionError::NotAName(_))), "{id:?}");
    }
    let huge = entry(&"x".repeat(MAX_ENTRY_BYTES));
    assert!(matches!(other.append(&third, &huge).await, Err(SessionError::TooLarge { .. })));
}

#[tokio::test]
async fn memory_conforms() {
    let memory = MemorySessions::new();
    conforms(memory.clone(), || memory.clone()).await;
}

#[tokio::test]
async fn a_folder_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::at(folder.path()).unwrap();
    conforms(open(), open).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Sqlite::at(folder.path().join("sessions.db")).unwrap();
    conforms(open(), open).await;
}

fn file(folder: &tempfile::TempDir, fence: u64, kind: &str) -> std::path::PathBuf {
    folder.path().join("s").join(format!("{fence:020}.{kind}"))
}

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    let files = std::fs::read_dir(folder.path().join("s")).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_file_that_was_torn_anywhere_is_read_up_to_its_last_whole_line() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let session = sessions.open("s", 1).await.unwrap();
    for one in &entries() {
        sessions.append(&session, one).await.unwrap();
    }
    let whole = std::fs::read(file(&folder, 1, "jsonl")).unwrap();
    // Around the end of each line, and within it.
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let lengths = ends.flat_map(|end| [end - 5, end, end + 1]).chain([0, 1]);
    for length in lengths {
        let lines = whole[..length].iter().filter(|&&byte| byte == b'\n').count();
        // By the same attempt, by a later one, and by one after another that was killed when it had made its mark, or
        // half of its copy.
        for (fence, left) in [(1, None), (2, None), (3, Some("mark")), (3, Some("0123456789abcdef.copy"))] {
            std::fs::remove_dir_all(folder.path().join("s")).unwrap();
            std::fs::create_dir(folder.path().join("s")).unwrap();
            std::fs::write(file(&folder, 1, "jsonl"), &whole[..length]).unwrap();
            if let Some(left) = left {
                std::fs::write(file(&folder, 2, left), &whole[..length / 2]).unwrap();
            }
            let session = sessions.open("s", fence).await.unwrap();
            assert_eq!(session.entries, entries()[..lines], "torn at {length}, fence {fence}");
            sessions.append(&session, &entry("more")).await.unwrap();
            let again = sessions.open("s", fence).await.unwrap();
            assert_eq!(again.entries.len(), lines + 1, "torn at {length}, fence {fence}");
            assert_eq!(names(&folder).len(), 2, "nothing that was left stays: {:?}", names(&folder));
        }
    }
}

#[tokio::test]
async fn what_a_zombie_had_under_way_is_part_of_no_history_once_its_successor_has_read() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let first = sessions.open("s", 1).await.unwrap();
    sessions.append(&first, &entry("one")).await.unwrap();
    // It was frozen behind its look at the fences, with its file open, and writes when it wakes up.
    let mut late = std::fs::OpenOptions::new().append(true).open(file(&folder, 1, "jsonl")).unwrap();
    sessions.open("s", 2).await.unwrap();
    std::io::Write::write_all(&mut late, format!("{}\n", encode(&entry("late"), "s").unwrap()).as_bytes()).unwrap();
    assert_eq!(sessions.open("s", 2).await.unwrap().entries, [entry("one")]);
    assert_eq!(sessions.open("s", 3).await.unwrap().entries, [entry("one")]);
    // Nor does a file of its own come back with it.
    let stale = sessions.append(&first, &entry("later")).await;
    assert!(matches!(stale, Err(SessionError::Stale { newer: 3, .. })), "{stale:?}");
    assert_eq!(names(&folder).len(), 2, "{:?}", names(&folder));
}

#[tokio::test]
async fn a_session_that_is_opened_again_and_again_does_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let first = sessions.open("s", 1).await.unwrap();
    sessions.append(&first, &entry("one")).await.unwrap();
    let length = std::fs::metadata(file(&folder, 1, "jsonl")).unwrap().len();
    for fence in 2..100 {
        assert_eq!(sessions.open("s", fence).await.unwrap().entries, [entry("one")]);
    }
    assert_eq!(names(&folder), ["00000000000000000099.jsonl", "00000000000000000099.mark"]);
    assert_eq!(std::fs::metadata(file(&folder, 99, "jsonl")).unwrap().len(), length);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_that_hold_the_same_fence_share_one_history() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let first = sessions.open("s", 1).await.unwrap();
    sessions.append(&first, &entry("one")).await.unwrap();
    let one = |number: usize| {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            let session = sessions.open("s", 2).await.unwrap();
            sessions.append(&session, &entry(&number.to_string())).await.unwrap();
        })
    };
    for holder in (0..8).map(one).collect::<Vec<_>>() {
        holder.await.unwrap();
    }
    assert_eq!(sessions.open("s", 3).await.unwrap().entries.len(), 9, "none has lost another's");
}

/// The permissions of everything beneath a folder, by its place in it.
fn modes(folder: &std::path::Path) -> Vec<(String, u32)> {
    use std::os::unix::fs::PermissionsExt;
    let mut modes = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        modes.push((file.path().display().to_string(), mode));
        if file.path().is_dir() {
            modes.extend(self::modes(&file.path()));
        }
    }
    modes
}

#[tokio::test]
async fn nobody_else_on_the_machine_reads_a_session() {
    let root = tempfile::tempdir().unwrap();
    let folder = Folder::at(root.path().join("deep/sessions")).unwrap();
    for fence in 1..=2 {
        let session = folder.open("s", fence).await.unwrap();
        folder.append(&session, &entry("secret")).await.unwrap();
    }
    #[cfg(feature = "sqlite")]
    let _open = {
        let sqlite = Sqlite::at(root.path().join("sessions.db")).unwrap();
        let session = sqlite.open("s", 1).await.unwrap();
        sqlite.append(&session, &entry("secret")).await.unwrap();
        sqlite
    };
    let modes = modes(root.path());
    // Two folders above the session's, which has a mark and a history; and three files of SQLite.
    assert!(modes.len() >= 5, "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| mode & 0o077 == 0), "{modes:?}");
}
