use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use onward_core::fence::AttemptFence;
use onward_core::ids::JobId;
use tempfile::tempdir;

use super::*;

pub(super) const TERM: Term = Term::new(1);

pub(super) fn claim(job: u64) -> Claim {
    Claim { job: JobId::from_u128(u128::from(job)), workflow: 2, fence: AttemptFence::from_raw(1 << 20 | 7) }
}

fn printed(data: &[u8]) -> UnwrittenOutput {
    UnwrittenOutput { skipped: 0, data: data.to_vec() }
}

fn kept(skipped: u64, data: &[u8]) -> Option<OutputTail> {
    Some(OutputTail { skipped, data: data.to_vec() })
}

pub(super) fn store(folder: &Path, rules: OutputRules) -> (OutputFolder, OutputStats) {
    let (mut store, stats) = (OutputFolder::new(folder.join(FOLDER), rules), OutputStats::default());
    store.scan(&stats).unwrap();
    (store, stats)
}

#[test]
fn a_disk_on_which_every_other_write_fails_is_told_of_once() {
    let stats = OutputStats::default();
    let mut trouble = Trouble { stats: &stats, failed_at: None };
    let (begin, second) = (Instant::now(), std::time::Duration::from_secs(1));
    let at = |seconds| begin + seconds * second;
    assert!(!trouble.is_over(at(0)), "there was none");
    assert!(trouble.begins(at(0)));
    for seconds in 1..30 {
        assert!(!trouble.is_over(at(2 * seconds)) && !trouble.begins(at(2 * seconds + 1)), "{seconds}");
    }
    assert!(!trouble.is_over(at(59 + 59)));
    assert!(trouble.is_over(at(59 + 60)), "nothing has failed for a minute");
    assert!(!trouble.is_over(at(59 + 61)) && trouble.begins(at(59 + 62)), "and then it begins anew");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join(FOLDER)).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_end_of_a_long_output_is_kept_and_the_rest_counted_also_after_a_restart() {
    let data = tempdir().unwrap();
    let (mut first, _) = store(data.path(), OutputRules::default());
    assert_eq!(first.read(&claim(1)).unwrap(), None);
    let mut all = Vec::new();
    let (mut total, mut largest) = (0, 0);
    for n in 0..300_u32 {
        let line = n.to_be_bytes().repeat(250 + n as usize);
        first.write(&claim(1), &printed(&line), 0).unwrap();
        all.extend_from_slice(&line);
        total += line.len() as u64;
        let file = data.path().join(FOLDER).join(&names(data.path())[0]);
        largest = largest.max(fs::metadata(file).unwrap().len());
        let Some(OutputTail { skipped, data }) = first.read(&claim(1)).unwrap() else { panic!("something is kept") };
        assert_eq!(data.len(), all.len().min(KEEP_BYTES));
        assert!(all.ends_with(&data) && skipped + data.len() as u64 == total);
    }
    assert!(largest <= CUT_BYTES as u64 + 16 && largest > KEEP_BYTES as u64 + 16, "{largest}");
    let (second, _) = store(data.path(), OutputRules::default());
    assert_eq!(second.read(&claim(1)).unwrap(), kept(total - KEEP_BYTES as u64, &all[all.len() - KEEP_BYTES..]));
}

#[test]
fn what_is_kept_has_no_holes() {
    let data = tempdir().unwrap();
    let (mut store, _) = store(data.path(), OutputRules::default());
    store.write(&claim(1), &UnwrittenOutput { skipped: 3, data: b"one".to_vec() }, 0).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), kept(3, b"one"));
    store.write(&claim(1), &printed(b" two"), 0).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), kept(3, b"one two"));
    store.write(&claim(1), &UnwrittenOutput { skipped: 10, data: b"three".to_vec() }, 0).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), kept(20, b"three"));
}

