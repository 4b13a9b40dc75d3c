//! Changes to folders and to whole files, in one place, so that a test can make each of them fail. Bytes inside a
//! database or the journal go through its storage, which tests replace; reads do not pass here.
//!
//! The feature `faults` is for tests of crates that change files by this module.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    check()?;
    options.open(path)
}

/// An empty file that only its owner may read: payloads are somebody's secrets.
pub fn make_private(path: &Path) -> io::Result<()> {
    open(OpenOptions::new().write(true).create_new(true).mode(0o600), path).map(drop)
}

/// Makes a file if there is none, and brings it to the disk.
pub fn make_mark(path: &Path) -> io::Result<()> {
    check()?;
    File::create(path).and_then(|file| file.sync_all())
}

pub fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(any(test, feature = "faults"))]
    if let Err(error) = check() {
        file.write_all(&bytes[..faults::written_of(bytes.len())])?;
        return Err(error);
    }
    file.write_all(bytes)
}

pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    check()?;
    file.set_len(len)
}

pub fn sync_all(file: &File) -> io::Result<()> {
    check()?;
    file.sync_all()
}

/// Syncs a file or a folder. The name of a new file is not durable before its folder is.
pub fn sync(path: &Path) -> io::Result<()> {
    sync_all(&File::open(path)?)
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    check()?;
    fs::rename(from, to)
}

pub fn hard_link(from: &Path, to: &Path) -> io::Result<()> {
    check()?;
    fs::hard_link(from, to)
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    check()?;
    fs::remove_file(path)
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(not(any(test, feature = "faults")))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
const fn check() -> io::Result<()> {
    Ok(())
}

#[cfg(any(test, feature = "faults"))]
use faults::check;

/// Changes that fail: on the thread that a test runs on, or wherever the test says.
#[cfg(any(test, feature = "faults"))]
pub mod faults {
    use core::cell::{Cell, RefCell};
    use std::io;
    use std::sync::{Arc, Mutex};

    /// Which changes fail, and how.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ChangeFault {
        /// The first change that fails, counted from 1.
        from: u64,
        times: u64,
        errno: i32,
        /// Half of a write that fails is written.
        is_short: bool,
    }

    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;

    thread_local! {
        static FAULT: Cell<Option<ChangeFault>> = const { Cell::new(None) };
        static COUNT: Cell<u64> = const { Cell::new(0) };
        static IS_HEALED: Cell<bool> = const { Cell::new(true) };
        static AT_RANDOM: RefCell<Option<AtRandom>> = const { RefCell::new(None) };
        /// Half of the write that fails now is written.
        static IS_SHORT: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn check() -> io::Result<()> {
        if let Some((errno, is_short)) = AT_RANDOM.with_borrow(|faults| faults.as_ref()?.next()) {
            IS_SHORT.set(is_short);
            return Err(io::Error::from_raw_os_error(errno));
        }
        if IS_HEALED.get() {
            return Ok(());
        }
        COUNT.set(COUNT.get() + 1);
        match FAULT.get() {
            Some(ChangeFault { from, times, errno, is_short }) if COUNT.get() >= from && COUNT.get() - from < times => {
                IS_SHORT.set(is_short);
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn written_of(length: usize) -> usize {
        if IS_SHORT.get() { length / 2 } else { 0 }
    }

    /// Some of the changes made within it fail, on whichever thread. Clones are the same.
    #[derive(Clone, Default, Debug)]
    pub struct AtRandom(Arc<Mutex<Dice>>);

    #[derive(Default, Debug)]
    struct Dice {
        state: u64,
        /// Of so many changes about one fails; none at 0.
        one_in: u64,
        met: u64,
    }

    impl Dice {
        /// SplitMix64: a test needs no better dice, and its seed repeats them.
        fn roll(&mut self) -> u64 {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        }
    }

    impl AtRandom {
        pub fn new(seed: u64) -> Self {
            Self(Arc::new(Mutex::new(Dice { state: seed, ..Dice::default() })))
        }

        /// From now on about one change of so many fails.
        pub fn fail_one_in(&self, changes: u64) {
            self.dice().one_in = changes;
        }

        /// Nothing fails any more. Says how often something did.
        pub fn heal(&self) -> u64 {
            let mut dice = self.dice();
            dice.one_in = 0;
            core::mem::take(&mut dice.met)
        }

        /// Runs `work`, in which changes fail.
        pub fn within<T>(&self, work: impl FnOnce() -> T) -> T {
            let before = AT_RANDOM.replace(Some(self.clone()));
            let done = work();
            AT_RANDOM.set(before);
            done
        }

        fn next(&self) -> Option<(i32, bool)> {
            let mut dice = self.dice();
            if dice.one_in == 0 || !dice.roll().is_multiple_of(dice.one_in) {
                return None;
            }
            dice.met += 1;
            let roll = dice.roll();
            Some((if roll & 1 == 0 { EIO } else { ENOSPC }, roll & 2 == 0))
        }

        fn dice(&self) -> std::sync::MutexGuard<'_, Dice> {
            self.0.lock().expect("no thread panics while it holds this")
        }
    }

    /// Runs `work`, in which no change fails.
    pub fn healed<T>(work: impl FnOnce() -> T) -> T {
        let before = IS_HEALED.replace(true);
        let done = work();
        IS_HEALED.set(before);
        done
    }

    /// Lets no change fail in the rest of this case.
    pub fn heal() {
        IS_HEALED.set(true);
    }

    /// Runs `work` once without a fault, and then once for each change that it makes and each way in which that one can
    /// fail: once, twice, or from then on; with and without a part of what was to be written. Changes after [`heal`] and
    /// within [`healed`] do not fail.
    pub fn each(work: impl Fn(ChangeFault)) {
        let case = |fault: ChangeFault| {
            FAULT.set(Some(fault));
            COUNT.set(0);
            IS_HEALED.set(false);
            work(fault);
            IS_HEALED.set(true);
            COUNT.get()
        };
        let all = case(ChangeFault { from: 1, times: 0, errno: EIO, is_short: false });
        assert!(all > 0, "nothing is changed");
        for from in 1..=all {
            for times in [1, 2, u64::MAX] {
                for (errno, is_short) in [(EIO, false), (ENOSPC, true)] {
                    case(ChangeFault { from, times, errno, is_short });
                }
            }
        }
    }
}
