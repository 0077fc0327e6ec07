//! A case: its data, its timing, and its result.

use candle_core::{Device, Tensor};
use tributary_kernels::cuda::{DeviceEvent, pool};

/// Copies in front of a case: about 2 ms at the default size, longer than the host needs for any
/// case.
const COPIES: usize = 4;

/// Bound of a case.
#[derive(Clone, Copy, PartialEq)]
pub enum Bound {
    Products,
    Memory,
    Nothing,
}

/// A case whose tensors are made when its turn comes.
pub struct Planned {
    pub name: &'static str,
    /// PyTorch's name for the same work, if it has one.
    pub pytorch: Option<&'static str>,
    pub make: Box<dyn FnOnce() -> Case>,
}

impl Planned {
    pub fn new(name: &'static str, make: impl FnOnce() -> Case + 'static) -> Self {
        Self { name, pytorch: None, make: Box::new(make) }
    }

    pub fn beside(mut self, pytorch: &'static str) -> Self {
        self.pytorch = Some(pytorch);
        self
    }
}

pub struct Case {
    pub bound: Bound,
    pub operations: f64,
    pub bytes: f64,
    pub error: Option<f64>,
    /// Share of the pairs worked out that see each other.
    pub visible: Option<f64>,
    work: Box<dyn Fn() -> Tensor>,
}

impl Case {
    pub fn new(bound: Bound, operations: f64, bytes: f64, work: impl Fn() -> Tensor + 'static) -> Self {
        Self { bound, operations, bytes, error: None, visible: None, work: Box::new(work) }
    }

    pub fn with_error(self, error: f64) -> Self {
        Self { error: Some(error), ..self }
    }

    pub fn with_visible(self, visible: Option<f64>) -> Self {
        Self { visible, ..self }
    }

    /// Runs after copies of `before`; gives milliseconds, and whether the device reached the case
    /// before the host had submitted all of it.
    fn run(&self, device: &Device, before: &Tensor) -> (f64, bool) {
        let device = device.as_cuda_device().unwrap();
        for _ in 0..COPIES {
            drop(before.copy().unwrap());
        }
        let begin = DeviceEvent::record(device).unwrap();
        let result = (self.work)();
        let end = DeviceEvent::record(device).unwrap();
        let is_late = begin.has_passed();
        let ms = end.seconds_since(&begin).unwrap() * 1e3;
        drop(result);
        (ms, is_late)
    }
}

/// A case that has run.
pub struct Measured {
    pub bound: Bound,
    pub operations: f64,
    pub bytes: f64,
    pub error: Option<f64>,
    pub visible: Option<f64>,
    pub times_ms: Vec<f64>,
    /// Number of runs in which the device had to wait for the host.
    pub late: usize,
    /// Bytes by which the memory pool has grown after the case's first run.
    pub grown_bytes: u64,
}

impl Measured {
    /// Runs a case `rounds` times, after one run for the pool and for kernels that are not loaded
    /// yet.
    pub fn of(case: Case, rounds: usize, device: &Device, before: &Tensor) -> Self {
        case.run(device, before);
        let reserved = pool(device).unwrap().reserved_bytes;
        let runs: Vec<(f64, bool)> = (0..rounds).map(|_| case.run(device, before)).collect();
        let grown_bytes = pool(device).unwrap().reserved_bytes.saturating_sub(reserved);
        let Case { bound, operations, bytes, error, visible, .. } = case;
        let late = runs.iter().filter(|run| run.1).count();
        let times_ms = runs.into_iter().map(|run| run.0).collect();
        Self { bound, operations, bytes, error, visible, times_ms, late, grown_bytes }
    }

    pub fn median_ms(&self) -> f64 {
        let mut times = self.times_ms.clone();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}
