//! Sharing tasks among the threads of the current pool.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tiles;

/// Does `work` on every task, taken in order by free threads. Each thread makes its scratch once,
/// and only if it gets a task. A task's result must not depend on the thread, so neither does the
/// whole. Returns whether the result is wanted: if not, some tasks are left out.
pub(super) fn run<T: Send, S>(tasks: Vec<T>, scratch: impl Fn() -> S + Sync, work: impl Fn(&mut S, T) + Sync) -> bool {
    let threads = rayon::current_num_threads().min(tasks.len());
    let (queue, told, wanted) = (Mutex::new(tasks.into_iter()), tiles::told(), AtomicBool::new(true));
    let worker = || {
        let mut own = None;
        loop {
            let next = queue.lock().expect("no thread panics while it holds the queue").next();
            match next {
                Some(task) => {
                    work(own.get_or_insert_with(&scratch), task);
                    if !tiles::done() {
                        wanted.store(false, Ordering::Relaxed);
                        return;
                    }
                }
                None => return,
            }
        }
    };
    if threads <= 1 {
        worker();
        return wanted.into_inner();
    }
    rayon::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| tiles::as_told(told.as_ref(), worker));
        }
        // Called from outside the pool, this runs on one of its threads, which has no listener.
        tiles::as_told(told.as_ref(), worker);
    });
    wanted.into_inner()
}
