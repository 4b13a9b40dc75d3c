//! Each change to an output file fails in turn. What is kept is always the end of what was written without a hole, and
//! the count before it is right.

use tempfile::tempdir;

use super::tests::{TERM, claim, store};
use super::waiting::Waiting;
use super::*;
use onward_log::changes::faults;

#[test]
fn whichever_change_fails_what_is_kept_is_true_and_the_count_before_it_right() {
    faults::each(|fault| {
        let data = tempdir().unwrap();
        let (claim, mut waiting) = (claim(1), Waiting::default());
        let mut store = faults::healed(|| store(data.path(), OutputRules::default()).0);
        // All that was ever offered, in which a byte says where it is from.
        let mut all = Vec::new();
        for (round, length) in (0_u8..).zip([100, 3, 70_000, 10, 65_000, 9, 80_000, 7]) {
            let more = vec![round + 1; length];
            assert!(waiting.add(TERM, claim, 0, &more));
            all.extend_from_slice(&more);
            for (claim, OfferedOutput { printed, .. }) in waiting.take() {
                let before = faults::healed(|| store.read(&claim)).unwrap();
                let written = store.write(&claim, &printed, 0);
                let kept = faults::healed(|| store.read(&claim)).unwrap();
                if let Err(OutputWriteError { lost, .. }) = written {
                    waiting.lost_taken(claim, lost);
                    let end = kept.as_ref().map_or(0, |kept| kept.skipped + kept.data.len() as u64);
                    assert_eq!(end + lost, all.len() as u64, "{fault:?}, round {round}");
                    assert!(kept == before || lost < length as u64, "{fault:?}, round {round}");
                } else {
                    let kept = kept.expect("it was written");
                    assert_eq!(kept.skipped + kept.data.len() as u64, all.len() as u64, "{fault:?}, round {round}");
                    assert!(all.ends_with(&kept.data), "{fault:?}, round {round}");
                    assert!(kept.data.len() >= length.min(KEEP_BYTES), "{fault:?}, round {round}");
                }
            }
        }
        // The next process finds the same, whatever was left unfinished.
        let kept = faults::healed(|| store.read(&claim)).unwrap();
        let mut second = faults::healed(|| super::tests::store(data.path(), OutputRules::default()).0);
        assert_eq!(faults::healed(|| second.read(&claim)).unwrap(), kept, "{fault:?}");
        let _ = second.sweep(u64::MAX, &OutputStats::default());
        let left = faults::healed(|| second.read(&claim)).unwrap();
        assert!(left.is_none() || left == kept, "{fault:?}");
    });
}
