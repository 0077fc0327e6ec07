//! A rank's end of the group when NCCL carries its tensors: calls with tensors are put on the
//! device, all others go to the control communicator's endpoint.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::CudaDevice;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, sys::CUevent_flags};

use super::completion::until_done;
use super::failure::cuda;
use super::ffi::{Handle, Message, Progress, most_urgent};
use super::messages::{Gathers, Messages};
use super::watchdog::Watchdog;
use crate::group::call::Contribution;
use crate::group::liveness::Liveness;
use crate::group::points::Points;
use crate::group::{Endpoint, GroupMonitor, Patience, Received};
use crate::{Collective, Error, KeptFree, Result};

/// Longest time of an orderly departure.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// A rank's end of the backend.
pub struct NcclEndpoint<E: Endpoint> {
    device: CudaDevice,
    /// The stream that computes: candle's.
    compute: Arc<CudaStream>,
    /// The stream on which messages go.
    messages: Arc<CudaStream>,
    watchdog: Watchdog,
    gathers: Gathers,
    patience: Cell<Patience>,
    /// Multiprocessors that messages need, and those that they need now.
    multiprocessors: usize,
    kept_free: KeptFree,
    /// Bytes of the device that NCCL has taken for this rank.
    pub message_bytes: u64,
    /// Calls that were started and not waited for.
    in_flight: RefCell<BTreeMap<u64, CallInFlight>>,
    waits: RefCell<VecDeque<DeviceWait>>,
    /// The device has passed the last call that was waited for.
    passed: RefCell<Option<Arc<CudaEvent>>>,
    // Dropped last.
    inner: E,
}

/// A call that was started.
struct CallInFlight {
    messages: Messages,
    /// The end of its group.
    done: Arc<CudaEvent>,
}

/// The device's wait for a call, from one event to the other.
struct DeviceWait {
    sequence: u64,
    begins: CudaEvent,
    ends: Arc<CudaEvent>,
}

impl<E: Endpoint> NcclEndpoint<E> {
    /// The endpoint of a rank that NCCL has connected.
    pub fn new(
        inner: E,
        patience: Patience,
        device: CudaDevice,
        (handle, gathers): (Handle, Gathers),
        multiprocessors: usize,
    ) -> Result<Self> {
        let compute = device.cuda_stream();
        let context = Arc::clone(compute.context());
        // A message has priority over computation on every multiprocessor: other ranks wait for it.
        let made = most_urgent(&context).and_then(|urgent| context.new_stream_with_priority(urgent).map_err(cuda));
        let made = made.and_then(|messages| {
            let watchdog = Watchdog::start(handle, inner.monitor(), inner.rank(), context)?;
            Ok((messages, watchdog))
        });
        let (messages, watchdog) = made.map_err(|error| inner.kill(error))?;
        Ok(Self {
            device,
            compute,
            messages,
            watchdog,
            gathers,
            patience: Cell::new(patience),
            multiprocessors,
            kept_free: KeptFree::default(),
            message_bytes: 0,
            in_flight: RefCell::default(),
            waits: RefCell::default(),
            passed: RefCell::default(),
            inner,
        })
    }

    /// Puts the messages of calls that follow each other on the device, as one group with one end.
    fn fly(&self, first: u64, parts: Vec<Contribution>) -> Result<()> {
        let mut calls = Vec::with_capacity(parts.len());
        for (sequence, Contribution { call, payload }) in (first..).zip(parts) {
            let rank = self.inner.rank();
            if !call.fits(rank, &call, rank) {
                let (found, expected) = (call.to_string(), "what fits itself".to_owned());
                return Err(Error::Mismatch { sequence, rank, found, other: rank, expected });
            }
            let messages = Messages::new(rank, (&call, payload), self.gathers, &self.device, &self.compute)?;
            calls.push((sequence, call.kind(), messages));
        }
        // Other ranks' questions are answered with the last call: the device reaches all calls of a
        // group at once.
        let Some(&(sequence, kind, _)) = calls.last() else { return Ok(()) };
        let all: Vec<Message> = calls.iter().flat_map(|(.., messages)| &messages.messages).copied().collect();
        let launched = self.launch(sequence, kind, &all);
        let done = Arc::new(launched.map_err(|error| {
            // Memory that NCCL may still use is freed after its work, in the order of the device.
            let error = self.watchdog.end(error);
            let _ = self.compute.join(&self.messages);
            error
        })?);
        let in_flight = calls
            .into_iter()
            .map(|(sequence, _, messages)| (sequence, CallInFlight { messages, done: Arc::clone(&done) }));
        self.in_flight.borrow_mut().extend(in_flight);
        if !all.is_empty() {
            self.kept_free.set(self.multiprocessors);
        }
        Ok(())
    }

    /// Puts messages on the device, after the computation so far; gives their end.
    fn launch(&self, sequence: u64, kind: Collective, all: &[Message]) -> Result<CudaEvent> {
        let ready = self.compute.record_event(None).map_err(cuda)?;
        self.messages.wait(&ready).map_err(cuda)?;
        self.watchdog.calls_begin(sequence, kind, self.patience.get(), &self.messages)?;
        self.submit(sequence, kind, all)?;
        self.watchdog.calls_end(&self.messages)?;
        self.messages.record_event(None).map_err(cuda)
    }

