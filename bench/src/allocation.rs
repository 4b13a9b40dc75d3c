//! Counts what is allocated, so that memory per thing can be printed instead of guessed. The allocator behind it is the
//! one that Onward's programs use: see `docs/decisions/0007-allocator.md`.

#![allow(unsafe_code, reason = "an allocator cannot be written without it; it only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
pub struct CountingAllocator;

// SAFETY: every call is passed on unchanged to the allocator behind it.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        LIVE_BYTES.fetch_add(new_size, Ordering::Relaxed);
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.realloc(pointer, layout, new_size) }
    }
}

/// Bytes asked for and not given back.
pub fn live_bytes() -> usize {
    LIVE_BYTES.load(Ordering::Relaxed)
}
