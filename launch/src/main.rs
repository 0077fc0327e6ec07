//! The `tributary` command.

use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};

mod huge_pages;

#[global_allocator]
static ALLOCATOR: huge_pages::Allocator = huge_pages::Allocator;

/// mimalloc's option of how long it keeps memory that was freed before it gives it back to the
/// system (`mi_option_purge_delay`).
const PURGE_DELAY: mi_option_t = 15;

/// Memory that a request frees is taken by the next one, some seconds later. A new page from the
/// system costs up to 4 µs on a virtual machine: a quarter of a warm request's time. The
/// environment's MIMALLOC_PURGE_DELAY takes precedence.
const PURGE_DELAY_MS: i64 = 30_000;

/// Runs before Rust's own start, which would put `/dev/null` in the place of a closed standard
/// output.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = look_at_stdout;

extern "C" fn look_at_stdout() {
    // SAFETY: the number is only asked about, which is allowed whether anything is open there or
    // not.
    let stdout = unsafe { BorrowedFd::borrow_raw(1) };
    let is_closed = rustix::io::fcntl_getfd(stdout) == Err(rustix::io::Errno::BADF);
    tributary::stdout::WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

fn main() -> ExitCode {
    // SAFETY: the option is one of mimalloc's, any delay is allowed, and no other thread is there
    // yet that could read or set it.
    unsafe { mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    tributary::command::main()
}
