//! The progress of a rank while it computes: each layer of a pass, and each attention in it, is a step. On a device a
//! step counts when the device has passed it and not when the host has given it out; a thread of its own asks the device,
//! because the rank's thread may stand in the driver.
//!
//! It judges nothing: the group does (`tributary_comm::Liveness`).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use candle_core::Device;
use tributary_comm::{Liveness, StepKind};
use tributary_kernels::{Moment, cuda};

use crate::error::Result;

/// How often the device is asked while it has steps before it.
const LOOK: Duration = Duration::from_millis(5);

/// The record to which a rank tells its steps. Clones tell those of the same rank.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    liveness: Liveness,
    /// Absent on a CPU.
    device: Option<Arc<OnDevice>>,
}

/// The thread that asks a device how far it is. It ends with this.
#[derive(Debug)]
struct OnDevice {
    device: Device,
    shared: Arc<Shared>,
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
    closing: bool,
}

impl Progress {
    /// The progress of a rank that computes on `device`.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn on(device: &Device, liveness: Liveness) -> Result<Self> {
        if device.is_cpu() {
            return Ok(Self { liveness, device: None });
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
        Ok(Self { liveness, device: Some(Arc::new(OnDevice { device: device.clone(), shared, thread })) })
    }

    /// A request begins.
    pub fn begin(&self, request: u64) {
        self.liveness.begin(request);
    }

    /// A layer of a pass begins.
    ///
    /// # Errors
    /// The device's.
    pub fn layer(&self, layer: usize) -> Result<()> {
        match &self.device {
            None => self.liveness.step(StepKind::Linear, Some(layer)),
            Some(on) => {
                let begins = Moment::now(&on.device)?;
                on.shared.lock().steps.push_back((begins, layer));
                on.shared.changed.notify_all();
            }
        }
        fail::fail_point!("worker::layer");
        Ok(())
    }

    /// Attention begins in the layer that runs.
    pub fn attention(&self) {
        if self.device.is_none() {
            self.liveness.turn_to(StepKind::Attention);
        }
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