    /// Hands the messages to NCCL. The first ones between two ranks connect them, and wait for each
    /// other.
    fn submit(&self, sequence: u64, kind: Collective, all: &[Message]) -> Result<()> {
        if all.is_empty() || self.watchdog.handle.submit(all, &self.messages)? == Progress::Done {
            return Ok(());
        }
        let patience = self.patience.get();
        self.watchdog.monitor.reach(sequence + 1, Some(kind));
        let late = || self.watchdog.overdue(sequence, kind, patience);
        until_done(&self.watchdog.handle, &*self.watchdog.monitor, patience.deadline, &late)
    }

    /// Makes the device wait for a call's end.
    fn land(&self, sequence: u64, call: CallInFlight) -> Result<Received> {
        let CallInFlight { messages, done } = call;
        let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let begins = self.compute.record_event(timed).map_err(cuda)?;
        self.compute.wait(&done).map_err(cuda)?;
        let ends = Arc::new(self.compute.record_event(timed).map_err(cuda)?);
        *self.passed.borrow_mut() = Some(Arc::clone(&ends));
        self.waits.borrow_mut().push_back(DeviceWait { sequence, begins, ends });
        Ok(Received { tensors: messages.into_tensors()?, bytes: Vec::new(), on_device: true })
    }

    /// Waits until the device has passed the last call that was waited for. The watching thread
    /// sees to it that it does, or that the group dies.
    fn pass(&self, limit: Option<Duration>) -> Result<()> {
        /// Time of looking without a rest, and the rest after it.
        const BUSY: Duration = Duration::from_micros(100);
        const REST: Duration = Duration::from_micros(20);
        let Some(passed) = self.passed.borrow_mut().take() else { return Ok(()) };
        let began = Instant::now();
        while !passed.try_is_complete().map_err(cuda)? {
            self.inner.alive()?;
            if limit.is_some_and(|limit| began.elapsed() > limit) {
                return Err(Error::StartTimeout(LEAVE_LIMIT));
            }
            if began.elapsed() > BUSY {
                std::thread::sleep(REST);
            } else {
                std::thread::yield_now();
            }
        }
        // A dead group's calls end too, and their received data is of no use.
        self.inner.alive()
    }

    /// Leaves NCCL in peace.
    fn leave(&self) -> Result<()> {
        self.inner.alive()?;
        self.pass(Some(LEAVE_LIMIT))?; // the watching thread has ended
        if self.watchdog.handle.finalize()? == Progress::Underway {
            let late = || Some(Error::StartTimeout(LEAVE_LIMIT));
            until_done(&self.watchdog.handle, &*self.watchdog.monitor, LEAVE_LIMIT, &late)?;
        }
        self.watchdog.handle.destroy();
        Ok(())
    }
}

impl<E: Endpoint> Endpoint for NcclEndpoint<E> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn liveness(&self) -> &Liveness {
        self.inner.liveness()
    }

    fn enter(&self, patience: Patience) {
        self.patience.set(patience);
        self.inner.enter(patience);
    }

    fn alive(&self) -> Result<()> {
        self.inner.alive()
    }

    fn put(&self, sequence: u64, part: Contribution) -> Result<()> {
        if part.call.form().is_some() {
            return self.put_all(sequence, vec![part]);
        }
        self.inner.alive()?;
        self.inner.put(sequence, part)
    }

    fn put_all(&self, first: u64, parts: Vec<Contribution>) -> Result<()> {
        self.inner.alive()?;
        if parts.iter().any(|part| part.call.form().is_none()) {
            return (first..).zip(parts).try_for_each(|(sequence, part)| self.put(sequence, part));
        }
        self.fly(first, parts).map_err(|error| self.kill(error))
    }

    fn take(&self, sequence: u64, patience: Patience) -> Result<Received> {
        if !self.in_flight.borrow().contains_key(&sequence) {
            return self.inner.take(sequence, patience);
        }
        // In a dead group the call stays: its memory is freed after NCCL has ended.
        self.inner.alive()?;
        let call = self.in_flight.borrow_mut().remove(&sequence).expect("it is there");
        if self.in_flight.borrow().is_empty() {
            self.kept_free.set(0);
        }
        self.land(sequence, call).map_err(|error| self.kill(error))
    }

    fn kill(&self, error: Error) -> Error {
        self.watchdog.end(error)
    }

    fn kept_free(&self) -> KeptFree {
        self.kept_free.clone()
    }

    fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    fn points(&self) -> &Points {
        self.inner.points()
    }

    fn monitor(&self) -> Arc<dyn GroupMonitor> {
        self.inner.monitor()
    }

    fn settle(&self) -> Result<()> {
        self.pass(None).map_err(|error| self.kill(error))
    }

    fn device_waits(&self) -> Vec<(u64, Duration)> {
        let mut waits = self.waits.borrow_mut();
        let mut known = Vec::new();
        // The waits are in the order of the device: after one that has not ended, none has.
        while let Some(wait) = waits.front() {
            if !wait.ends.is_complete() {
                break;
            }
            let elapsed_ms = wait.begins.elapsed_ms(&wait.ends).unwrap_or(0.0).max(0.0);
            known.push((wait.sequence, Duration::from_secs_f64(f64::from(elapsed_ms) / 1e3)));
            waits.pop_front();
        }
        known
    }
}

impl<E: Endpoint> Drop for NcclEndpoint<E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.kill(Error::panicked(self.inner.rank()));
        }
        self.watchdog.close();
        if self.in_flight.get_mut().is_empty() && self.leave().is_ok() {
            return;
        }
        self.watchdog.handle.abort();
        // Tensors that were received and not waited for are freed after it.
        let _ = self.compute.join(&self.messages);
    }
}
