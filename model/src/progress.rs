//! The progress of a rank while it computes: each layer of a pass, and each attention in it, is a
//! step, and each tile of a kernel's work is progress within it. On a device a step counts when the
//! device has passed it and not when the host has given it out; a thread of its own asks the
//! device, because the rank's thread may stand in the driver.
//!
//! Behind each layer of a prefill stands a control point: here, and nowhere else, ranks look up
//! together, so that no pass can leave it out. A layer whose request is cancelled meanwhile leaves
//! out its tiles in the process that knows it: the point after it throws the layer away. It judges
//! nothing: the group does (`tributary_comm::Liveness`).

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

/// How often the device is asked while it has steps before it.
const LOOK: Duration = Duration::from_millis(5);

/// How many layers the host may give out ahead of the device: enough that the device never waits,
/// few enough that a word at a control point comes in time.
const LAYERS_AHEAD: usize = 2;

/// The record to which a rank tells its steps. Clones tell those of the same rank.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    liveness: Liveness,
    /// Absent on a CPU.
    device: Option<Arc<OnDevice>>,
    /// Absent where no point is passed: in decoding, in training, and in work that a rank does
    /// alone.
    points: Option<Points>,
    /// Whether no rank waits at a point, and this one only looks there.
    looks_only: bool,
    /// Whether what is computed now is thrown away at the next point if the request is cancelled.
    before_point: Arc<AtomicBool>,
}

/// The thread that asks a device how far it is. It ends with this.
#[derive(Debug)]
struct OnDevice {
    device: Device,
    shared: Arc<Shared>,
    /// The ends of the layers that the host has given out last.
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
    /// In the order of the device: the point at which a step begins, and its layer.
    steps: VecDeque<(Moment, usize)>,
    /// The layer that was given out last.
    newest: usize,
    closing: bool,
}

impl Progress {
    /// The progress of a rank that computes on `device`.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn on(device: &Device, liveness: Liveness) -> Result<Self> {
        if device.is_cpu() {
            return Ok(Self { liveness, ..Self::default() });
        }
        let shared = Arc::new(Shared::default());
        let (asked, told, of) = (Arc::clone(&shared), liveness.clone(), device.clone());
        let ask = move || {
            // A device that cannot be asked makes no progress, and the rank ends by that.
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

    /// The same without control points, for work of which other ranks do not know.
    #[must_use]
    pub fn alone(&self) -> Self {
        Self { points: None, ..self.clone() }
    }

    /// The same for work of rank 0 while the others wait for what comes of it: points are places
    /// where it looks alone.
    #[must_use]
    pub fn looking(&self) -> Self {
        Self { looks_only: true, ..self.clone() }
    }

    /// While this is held, the kernels that this thread calls tell of their tiles.
    pub fn telling(&self) -> tiles::Telling {
        // Without the thread that asks the device: that ends with the rank.
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
        if let Some(points) = &self.points {
            points.begin(request);
        }
    }

    /// Runs a layer of a pass, and passes the control point behind it.
    ///
    /// # Errors
    /// The layer's; the device's; [`Error::Cancelled`] on every rank alike; a rank that does not
    /// come to the point.
    pub fn layer<T, E: From<Error>>(&self, layer: usize, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.step(layer)?;
        let before = self.before_point.swap(self.points.is_some(), Ordering::Relaxed);
        let done = run();
        let is_vain = self.is_vain();
        self.before_point.store(before, Ordering::Relaxed);
        if done.is_ok() || is_vain {
            // What a layer without its tiles complains of is nothing: it ends here.
            self.point()?;
        }
        done
    }

    /// Whether what is computed now is thrown away, as far as this process knows.
    fn is_vain(&self) -> bool {
        self.before_point.load(Ordering::Relaxed) && self.points.as_ref().is_some_and(Points::is_cancelled)
    }

    /// Passes so many control points without work of its own, while other ranks run as many layers.
    ///
    /// # Errors
    /// As [`layer`](Self::layer).
    pub fn idle_layers(&self, layers: usize) -> Result<()> {
        (0..layers).try_for_each(|_| self.point())
    }

    /// How many control points have been passed since the request began.
    pub fn point_count(&self) -> u64 {
        self.points.as_ref().map_or(0, Points::count)
    }

    /// Fails where the request is to be cancelled, as far as this rank knows: rank 0 does, whose
    /// answer others wait for.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
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
            Word::Cancel => Err(Error::Cancelled),
        }
    }

    /// A layer of a pass begins.
    ///
    /// # Errors
    /// The device's.
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

    /// Something gets on that tells no tile by itself.
    pub fn tile(&self) {
        self.liveness.tile();
    }

    /// Whether the rank computes on a device.
    pub fn on_device(&self) -> bool {
        self.device.is_some()
    }

    /// Attention begins in the layer that runs.
    pub fn attention(&self) {
        if self.device.is_none() {
            self.liveness.turn_to(StepKind::Attention);
        }
    }

    /// A piece of a long attention has been given to the device: it counts when the device has
    /// passed it.
    ///
    /// # Errors
    /// The device's.
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

    /// Attention has ended; the rest of the layer goes on.
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
            // Outside of the lock: a driver that hangs holds up nobody but this thread.
            let Some((_, layer)) = first.filter(|(begins, _)| begins.has_passed()) else {
                std::thread::sleep(LOOK);
                continue;
            };
            liveness.step(StepKind::Linear, Some(layer));
            // The event is freed behind the lock's end.
            let _passed = self.lock().steps.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OnDevice {
    /// Waits until the device is near: the host, which gives out layers much faster, would come to
    /// all points of a pass before the device has begun with it.
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
            // It has nothing to give; a panic has told itself.
            let _ = thread.join();
        }
    }
}
