//! Which job has an id: an index that reads a job only to confirm that it is the one.

use hashbrown::HashTable;

use crate::ids::JobId;

use super::JobKey;

/// A table that is full is built anew at twice the size, and nobody is served meanwhile. So there are many small ones,
/// which fill up one after another.
const TABLES: usize = 64;
/// Consecutive marks share a table in runs of two to this power.
const RUN_BITS: u32 = 12;

#[derive(Debug)]
pub(super) struct JobIds {
    tables: [HashTable<Entry>; TABLES],
}

impl Default for JobIds {
    fn default() -> Self {
        Self { tables: core::array::from_fn(|_| HashTable::new()) }
    }
}

/// The mark tells nearly all jobs apart, and says where the entry lies: those of other jobs are passed by, and the
/// table grows, without a look at jobs that nobody has touched for long.
#[derive(Clone, Copy, Debug)]
struct Entry {
    mark: u32,
    key: JobKey,
}

impl JobIds {
    pub(super) fn find(&self, id: JobId, is_it: impl Fn(JobKey) -> bool) -> Option<JobKey> {
        let mark = mark(id);
        self.tables[table(mark)]
            .find(place(mark), |entry| entry.mark == mark && is_it(entry.key))
            .map(|entry| entry.key)
    }

    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(HashTable::len).sum()
    }

    pub(super) fn insert(&mut self, id: JobId, key: JobKey) {
        let mark = mark(id);
        self.tables[table(mark)].insert_unique(place(mark), Entry { mark, key }, |entry| place(entry.mark));
    }

    pub(super) fn remove(&mut self, id: JobId, key: JobKey) {
        let mark = mark(id);
        let entry = self.tables[table(mark)].find_entry(place(mark), |entry| entry.key == key);
        entry.expect("every job is in the index").remove();
    }
}

/// Ids that were made one after another, as generators of version 7 do by counting within a millisecond, have marks one
/// after another. Ids that are random there have random ones.
fn mark(id: JobId) -> u32 {
    let raw = id.as_u128();
    let millisecond = (raw >> 80) as u32;
    let turn = (raw >> 32) as u32 & 0x3fff_ffff;
    millisecond.wrapping_mul(0x9e37_79b1).wrapping_add(turn)
}

fn table(mark: u32) -> usize {
    (mark >> RUN_BITS) as usize % TABLES
}

/// The lowest bits of a hash say where an entry lies, the highest seven tell it from its neighbours. Marks one after
/// another lie side by side: jobs that come and go together are found together.
fn place(mark: u32) -> u64 {
    let tag = mark.wrapping_mul(0x9e37_79b1) >> 25;
    u64::from(mark) | u64::from(tag) << 57
}

/// The hash of a workflow for an index of its own.
pub(super) fn hash_workflow(job: JobId, workflow: u16) -> u64 {
    place(mark(job)).wrapping_add(u64::from(workflow).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::time::Wall;

    #[test]
    fn finds_each_of_many_and_none_that_is_gone() {
        let ids: Vec<JobId> = (0..5_000)
            .map(|n: u64| JobId::v7(Wall::from_ms(n / 50), u128::from(n) << 32 | u128::from(n % 7)))
            .collect();
        let mut index = JobIds::default();
        let mut model = BTreeMap::new();
        let at = |key: JobKey| ids[key.index() - 1];
        for (n, id) in ids.iter().enumerate() {
            let key = JobKey::at(n as u32 + 1).unwrap();
            index.insert(*id, key);
            model.insert(*id, key);
            // One in three goes again, while the table grows.
            if n % 3 == 0 {
                let gone = ids[n / 3];
                index.remove(gone, model.remove(&gone).expect("each goes once"));
            }
        }
        for id in &ids {
            assert_eq!(index.find(*id, |key| at(key) == *id), model.get(id).copied());
        }
    }

    #[test]
    fn ids_with_one_mark_are_told_apart() {
        let ids = [0, 1, 1 << 62].map(JobId::from_u128);
        assert_eq!(ids.map(mark), [0; 3]);
        let mut index = JobIds::default();
        let keys = [1, 2, 3].map(|key| JobKey::at(key).unwrap());
        ids.into_iter().zip(keys).for_each(|(id, key)| index.insert(id, key));
        index.remove(ids[1], keys[1]);
        let found = ids.map(|id| index.find(id, |key| ids[key.index() - 1] == id));
        assert_eq!(found, [Some(keys[0]), None, Some(keys[2])]);
    }

    #[test]
    fn ids_made_one_after_another_lie_side_by_side() {
        let places = [0, 1, 2].map(|n: u128| place(mark(JobId::v7(Wall::from_ms(7), n << 32))) as u32);
        assert_eq!(places, [0, 1, 2].map(|n| places[0] + n));
    }
}
