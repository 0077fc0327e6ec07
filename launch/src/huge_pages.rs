//! The allocator: mimalloc, with large memory in huge pages where the system has them.
//!
//! Weights and keys are read from one end to the other for every token, and each page of 4 KiB that
//! is read costs a walk through the page tables, on a virtual machine a long one.

use std::alloc::{GlobalAlloc, Layout};

use mimalloc::MiMalloc;
use rustix::mm::{Advice, madvise};

/// Bytes of a huge page, as most machines have them.
const PAGE: usize = 2 << 20;
/// Least bytes of memory that is asked for in huge pages. What mimalloc makes of such memory once
/// it is freed stays in them.
const LEAST: usize = 2 * PAGE;

/// See the module.
pub(crate) struct Allocator;

/// Asks for huge pages within `bytes` of memory at `at`. They come with the first write to each, if
/// the system grants them; the memory is the same without.
fn in_huge_pages(at: *mut u8, bytes: usize) -> *mut u8 {
    if bytes >= LEAST && !at.is_null() {
        let before = at.align_offset(PAGE);
        let whole = bytes.saturating_sub(before) / PAGE * PAGE;
        if whole > 0 {
            // SAFETY: this is memory of one allocation, of which the advice changes no byte.
            _ = unsafe { madvise(at.add(before).cast(), whole, Advice::LinuxHugepage) };
        }
    }
    at
}

// SAFETY: every call is mimalloc's; advice changes no memory.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        in_huge_pages(unsafe { MiMalloc.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises.
        in_huge_pages(unsafe { MiMalloc.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises.
        unsafe { MiMalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promises.
        in_huge_pages(unsafe { MiMalloc.realloc(at, layout, bytes) }, bytes)
    }
}