#[test]
fn each_fence_has_a_file_of_its_own_for_its_owner_only() {
    let data = tempdir().unwrap();
    let (mut store, _) = store(data.path(), OutputRules::default());
    let zombie = claim(1);
    let heir = Claim { fence: AttemptFence::from_raw(1 << 20 | 8), ..zombie };
    store.write(&heir, &printed(b"heir"), 0).unwrap();
    store.write(&zombie, &printed(b"zombie"), 0).unwrap();
    assert_eq!((store.read(&heir).unwrap(), store.read(&zombie).unwrap()), (kept(0, b"heir"), kept(0, b"zombie")));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = data.path().join(FOLDER);
    assert_eq!(mode(&folder), 0o700);
    for name in names(data.path()) {
        assert_eq!(mode(&folder.join(name)), 0o600);
    }
}

#[test]
fn what_is_too_much_goes_and_the_longest_silent_first() {
    let data = tempdir().unwrap();
    let rules = OutputRules { max_bytes: 3 * 4096, ..OutputRules::default() };
    let (mut store, stats) = store(data.path(), rules);
    for n in 0..3 {
        store.write(&claim(n), &printed(b"x"), 0).unwrap();
    }
    store.write(&claim(0), &printed(b"y"), 0).unwrap();
    store.sweep(0, &stats).unwrap();
    assert_eq!((stats.removed.get(), stats.kept_files.get(), stats.kept_bytes.get()), (0, 3, 3 * 4096));
    store.write(&claim(3), &printed(b"z"), 0).unwrap();
    store.sweep(0, &stats).unwrap();
    assert_eq!(store.read(&claim(1)).unwrap(), None);
    assert_eq!(store.read(&claim(0)).unwrap(), kept(0, b"xy"));
    assert_eq!((names(data.path()).len(), stats.removed.get(), stats.kept_bytes.get()), (3, 1, 3 * 4096));
    // A larger file takes the place of several.
    store.write(&claim(3), &printed(&[b'z'; 8_000]), 0).unwrap();
    store.sweep(0, &stats).unwrap();
    assert_eq!((names(data.path()).len(), stats.kept_bytes.get()), (2, 3 * 4096));
}

#[test]
fn what_is_too_old_goes_also_if_it_is_of_an_earlier_process() {
    let data = tempdir().unwrap();
    let rules = OutputRules { retain: Duration::from_secs(60), ..OutputRules::default() };
    let (mut first, stats) = store(data.path(), rules.clone());
    first.write(&claim(1), &printed(b"x"), 1_000).unwrap();
    first.write(&claim(2), &printed(b"x"), 30_000).unwrap();
    first.sweep(60_999, &stats).unwrap();
    assert_eq!(stats.kept_files.get(), 2);
    first.sweep(61_000, &stats).unwrap();
    assert_eq!((first.read(&claim(1)).unwrap(), first.read(&claim(2)).unwrap()), (None, kept(0, b"x")));
    let (mut second, stats) = store(data.path(), rules);
    assert_eq!(stats.kept_files.get(), 1);
    let now_ms = clock::now().wall.as_ms();
    second.sweep(now_ms, &stats).unwrap();
    assert_eq!(stats.kept_files.get(), 1);
    second.sweep(now_ms + 61_000, &stats).unwrap();
    assert_eq!((stats.kept_files.get(), names(data.path()).len()), (0, 0));
}

#[test]
fn a_start_clears_what_is_unfinished_and_leaves_what_is_not_ours() {
    let data = tempdir().unwrap();
    let (mut first, _) = store(data.path(), OutputRules::default());
    first.write(&claim(1), &printed(b"x"), 0).unwrap();
    let own = names(data.path())[0].clone();
    let folder = data.path().join(FOLDER);
    fs::write(folder.join(format!("{own}.new")), b"half").unwrap();
    fs::write(folder.join("README"), b"not ours").unwrap();
    let (mut second, stats) = store(data.path(), OutputRules::default());
    assert_eq!((names(data.path()), stats.kept_files.get()), (vec![own.clone(), "README".into()], 1));
    // A header that the power took half of is no header, and what comes next begins anew.
    fs::write(folder.join(own), b"ONWOUT1\n123").unwrap();
    assert_eq!(second.read(&claim(1)).unwrap(), None);
    second.write(&claim(1), &printed(b"new"), 0).unwrap();
    assert_eq!(second.read(&claim(1)).unwrap(), kept(0, b"new"));
}

