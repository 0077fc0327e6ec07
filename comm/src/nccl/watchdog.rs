//! The thread that watches a rank's calls on the device. No other thread of the rank can: it may be
//! blocked in the driver until the device has caught up, which it never does when another rank
//! stays away.
//!
//! It makes no call to the driver. A thread that adds a launch to a full stream waits in the driver
//! with the driver's lock held, and every call to the driver then waits for it. The device itself
//! writes its progress to memory of the host ([`DeviceCounter`]), and times are the host's.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use candle_core::cuda_backend::cudarc::driver::{CudaContext, CudaStream};

use super::device_counter::DeviceCounter;
use super::failure::cuda;
use super::ffi::Handle;
use crate::group::{GroupMonitor, LateRanks, Patience, Verdict};
use crate::{Collective, Error, Result};

/// Time between two looks while calls are in flight.
const LOOK: Duration = Duration::from_millis(5);

/// Calls that are put on the device as one group, and that it has not finished.
struct CallsInFlight {
    /// The last of them.
    sequence: u64,
    kind: Collective,
    patience: Patience,
    /// Number that the device writes when it reaches them; when they have ended, it writes the next
    /// number.
    begins: u32,
    /// The time at which the device was seen to have come to the call. The deadline counts from
    /// then: before, the device computes.
    ready_since: Option<Instant>,
}

/// The state that the watching thread shares with the rank's thread.
pub struct WatchedCalls {
    pub handle: Handle,
    pub monitor: Arc<dyn GroupMonitor>,
    pub rank: usize,
    context: Arc<CudaContext>,
    /// The counter by which the device says how far it is.
    counter: DeviceCounter,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The calls in their order, which is also the order of the device.
    in_flight: VecDeque<CallsInFlight>,
    /// Last number that the device was ordered to write.
    written: u32,
    closing: bool,
}

/// The watching thread. It ends with this.
pub struct Watchdog {
    watched: Arc<WatchedCalls>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to watch.
    pub fn start(
        handle: Handle,
        monitor: Arc<dyn GroupMonitor>,
        rank: usize,
        context: Arc<CudaContext>,
    ) -> Result<Self> {
        let (queue, counter) = (Mutex::new(Queue::default()), DeviceCounter::new()?);
        let watched =
            Arc::new(WatchedCalls { handle, monitor, rank, context, counter, queue, changed: Condvar::new() });
        let shared = Arc::clone(&watched);
        let thread = std::thread::Builder::new().name(format!("nccl-{rank}")).spawn(move || shared.watch());
        let thread = thread.map_err(|error| Error::Start(format!("no thread to watch NCCL: {error}")))?;
        Ok(Self { watched, thread: Some(thread) })
    }

    /// Puts a mark on a stream before the calls up to number `sequence`: the device reports when it
    /// reaches them.
    ///
    /// # Errors
    /// Returns an error if the CUDA driver fails.
    pub fn calls_begin(&self, sequence: u64, kind: Collective, patience: Patience, stream: &CudaStream) -> Result<()> {
        let begins = self.write_next(stream)?;
        let in_flight = CallsInFlight { sequence, kind, patience, begins, ready_since: None };
        self.watched.lock().in_flight.push_back(in_flight);
        self.watched.changed.notify_all();
        Ok(())
    }

    /// Puts a mark after those calls on the stream: the device reports when it has passed them.
    ///
    /// # Errors
    /// Returns an error if the CUDA driver fails.
    pub fn calls_end(&self, stream: &CudaStream) -> Result<()> {
        self.write_next(stream).map(drop)
    }

    /// Lets the device write the next number when the stream has come so far. The queue is not
    /// locked meanwhile: the driver may keep this thread.
    fn write_next(&self, stream: &CudaStream) -> Result<u32> {
        let next = self.watched.lock().written.wrapping_add(1);
        self.watched.counter.write(stream, next)?;
        self.watched.lock().written = next;
        Ok(next)
    }

    /// Ends the thread.
    pub fn close(&mut self) {
        self.watched.lock().closing = true;
        self.watched.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing; a panic has already been reported.
            let _ = thread.join();
        }
    }
}

impl std::ops::Deref for Watchdog {
    type Target = WatchedCalls;

    fn deref(&self) -> &WatchedCalls {
        &self.watched
    }
}

impl WatchedCalls {
    /// End of the group because a call has reached its deadline and no rank can complete it any
    /// more. Names the ranks whose devices have not reached it. None while a rank computes and
    /// makes progress.
    pub fn overdue(&self, sequence: u64, operation: Collective, patience: Patience) -> Option<Error> {
        let LateRanks { missing, mut states } = self.monitor.behind(sequence);
        match self.monitor.judge(&missing, patience) {
            Verdict::GoesOn => return None,
            Verdict::Stalled(error) => return Some(error),
            Verdict::Over(_) => {}
        }
        if missing.is_empty() {
            states.push("all have made it: their sizes differ, or a GPU or a link between two is stuck".to_owned());
        }
        let (phase, after) = (patience.phase, patience.deadline);
        Some(Error::Timeout { rank: self.rank, operation, sequence, phase, missing, states, after })
    }

    /// Ends the group, then the device's work for it. The order matters: a thread that wakes when
    /// the device's work ends must find the group dead, and must not use the tensors it has
    /// received.
    pub fn end(&self, error: Error) -> Error {
        let seen = self.monitor.kill(error);
        self.handle.abort();
        seen
    }

    fn watch(&self) {
        if let Err(error) = self.context.bind_to_thread() {
            self.end(cuda(error));
            return;
        }
        loop {
            let queue = self.lock();
            let idle = |queue: &mut Queue| !queue.closing && queue.in_flight.is_empty();
            let queue = self.changed.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            if queue.closing {
                return;
            }
            drop(queue);
            if let Err(error) = self.look() {
                self.end(error);
                return;
            }
            let queue = self.lock();
            let waited = self.changed.wait_timeout_while(queue, LOOK, |queue| !queue.closing);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Looks how far the device is.
    fn look(&self) -> Result<()> {
        self.monitor.alive()?;
        // While the rank's thread hands a call to NCCL, it looks itself.
        if let Some(progress) = self.handle.try_progress() {
            progress?;
        }
        let Some((sequence, kind, patience, since)) = self.oldest() else { return Ok(()) };
        if since.elapsed() <= patience.deadline {
            return Ok(());
        }
        let error = self.overdue(sequence, kind, patience);
        // The verdict takes its time: the call may have ended meanwhile.
        match (self.oldest(), error) {
            (Some((oldest, ..)), Some(error)) if oldest == sequence => Err(error),
            _ => Ok(()),
        }
    }

    /// The oldest call that the device has come to and not finished.
    fn oldest(&self) -> Option<(u64, Collective, Patience, Instant)> {
        let at = self.counter.read();
        // The numbers go round.
        let has_come_to = |number: u32| at.wrapping_sub(number) < u32::MAX / 2;
        let mut queue = self.lock();
        while let Some(first) = queue.in_flight.front_mut() {
            if has_come_to(first.begins.wrapping_add(1)) {
                self.monitor.reach(first.sequence + 1, None);
                queue.in_flight.pop_front();
                continue;
            }
            if first.ready_since.is_none() && has_come_to(first.begins) {
                self.monitor.reach(first.sequence + 1, Some(first.kind));
                first.ready_since = Some(Instant::now());
            }
            return first.ready_since.map(|since| (first.sequence, first.kind, first.patience, since));
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
