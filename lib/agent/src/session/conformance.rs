//! What every kind of [`Sessions`] must do.

use serde_json::json;

use super::*;
use crate::budget::Usage;

fn entry(text: &str) -> Entry {
    let event = Event::Asked { messages: vec![Message::User { content: text.into() }] };
    Entry { at_ms: 1, active_ms: 2, event }
}

fn entries() -> Vec<Entry> {
    let message = json!({ "role": "assistant", "content": "ä\n", "odd field": [1.5, null] });
    let usage = Usage { input_tokens: 3, output_tokens: 4, estimated: true };
    let calls = vec![crate::model::Call { id: "a".into(), name: "b".into(), arguments: "{".into() }];
    let answer = Answer { message, text: "ä\n".into(), refusal: None, calls, usage, truncated: false, cut: None };
    let ended = Event::ToolEnded { call: 0, output: "x\u{2028}\r\n".into(), failed: true, polling: false };
    let events = [Event::Answered(answer), Event::ToolBegun { call: 0, key: "k".into() }, ended];
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
    let memory = Memory::new();
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

#[tokio::test]
async fn a_file_that_was_torn_anywhere_is_read_up_to_its_last_whole_line() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let session = sessions.open("s", 1).await.unwrap();
    for one in &entries() {
        sessions.append(&session, one).await.unwrap();
    }
    let file = folder.path().join("s").join(format!("{:020}.jsonl", 1));
    let whole = std::fs::read(&file).unwrap();
    // Around the end of each line, and within it.
    let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let lengths = ends.flat_map(|end| [end - 5, end, end + 1]).chain([0, 1]);
    for length in lengths {
        let lines = whole[..length].iter().filter(|&&byte| byte == b'\n').count().saturating_sub(1);
        // By the same attempt, by a later one, and by one after that which was killed before its first line.
        for (fence, empty) in [(1, None), (2, None), (3, Some(2))] {
            for later in [2, 3] {
                let _ = std::fs::remove_file(folder.path().join("s").join(format!("{later:020}.jsonl")));
            }
            std::fs::write(&file, &whole[..length]).unwrap();
            if let Some(empty) = empty {
                std::fs::write(folder.path().join("s").join(format!("{empty:020}.jsonl")), b"").unwrap();
            }
            let session = sessions.open("s", fence).await.unwrap();
            assert_eq!(session.entries, entries()[..lines], "torn at {length}, fence {fence}");
            sessions.append(&session, &entry("more")).await.unwrap();
            let again = sessions.open("s", fence).await.unwrap();
            assert_eq!(again.entries.len(), lines + 1, "torn at {length}, fence {fence}");
        }
    }
}

#[tokio::test]
async fn what_a_zombie_had_under_way_is_part_of_no_history_once_its_successor_has_read() {
    let folder = tempfile::tempdir().unwrap();
    let sessions = Folder::at(folder.path()).unwrap();
    let first = sessions.open("s", 1).await.unwrap();
    sessions.append(&first, &entry("one")).await.unwrap();
    sessions.open("s", 2).await.unwrap();
    // It was frozen behind its look at the fences, and writes when it wakes up.
    let line = encode(&entry("late"), "s").unwrap() + "\n";
    let file = folder.path().join("s").join(format!("{:020}.jsonl", 1));
    let mut text = std::fs::read_to_string(&file).unwrap();
    text.push_str(&line);
    std::fs::write(&file, text).unwrap();
    assert_eq!(sessions.open("s", 3).await.unwrap().entries, [entry("one")]);
}
