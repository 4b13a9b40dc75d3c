//! Large payloads and results, beside the batches that name them.

use core::fmt;
use std::sync::Arc;

use crate::Error;

/// The SHA-256 of a blob's content, by which it is found. The log takes its writer's word for it.
pub type BlobDigest = [u8; 32];

/// Content that is stored with a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Blob<'a> {
    pub digest: BlobDigest,
    pub bytes: &'a [u8],
}

/// A blob on its way: see [`GroupCommit`](crate::GroupCommit).
#[derive(Clone, PartialEq, Eq)]
pub struct OwnedBlob {
    pub digest: BlobDigest,
    pub bytes: Arc<[u8]>,
}

impl OwnedBlob {
    pub fn as_blob(&self) -> Blob<'_> {
        Blob { digest: self.digest, bytes: &self.bytes }
    }
}

/// Reads blobs from any thread, also while a commit is under way, and without waiting for it. It keeps the log open,
/// as a handle does.
#[derive(Clone)]
pub struct BlobReader(Arc<BlobLookup>);

type BlobLookup = dyn Fn(&BlobDigest) -> Result<Option<Vec<u8>>, Error> + Send + Sync;

impl BlobReader {
    /// A reader that asks this function.
    pub fn new(read: impl Fn(&BlobDigest) -> Result<Option<Vec<u8>>, Error> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The content, as [`Log::blob`](crate::Log::blob) gives it.
    pub fn blob(&self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        (self.0)(digest)
    }
}

impl fmt::Debug for BlobReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlobReader")
    }
}

/// Shown without the content, which may be large, and somebody's secret.
impl fmt::Debug for Blob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(f, &self.digest, self.bytes.len())
    }
}

impl fmt::Debug for OwnedBlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(f, &self.digest, self.bytes.len())
    }
}

fn shown(f: &mut fmt::Formatter<'_>, digest: &BlobDigest, bytes: usize) -> fmt::Result {
    let [a, b, c, d, ..] = digest;
    write!(f, "Blob({a:02x}{b:02x}{c:02x}{d:02x}…, {bytes} bytes)")
}
