//! The system's allocator, which counts. A test program that names it as its global allocator sees
//! all that the program allocates; its tests take turns, since they share the counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// The system's allocator, which counts the bytes that are held, and the most that were.
pub struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);
static MOST: AtomicI64 = AtomicI64::new(0);

impl Counting {
    /// Bytes held now.
    pub fn held() -> i64 {
        HELD.load(Ordering::Relaxed)
    }

    /// The most bytes held since [`watch_from`](Self::watch_from).
    pub fn most() -> i64 {
        MOST.load(Ordering::Relaxed)
    }

    /// Watches anew for the most bytes, which are at least these.
    pub fn watch_from(held: i64) {
        MOST.store(held, Ordering::Relaxed);
    }
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Layout) -> *mut u8 {
        let held = HELD.fetch_add(memory.size() as i64, Ordering::Relaxed) + memory.size() as i64;
        MOST.fetch_max(held, Ordering::Relaxed);
        // SAFETY: as this function's own caller promises.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, place: *mut u8, memory: Layout) {
        HELD.fetch_sub(memory.size() as i64, Ordering::Relaxed);
        // SAFETY: as this function's own caller promises.
        unsafe { System.dealloc(place, memory) }
    }
}
