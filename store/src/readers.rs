//! The threads that read chunks ahead of use. Their callers decide on source and target.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Reading that can be done in steps, by several threads at once, the step that is needed first
/// before the others.
pub trait Steps: Send + Sync {
    /// Does the next step that no other thread does. Returns whether there was one.
    fn step(&self) -> bool;
}

/// The threads. They end with this, once the step that each is at has ended.
#[derive(Debug)]
pub struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<dyn Steps>>,
    closing: bool,
}

impl Readers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn start(count: usize) -> io::Result<Self> {
        let mut readers = Self { shared: Arc::default(), threads: Vec::new() };
        for index in 0..count {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name(format!("chunk-read-{index}"));
            readers.threads.push(thread.spawn(move || shared.read())?);
        }
        Ok(readers)
    }

    /// Has something read, in turn with all else that is being read.
    pub fn read(&self, steps: Arc<dyn Steps>) {
        self.shared.lock().waiting.push_back(steps);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) {
        loop {
            let idle = |queue: &mut Queue| !queue.closing && queue.waiting.is_empty();
            let mut queue = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            if queue.closing {
                return;
            }
            let Some(steps) = queue.waiting.pop_front() else { continue };
            // In turn: several ranks of a process read at once.
            queue.waiting.push_back(Arc::clone(&steps));
            drop(queue);
            if !steps.step() {
                self.lock().waiting.retain(|other| !Arc::ptr_eq(other, &steps));
            }
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        // A thread that the system holds in a read is not waited for: it has nothing to give any
        // more.
        for thread in self.threads.drain(..).filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Numbers that are sent one by one.
    struct Count(Mutex<u32>, Sender<(u32, u32)>, u32);

    impl Steps for Count {
        fn step(&self) -> bool {
            let mut left = self.0.lock().expect("no thread has panicked");
            let more = *left > 0;
            if more {
                *left -= 1;
                let _ = self.1.send((self.2, *left));
            }
            more
        }
    }

    #[test]
    fn every_step_is_done_once_and_nobody_waits_for_another_to_end() {
        let readers = Readers::start(2).expect("threads");
        let (tell, told) = channel();
        let count = |number, steps| Arc::new(Count(Mutex::new(steps), tell.clone(), number));
        let long = count(1, 10_000);
        // No step is done before both are there.
        let held = long.0.lock().expect("no thread has panicked");
        readers.read(long.clone());
        readers.read(count(2, 3));
        drop(held);
        let next = || told.recv_timeout(Duration::from_secs(10)).expect("a step in time");
        let mut seen: Vec<(u32, u32)> = (0..10_003).map(|_| next()).collect();
        let last_of_short = seen.iter().rposition(|(number, _)| *number == 2).expect("its steps");
        assert!(last_of_short < 10_000, "in turn: {last_of_short}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_003);
    }
}
