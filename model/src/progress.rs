//! The progress of a rank while it computes. Each layer of a pass, and each attention in it, is a
//! step; each tile of a kernel's work is progress within a step. On a device a step counts when the
//! device has passed it, not when the host has submitted it. A separate thread polls the device,
//! because the rank's thread may be blocked in the driver.
//!
//! A control point follows each layer of a prefill: only there all ranks check for cancellation,
//! and halt for steps of decoding ([`interleaved`]), so that no pass can omit the check. If the
//! request is cancelled during a layer, the process that knows of it skips the layer's tiles; the
//! next control point discards the layer. This module judges nothing: the group does
//! (`tributary_comm::Liveness`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use candle_core::Device;
use tributary_comm::{Liveness, Points, StepKind};
use tributary_kernels::{Moment, cuda, tiles};
use tributary_protocol::Word;

use crate::error::{Error, Result};

/// Interval at which the device is polled while it has open steps.
const LOOK: Duration = Duration::from_millis(5);

/// Maximum number of layers that the host submits ahead of the device: enough that the device never
/// waits, few enough that a cancellation at a control point comes in time.
const LAYERS_AHEAD: usize = 2;

scoped_tls_hkt::scoped_thread_local!(static INTERLUDE: for<'a> &'a (dyn Interlude + 'a));

/// Work of the ranks at a control point at which a pass halts.
pub trait Interlude {
    /// Does it; the pass goes on after that.
    ///
    /// # Errors
    /// Returns the failure, which ends the pass.
    fn run(&self) -> Result<()>;
}

/// Runs a pass, or several, that halt for an interlude where the word at a control point says so.
pub fn interleaved<T>(interlude: &dyn Interlude, passes: impl FnOnce() -> T) -> T {
    INTERLUDE.set(interlude, passes)
}

/// The record of a rank's steps. Clones record those of the same rank.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    liveness: Liveness,
    /// Absent on a CPU.
    device: Option<Arc<OnDevice>>,
    /// Absent if no point is passed: in decoding, in training, and in work of one rank alone.
    points: Option<Points>,
    /// Whether no rank waits at a point, and this one only checks for cancellation there.
    looks_only: bool,
    /// Whether the next point discards the current work if the request is cancelled.
    before_point: Arc<AtomicBool>,
    /// Whether a point has ended the pass: no other follows it.
    is_over: Arc<AtomicBool>,
    /// Number of slices in which a layer's rows are computed, the same on all ranks; 0 or 1 for a
    /// whole layer.
    slices: usize,
}

/// The thread that polls a device for its progress. Dropping this ends it.
#[derive(Debug)]
struct OnDevice {
    device: Device,
    shared: Arc<Shared>,
    /// Ends of the layers that the host submitted last.
    given: Mutex<VecDeque<Moment>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// The begin of each step and its layer, in the order of the device.
    steps: VecDeque<(Moment, usize)>,
    /// The layer that was submitted last.
    newest: usize,
    closing: bool,
}

impl Progress {
    /// The progress of a rank that computes on `device`.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub fn on(device: &Device, liveness: Liveness) -> Result<Self> {
        if device.is_cpu() {
            return Ok(Self { liveness, ..Self::default() });
        }
        let shared = Arc::new(Shared::default());
        let (asked, told, of) = (Arc::clone(&shared), liveness.clone(), device.clone());
        let ask = move || {
            // A device that cannot be polled makes no progress, and the rank ends for that reason.
            if cuda::attach_thread(&of).is_ok() {
                asked.ask(&told);
            }
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(ask);
        let thread = Some(
            thread.map_err(|error| tributary_comm::Error::Start(format!("no thread to watch the device: {error}")))?,
        );
        let given = Mutex::default();
        let on_device = OnDevice { device: device.clone(), shared, given, thread };
        Ok(Self { liveness, device: Some(Arc::new(on_device)), ..Self::default() })
    }

    /// The same with control points.
    #[must_use]
    pub fn passing(self, points: Points) -> Self {
        Self { points: Some(points), ..self }
    }

    /// The same without control points, for work that other ranks do not know of.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self { points: None, ..self.clone() }
    }

    /// The same for passes whose layers are computed in slices of their rows: there is a control
    /// point for each slice of the products before attention, of those after it, and of each
    /// attention that a pass cuts too. All ranks pass the same number.
    #[must_use]
    pub fn sliced(&self, slices: usize) -> Self {
        Self { slices, ..self.clone() }
    }

    /// Number of slices of a layer's rows, at least 1.
    pub fn slices(&self) -> usize {
        self.slices.max(1)
    }

    /// The same for work of rank 0 while the others wait for its result: at points it checks for
    /// cancellation alone.
    #[must_use]
    pub fn looking(&self) -> Self {
        Self { looks_only: true, ..self.clone() }
    }

    /// While the guard is held, the kernels that this thread calls report their tiles.
    pub fn telling(&self) -> tiles::Telling {
        // Without the thread that polls the device: it ends with the rank.
        let this = Self { device: None, ..self.clone() };
        tiles::telling(Arc::new(move || {
            this.liveness.tile();
            fail::fail_point!("model::tile");
            !this.is_vain()
        }))
    }

    /// A request begins.
    pub fn begin(&self, request: u64) {
        self.liveness.begin(request);
        self.is_over.store(false, Ordering::Relaxed);
        if let Some(points) = &self.points {
            points.begin(request);
        }
    }

    /// Runs a layer of a pass, and passes the control point after it.
    ///
    /// # Errors
    /// Returns an error if the layer or the device fails, or if a rank does not reach the point.
    /// Returns [`Error::Cancelled`] on every rank alike.
    pub fn layer<T, E: From<Error>>(&self, layer: usize, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.step(layer)?;
        let before = self.before_point.swap(self.points.is_some(), Ordering::Relaxed);
        let done = run();
        let is_vain = self.is_vain() && !self.is_over.load(Ordering::Relaxed);
        self.before_point.store(before, Ordering::Relaxed);
        if done.is_ok() || is_vain {
            // A failure of a layer without its tiles means nothing: the request ends here.
            self.point()?;
        }
        done
    }

    /// Whether the current work will be discarded, as far as this process knows.
    fn is_vain(&self) -> bool {
        self.before_point.load(Ordering::Relaxed) && self.points.as_ref().is_some_and(Points::is_cancelled)
    }

    /// Passes the control points of `layers` layers without work of its own, while other ranks run
    /// them and cut their attention once.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn idle_layers(&self, layers: usize) -> Result<()> {
        (0..layers).try_for_each(|_| {
            self.idle_slices()?;
            self.idle_rest_of_layer()
        })
    }

    /// Passes the control points of a layer after the products before its attention, without work
    /// of its own.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn idle_rest_of_layer(&self) -> Result<()> {
        self.idle_slices()?;
        (1..self.slices()).try_for_each(|_| self.point())?;
        self.point()
    }

    /// Passes the control points of a layer's slices at one place, without work of its own: none if
    /// layers are whole.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn idle_slices(&self) -> Result<()> {
        (0..self.slices()).try_for_each(|_| self.between_slices())
    }

    /// Passes the control point after a slice of a layer; there is none if layers are whole.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn between_slices(&self) -> Result<()> {
        if self.slices() == 1 { Ok(()) } else { self.point() }
    }

    /// Number of control points passed since the request began.
    pub fn point_count(&self) -> u64 {
        self.points.as_ref().map_or(0, Points::count)
    }

    /// Fails if the request is cancelled, as far as this rank knows: for rank 0, while the others
    /// wait for its result.
    ///
    /// # Errors
    /// Returns [`Error::Cancelled`] if the request is cancelled.
    pub fn look_up(&self) -> Result<()> {
        match self.points.as_ref().is_some_and(Points::is_cancelled) {
            true => Err(Error::Cancelled),
            false => Ok(()),
        }
    }

    fn point(&self) -> Result<()> {
        let Some(points) = &self.points else { return Ok(()) };
        if self.looks_only {
            return self.look_up();
        }
        if let Some(on) = &self.device {
            on.keep_up()?;
        }
        match points.pass()? {
            Word::Continue => Ok(()),
            Word::Cancel => {
                self.is_over.store(true, Ordering::Relaxed);
                Err(Error::Cancelled)
            }
            Word::Halt => {
                // Other requests' work is not in vain.
                let before = self.before_point.swap(false, Ordering::Relaxed);
                let done = INTERLUDE.with(|interlude| interlude.run());
                self.before_point.store(before, Ordering::Relaxed);
                // No further point may follow a failure, even of a cancelled request.
                self.is_over.fetch_or(done.is_err(), Ordering::Relaxed);
                done
            }
        }
    }

    /// A layer of a pass begins.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn step(&self, layer: usize) -> Result<()> {
        match &self.device {
            None => self.liveness.step(StepKind::Linear, Some(layer)),
            Some(on) => {
                let begins = Moment::now(&on.device)?;
                let mut queue = on.shared.lock();
                queue.steps.push_back((begins, layer));
                queue.newest = layer;
                drop(queue);
                on.shared.changed.notify_all();
            }
        }
        fail::fail_point!("model::layer");
        Ok(())
    }

    /// Records a tile of work whose kernel reports none.
    pub fn tile(&self) {
        self.liveness.tile();
    }

    /// Whether the rank computes on a device.
    pub fn on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Attention begins in the current layer.
    pub fn attention(&self) {
        if self.device.is_none() {
            self.liveness.turn_to(StepKind::Attention);
        }
    }

    /// A piece of a long attention has been submitted to the device: it counts when the device has
    /// passed it.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn piece(&self) -> Result<()> {
        if let Some(on) = &self.device {
            let given = Moment::now(&on.device)?;
            let mut queue = on.shared.lock();
            let layer = queue.newest;
            queue.steps.push_back((given, layer));
            drop(queue);
            on.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Attention has ended; the rest of the layer begins.
    pub fn attended(&self) {
        if self.device.is_none() {
            self.liveness.turn_to(StepKind::Linear);
        }
    }
}

impl Shared {
    fn ask(&self, liveness: &Liveness) {
        loop {
            let queue = self.lock();
            let idle = |queue: &mut Queue| !queue.closing && queue.steps.is_empty();
            let queue = self.changed.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
            if queue.closing {
                return;
            }
            let first = queue.steps.front().map(|(begins, layer)| (begins.clone(), *layer));
            drop(queue);
            // Outside the lock: a driver that hangs blocks only this thread.
            let Some((_, layer)) = first.filter(|(begins, _)| begins.has_passed()) else {
                std::thread::sleep(LOOK);
                continue;
            };
            liveness.step(StepKind::Linear, Some(layer));
            // The event is freed after the lock's release.
            let _passed = self.lock().steps.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnDevice {
    /// Waits until the device has almost caught up. The host submits layers much faster, and would
    /// reach all points of a pass before the device begins it.
    fn keep_up(&self) -> Result<()> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        given.push_back(Moment::now(&self.device)?);
        while given.len() > LAYERS_AHEAD {
            given.pop_front().expect("there is one").wait()?;
        }
        Ok(())
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread has no result; a panic has printed its message.
            let _ = thread.join();
        }
    }
}
