//! One attempt's file: a header that says how much came before, and what was printed last.
//!
//! Nothing is synced: output survives the process, and after a power loss what is there of it is there. A file without
//! a whole header holds nothing.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use onward_log::changes;

use super::waiting::UnwrittenOutput;
use super::{CUT_BYTES, KEEP_BYTES};

/// Then `skipped`, 8 bytes, big-endian.
const MARK: [u8; 8] = *b"ONWOUT1\n";
const HEADER_BYTES: usize = 16;
/// The name of a file that is being written anew.
pub(super) const UNFINISHED: &str = "new";

/// The end of what an attempt has printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputTail {
    /// Bytes before `data` that are not kept.
    pub skipped: u64,
    pub data: Vec<u8>,
}

/// Adds to a file, or makes it; gives its size then, and how much of `more` is in it. If it fails, the file is as it was.
pub(super) fn append(path: &Path, more: &UnwrittenOutput) -> io::Result<AppendSummary> {
    let all = |size| AppendSummary { size, lost: None };
    let mut file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return replace(path, more.skipped, &[&more.data]).map(all);
        }
        Err(error) => return Err(error),
    };
    let size = file.metadata()?.len();
    let Some(skipped) = skipped_of(&mut file)? else { return replace(path, more.skipped, &[&more.data]).map(all) };
    let kept = size - HEADER_BYTES as u64;
    if more.skipped > 0 {
        return replace(path, skipped.saturating_add(kept).saturating_add(more.skipped), &[&more.data]).map(all);
    }
    if kept + more.data.len() as u64 > CUT_BYTES as u64 {
        let stays = KEEP_BYTES.saturating_sub(more.data.len()) as u64;
        let goes = kept.saturating_sub(stays);
        file.seek(SeekFrom::Start(HEADER_BYTES as u64 + goes))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        return replace(path, skipped.saturating_add(goes), &[&end, &more.data]).map(all);
    }
    file.seek(SeekFrom::Start(size))?;
    let Err(error) = changes::write_all(&mut file, &more.data) else { return Ok(all(size + more.data.len() as u64)) };
    // The part that was written would be counted twice.
    if changes::set_len(&file, size).is_ok() {
        return Err(error);
    }
    let size_now = file.metadata()?.len();
    Ok(AppendSummary { size: size_now, lost: Some((size + more.data.len() as u64 - size_now, error)) })
}

/// The result of adding to a file.
#[derive(Debug)]
pub(super) struct AppendSummary {
    pub(super) size: u64,
    /// Bytes at the end that were not written, and why, where only the beginning was and could not be taken back.
    pub(super) lost: Option<(u64, io::Error)>,
}

/// The last [`KEEP_BYTES`]; none if there is no such file.
pub(super) fn read(path: &Path) -> io::Result<Option<OutputTail>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(skipped) = skipped_of(&mut file)? else { return Ok(None) };
    let kept = file.metadata()?.len() - HEADER_BYTES as u64;
    let goes = kept.saturating_sub(KEEP_BYTES as u64);
    file.seek(SeekFrom::Start(HEADER_BYTES as u64 + goes))?;
    let mut data = Vec::new();
    file.read_to_end(&mut data)?;
    Ok(Some(OutputTail { skipped: skipped.saturating_add(goes), data }))
}

fn skipped_of(file: &mut File) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER_BYTES];
    match file.read_exact(&mut header) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let (mark, skipped) = header.split_at(MARK.len());
    Ok((mark == MARK).then(|| u64::from_be_bytes(skipped.try_into().expect("the other half"))))
}

/// Replaces the file, by way of another name, so that nobody ever finds half of it.
fn replace(path: &Path, skipped: u64, parts: &[&[u8]]) -> io::Result<u64> {
    let mut bytes = [MARK, skipped.to_be_bytes()].concat();
    for part in parts {
        bytes.extend_from_slice(part);
    }
    let unfinished = path.with_added_extension(UNFINISHED);
    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
    let mut file = changes::open(&options, &unfinished)?;
    let written = changes::write_all(&mut file, &bytes).and_then(|()| changes::rename(&unfinished, path));
    if written.is_err() {
        let _ = changes::remove_file(&unfinished);
    }
    written.map(|()| bytes.len() as u64)
}
