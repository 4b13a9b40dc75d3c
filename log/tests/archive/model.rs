//! An archive as a list in memory, and changes that can be made to both.

use std::collections::BTreeMap;

use onward_log::{Archive, ArchivedJob, Blob, BlobDigest, EmbeddedArchive, Error};

use crate::samples::Draw;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model(BTreeMap<u128, Job>);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    ended_at: u64,
    expires_at: Option<u64>,
    row: Vec<u8>,
    blobs: BTreeMap<BlobDigest, Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    Put(Vec<(u128, Job)>),
    Expire { now: u64, keep_at_most: u64, max_rows: usize },
    Remove(u128),
}

impl Model {
    pub fn draw(&self, draw: &mut Draw) -> Change {
        match draw.below(8) {
            0..5 => {
                let count = 1 + draw.below(12);
                Change::Put((0..count).map(|_| (u128::from(draw.below(200)), Job::draw(draw))).collect())
            }
            5 | 6 => {
                let (now, keep_at_most) = (draw.below(60), draw.below(100));
                Change::Expire { now, keep_at_most, max_rows: draw.below(12) as usize }
            }
            _ => Change::Remove(u128::from(draw.below(200))),
        }
    }

    /// Gives how many jobs it took away.
    pub fn apply(&mut self, change: &Change) -> usize {
        match change {
            Change::Put(jobs) => {
                for (id, job) in jobs {
                    let before = self.0.remove(id).map(|before| before.blobs).unwrap_or_default();
                    self.0.insert(
                        *id,
                        Job { blobs: before.into_iter().chain(job.blobs.clone()).collect(), ..job.clone() },
                    );
                }
                0
            }
            Change::Remove(id) => usize::from(self.0.remove(id).is_some()),
            &Change::Expire { now, keep_at_most, max_rows } => {
                let mut removed = 0;
                while removed < max_rows {
                    let expired = self.0.iter().filter_map(|(id, job)| Some((job.expires_at?, *id)));
                    let next = expired.min().filter(|(at, _)| *at <= now).or_else(|| {
                        let oldest = self.0.iter().map(|(id, job)| (job.ended_at, *id)).min();
                        oldest.filter(|_| self.0.len() as u64 > keep_at_most)
                    });
                    let Some((_, id)) = next else { break };
                    self.0.remove(&id);
                    removed += 1;
                }
                removed
            }
        }
    }

    pub fn compare(&self, archive: &EmbeddedArchive) -> Result<(), String> {
        let wrong = |error: Error| error.to_string();
        if archive.count().map_err(wrong)? != self.0.len() as u64 {
            return Err(format!("it counts {:?}, and there are {}", archive.count(), self.0.len()));
        }
        let rows: Vec<_> = self.0.iter().rev().map(|(id, job)| (*id, job.row.clone())).collect();
        if archive.scan(None, usize::MAX, usize::MAX).map_err(wrong)?.rows != rows {
            return Err("the rows are others".to_owned());
        }
        for (id, job) in &self.0 {
            for (digest, bytes) in &job.blobs {
                if archive.blob(*id, digest).map_err(wrong)?.as_ref() != Some(bytes) {
                    return Err(format!("a blob of {id} is another"));
                }
            }
        }
        Ok(())
    }
}

impl Job {
    fn draw(draw: &mut Draw) -> Self {
        let most = if draw.chance(10) { 40_000 } else { 300 };
        let blobs = (0..draw.below(3)).map(|_| {
            // Under one digest there is one content.
            let name = draw.below(9);
            ([name as u8; 32], Draw::new(name).bytes(if name == 0 { 80_000 } else { 6000 }))
        });
        let blobs = blobs.collect();
        let expires_at = if draw.chance(3) { None } else { Some(draw.below(80)) };
        Self { ended_at: draw.below(60), expires_at, row: draw.bytes(most), blobs }
    }
}

impl Change {
    pub fn carry_out(&self, archive: &EmbeddedArchive) -> Result<usize, Error> {
        match self {
            Self::Remove(id) => archive.remove(*id).map(usize::from),
            &Self::Expire { now, keep_at_most, max_rows } => archive.expire(now, keep_at_most, max_rows),
            Self::Put(jobs) => {
                let blobs: Vec<Vec<Blob<'_>>> = jobs.iter().map(|(_, job)| job.blobs()).collect();
                let rows = jobs.iter().zip(&blobs).map(|((id, job), blobs)| ArchivedJob {
                    id: *id,
                    ended_at_ms: job.ended_at,
                    expires_at_ms: job.expires_at,
                    row: &job.row,
                    blobs,
                });
                archive.put(&rows.collect::<Vec<_>>()).map(|()| 0)
            }
        }
    }
}

impl Job {
    fn blobs(&self) -> Vec<Blob<'_>> {
        self.blobs.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect()
    }
}
