//! Changes to folders and to files as a whole, in one place, so that a test can make each of them fail. What is written
//! into a database or the journal goes through its storage, which tests replace.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An empty file that only its owner may read: payloads are somebody's secrets.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    check()?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

/// Makes a file if there is none, and brings it to the disk.
pub(crate) fn make_mark(path: &Path) -> io::Result<()> {
    check()?;
    File::create(path).and_then(|file| file.sync_all())
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    check()?;
    fs::rename(from, to)
}

pub(crate) fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    check()?;
    fs::hard_link(from, to)
}

pub(crate) fn remove_if_there(path: &Path) -> io::Result<()> {
    check()?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A file or a folder. The name of a new file is not durable before its folder is.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    check()?;
    File::open(path)?.sync_all()
}

#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
const fn check() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::check;

/// Of the thread that a test runs on.
#[cfg(test)]
pub(crate) mod faults {
    use core::cell::Cell;
    use std::io;

    const ENOSPC: i32 = 28;

    thread_local! {
        /// The first change that fails, and how many do.
        static FAULT: Cell<(u64, u64)> = const { Cell::new((u64::MAX, 0)) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn check() -> io::Result<()> {
        COUNT.set(COUNT.get() + 1);
        let (from, times) = FAULT.get();
        let fails = COUNT.get() >= from && COUNT.get() - from < times;
        if fails { Err(io::Error::from_raw_os_error(ENOSPC)) } else { Ok(()) }
    }

    /// Runs `work` once without a fault, and then once for each change that it makes, which fails: once, or from then
    /// on. `work` is told which; nothing fails any more once it has called what it is given.
    pub(crate) fn each(work: impl Fn(&str, &dyn Fn())) {
        COUNT.set(0);
        let all = Cell::new(0);
        let heal = || {
            all.set(COUNT.get());
            FAULT.set((u64::MAX, 0));
        };
        work("no change fails", &heal);
        assert!(all.get() > 0, "nothing is changed");
        for from in 1..=all.get() {
            for times in [1, u64::MAX] {
                COUNT.set(0);
                FAULT.set((from, times));
                work(&format!("change {from} fails, {times} times"), &|| FAULT.set((u64::MAX, 0)));
            }
        }
    }
}