fn output(job: u64, data: &[u8]) -> Output {
    Output { claim: claim(job), data: data.to_vec().into(), skipped: 0 }
}

#[tokio::test]
async fn a_read_sees_what_was_offered_before_and_a_stop_loses_nothing() {
    let data = tempdir().unwrap();
    let folder = data.path().join(FOLDER);
    let outputs = Outputs::start(Box::new(OutputFolder::new(folder.clone(), OutputRules::default()))).unwrap();
    for n in 0..100_u32 {
        outputs.offer(TERM, vec![output(1, &n.to_be_bytes())]);
        assert_eq!(outputs.read(claim(1)).await.unwrap().unwrap().data.len(), 4 * (n as usize + 1));
    }
    assert_eq!(outputs.read(claim(2)).await.unwrap(), None);
    outputs.offer(TERM, vec![output(2, b"the last words")]);
    outputs.stop();
    outputs.offer(TERM, vec![output(2, b", and too late")]);
    assert_eq!((outputs.stats().written_bytes.get(), outputs.stats().dropped_bytes.get()), (414, 14));
    assert!(matches!(outputs.read(claim(2)).await, Err(Unreadable::Stopping)));
    let again = Outputs::start(Box::new(OutputFolder::new(folder, OutputRules::default()))).unwrap();
    assert_eq!(again.read(claim(2)).await.unwrap(), kept(0, b"the last words"));
    again.stop();
}

#[test]
fn what_the_machine_is_asked_about_takes_room_until_it_is_answered_or_lost() {
    let data = tempdir().unwrap();
    let outputs =
        Outputs::start(Box::new(OutputFolder::new(data.path().join(FOLDER), OutputRules::default()))).unwrap();
    let all = || PendingOutputs::new(outputs.clone(), vec![output(1, &vec![7; MAX_WAITING_BYTES])]);
    let dropped = || outputs.stats().dropped_bytes.get() / MAX_WAITING_BYTES as u64;
    all().answered(TERM, &[Err(Refusal::UnknownJob)]);
    assert_eq!((dropped(), outputs.stats().refused.get()), (0, 1));
    drop(all());
    assert_eq!(dropped(), 1, "nobody answers any more");
    let first = all();
    assert_eq!(dropped(), 1);
    let second = all();
    assert_eq!(dropped(), 2, "there is no room for another");
    drop((first, second));
    assert_eq!(dropped(), 3, "and what was dropped before is not lost once more");
    let _again = all();
    assert_eq!(dropped(), 3);
    outputs.stop();
}

#[tokio::test]
async fn a_folder_that_fails_costs_output_and_nothing_else_and_comes_back() {
    let data = tempdir().unwrap();
    let folder = data.path().join(FOLDER);
    fs::write(&folder, b"in the way").unwrap();
    let outputs = Outputs::start(Box::new(OutputFolder::new(folder.clone(), OutputRules::default()))).unwrap();
    outputs.offer(TERM, vec![output(1, b"lost")]);
    assert!(matches!(outputs.read(claim(1)).await, Err(Unreadable::Io(_))));
    assert!(outputs.stats().errors.get() >= 1 && outputs.stats().dropped_bytes.get() == 4);
    fs::remove_file(&folder).unwrap();
    outputs.offer(TERM, vec![output(1, b"kept")]);
    assert_eq!(outputs.read(claim(1)).await.unwrap(), kept(4, b"kept"));
    outputs.stop();
}

/// A store of which each write is seen by the test, which says whether it works.
struct OutputLog {
    writes: Sender<UnwrittenOutput>,
    works: Receiver<bool>,
}

