//! Changes to small files, in one place, so that a test can make each of them fail. What is read goes past this.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

pub(crate) fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    check()?;
    options.open(path)
}

pub(crate) fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    if let Err(error) = check() {
        file.write_all(&bytes[..faults::written_of(bytes.len())])?;
        return Err(error);
    }
    file.write_all(bytes)
}

pub(crate) fn set_len(file: &File, len: u64) -> io::Result<()> {
    check()?;
    file.set_len(len)
}

pub(crate) fn sync_all(file: &File) -> io::Result<()> {
    check()?;
    file.sync_all()
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    check()?;
    fs::rename(from, to)
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    check()?;
    fs::remove_file(path)
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

    /// Which changes fail, and how.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct Fault {
        /// The first of them.
        pub(crate) from: u64,
        pub(crate) times: u64,
        pub(crate) errno: i32,
        /// Half of a write that fails is written.
        pub(crate) is_short: bool,
    }

    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;

    thread_local! {
        static FAULT: Cell<Option<Fault>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn check() -> io::Result<()> {
        COUNT.set(COUNT.get() + 1);
        match FAULT.get() {
            Some(Fault { from, times, errno, .. }) if COUNT.get() >= from && COUNT.get() - from < times => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn written_of(length: usize) -> usize {
        if FAULT.get().is_some_and(|fault| fault.is_short) { length / 2 } else { 0 }
    }

    /// Without faults; gives how many changes `work` makes.
    pub(crate) fn healed<T>(work: impl FnOnce() -> T) -> (T, u64) {
        let fault = FAULT.replace(None);
        let before = COUNT.get();
        let done = work();
        FAULT.set(fault);
        let made = COUNT.replace(before) - before;
        (done, made)
    }

    /// Runs `work` once for each change that it makes and each way in which that one can fail: once, twice, or from
    /// then on; with and without a part of what was to be written.
    pub(crate) fn each(work: impl Fn(Fault)) {
        let all = healed(|| work(Fault { from: 1, times: 0, errno: EIO, is_short: false })).1;
        assert!(all > 0, "nothing is changed");
        for from in 1..=all {
            for times in [1, 2, u64::MAX] {
                for (errno, is_short) in [(EIO, false), (ENOSPC, true)] {
                    let fault = Fault { from, times, errno, is_short };
                    FAULT.set(Some(fault));
                    COUNT.set(0);
                    work(fault);
                    FAULT.set(None);
                }
            }
        }
    }
}
