//! Batches: all or nothing, and keys that meet within one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use onward_core::effect::AcceptedJob;
use onward_core::job::Draft;
use onward_core::refusal::Refusal;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::rig::*;

/// A key and a body, both of few.
type SentBatch = (Option<u64>, u64);

/// The answer to a batch, found the long way round: which submission each is, as its index; or which of them is the
/// first that conflicts.
fn expected(batch: &[SentBatch], known: &BTreeMap<u64, u64>) -> Result<Vec<Option<usize>>, usize> {
    let mut first = Vec::new();
    for (at, (key, body)) in batch.iter().enumerate() {
        let Some(key) = key else {
            first.push(Some(at));
            continue;
        };
        let before = batch[..at].iter().position(|(earlier, _)| *earlier == Some(*key));
        match (known.get(key), before) {
            (Some(of_known), _) if of_known == body => first.push(None),
            (Some(_), _) => return Err(at),
            (None, Some(earlier)) if batch[earlier].1 == *body => first.push(Some(earlier)),
            (None, Some(_)) => return Err(at),
            (None, None) => first.push(Some(at)),
        }
    }
    Ok(first)
}

/// The time that a batch of this many takes, with or without a key for each job; the shortest of several.
fn shortest(jobs: usize, has_keys: bool) -> Duration {
    let once = || {
        let mut rig = Rig::new();
        let draft = |n: usize| Draft {
            idempotency_key: has_keys.then(|| format!("key-{n}").into()),
            ..Draft::of_kind("k", bytes("1"))
        };
        let drafts: Vec<Draft> = (0..jobs).map(draft).collect();
        let began = Instant::now();
        assert_eq!(rig.submit_all(drafts).unwrap().len(), jobs);
        began.elapsed()
    };
    (0..3).map(|_| once()).min().expect("there are some")
}

/// Keys cost something for each job, and nothing for each pair of jobs: compared in pairs, a batch of so many takes tens
/// of times as long.
#[test]
fn a_batch_with_keys_takes_a_few_times_as_long_as_one_without() {
    let (without, with) = (shortest(10_000, false), shortest(10_000, true));
    assert!(with < 8 * without, "{with:?} with keys, {without:?} without");
}

#[test]
fn keys_that_meet_in_a_batch_give_the_first_job_or_a_conflict_for_all() {
    let mut rng = ChaCha8Rng::seed_from_u64(14);
    let mut below = |bound: u64| rng.next_u64() % bound;
    let (mut stored, mut refused, mut repeated) = (0, 0, 0);
    for _ in 0..200 {
        let mut rig = Rig::new();
        let (mut known, mut ids) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..4 {
            let keys = 3 + below(40);
            let batch: Vec<SentBatch> =
                (0..1 + below(12)).map(|_| ((below(4) > 0).then(|| below(keys)), below(12) / 11)).collect();
            let draft = |(key, body): &SentBatch| Draft {
                idempotency_key: key.map(|key| format!("{key}").into()),
                ..Draft::of_kind("k", bytes(&format!("{body}")))
            };
            let answer = rig.submit_all(batch.iter().map(draft).collect());
            let first = match expected(&batch, &known) {
                Ok(first) => first,
                Err(index) => {
                    let cause = Box::new(Refusal::Conflict);
                    assert_eq!(answer, Err(Refusal::InBatch { index, cause }), "{batch:?} after {known:?}");
                    refused += 1;
                    continue;
                }
            };
            stored += 1;
            let accepted: Vec<AcceptedJob> = answer.unwrap();
            for (at, (got, first)) in accepted.iter().zip(&first).enumerate() {
                let of_key = batch[at].0.and_then(|key| ids.get(&key).copied());
                let id = first.map_or_else(|| of_key.unwrap(), |first| accepted[first].id);
                assert_eq!(*got, AcceptedJob { id, duplicate: *first != Some(at) }, "{at} of {batch:?}");
                repeated += usize::from(got.duplicate);
            }
            for ((key, body), got) in batch.iter().zip(&accepted) {
                if let Some(key) = key {
                    known.insert(*key, *body);
                    ids.insert(*key, got.id);
                }
            }
        }
    }
    assert!(stored > 100 && refused > 100 && repeated > 100, "{stored} {refused} {repeated}");
}