impl OutputStore for OutputLog {
    fn scan(&mut self, _: &OutputStats) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, _: &Claim, printed: &UnwrittenOutput, _: u64) -> Result<(), OutputWriteError> {
        self.writes.send(printed.clone()).unwrap();
        let lost = printed.skipped + printed.data.len() as u64;
        let failure =
            || OutputWriteError { lost, later: None, is_superseded: false, error: io::Error::other("it fails") };
        if self.works.recv().unwrap() { Ok(()) } else { Err(failure()) }
    }

    fn read(&self, _: &Claim) -> io::Result<Option<OutputTail>> {
        Ok(None)
    }

    fn sweep(&mut self, _: u64, _: &OutputStats) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_came_while_a_write_was_lost_says_how_much_is_missing_before_it() {
    let ((writes, written), (answer, works)) = (channel(), channel());
    let outputs = Outputs::start(Box::new(OutputLog { writes, works })).unwrap();
    outputs.offer(TERM, vec![output(1, b"lost")]);
    assert_eq!(written.recv().unwrap(), UnwrittenOutput { skipped: 0, data: b"lost".to_vec() });
    outputs.offer(TERM, vec![output(1, b"kept")]);
    answer.send(false).unwrap();
    assert_eq!(written.recv().unwrap(), UnwrittenOutput { skipped: 4, data: b"kept".to_vec() });
    answer.send(true).unwrap();
    outputs.offer(TERM, vec![output(1, b"more")]);
    assert_eq!(written.recv().unwrap(), UnwrittenOutput { skipped: 0, data: b"more".to_vec() }, "it was said once");
    answer.send(true).unwrap();
    outputs.stop();
}

/// A store that is away until the test says otherwise, and what it was given since.
#[derive(Clone, Default)]
struct Distant {
    is_here: Arc<AtomicBool>,
    given: Arc<Mutex<Vec<(Claim, UnwrittenOutput)>>>,
}

impl OutputStore for Distant {
    fn scan(&mut self, _: &OutputStats) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, claim: &Claim, printed: &UnwrittenOutput, _: u64) -> Result<(), OutputWriteError> {
        if self.is_here.load(Ordering::SeqCst) {
            self.given.lock().unwrap().push((*claim, printed.clone()));
            return Ok(());
        }
        let error = io::Error::new(io::ErrorKind::NotConnected, "it is away");
        Err(OutputWriteError { lost: 0, later: Some(printed.clone()), is_superseded: false, error })
    }

    fn read(&self, _: &Claim) -> io::Result<Option<OutputTail>> {
        Ok(None)
    }

    fn sweep(&mut self, _: u64, _: &OutputStats) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn output_whose_storage_is_away_waits_in_order_and_readers_are_asked_to_come_again() {
    let store = Distant::default();
    let outputs = Outputs::start(Box::new(store.clone())).unwrap();
    let dropped = || outputs.stats().dropped_bytes.get();
    for part in [b"one ".as_slice(), b"two ", b"three"] {
        outputs.offer(TERM, vec![output(1, part)]);
        assert!(matches!(outputs.read(claim(1)).await, Err(Unreadable::Away(_))), "it may be there later");
        assert!(outputs.read(claim(2)).await.unwrap().is_none(), "nothing of this one waits");
    }
    assert_eq!((dropped(), outputs.stats().written_bytes.get()), (0, 0));
    store.is_here.store(true, Ordering::SeqCst);
    while outputs.read(claim(1)).await.is_err() {}
    assert_eq!(*store.given.lock().unwrap(), [(claim(1), printed(b"one two three"))]);
    assert_eq!((dropped(), outputs.stats().written_bytes.get()), (0, 13));

    store.is_here.store(false, Ordering::SeqCst);
    outputs.offer(TERM, vec![output(1, b"last")]);
    outputs.stop();
    assert_eq!(dropped(), 4, "what could not be written before the end is counted");
}
