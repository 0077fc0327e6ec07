//! The cost to the host of giving a kernel to a device.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{CudaDevice, DType, Device, Tensor};
use cudarc::driver::{CudaGraph, CudaStream, sys};

use super::call::Output;
use super::inputs::input;
use super::{device, failure};
use crate::error::{Error, Result};

/// Kernels in a row: fewer than a stream takes before it makes the host wait.
const LAUNCHES: usize = 200;
/// Copies that keep the device at work meanwhile.
const COPIES: usize = 8;
const ROUNDS: usize = 5;

/// Microseconds of the host for one of many small kernels, medians.
#[derive(Debug, Clone)]
pub struct LaunchCost {
    /// The cost where every tensor keeps events that order it against other streams, as is cudarc's
    /// default.
    pub with_events_us: f64,
    /// The cost without events, as everything here runs.
    pub without_events_us: f64,
    /// The cost as part of a graph that was recorded once, without events; or why there is none.
    pub in_graph_us: std::result::Result<f64, String>,
}

/// Measures GPU number `ordinal` while it is busy with copies of `busy_bytes` each, so that the
/// host never waits for it.
///
/// # Errors
/// Returns an error if there is no such device, or if memory is short.
pub fn launch_cost(ordinal: usize, busy_bytes: usize) -> Result<LaunchCost> {
    let Device::Cuda(device) = device(ordinal)? else { unreachable!("a GPU was asked for") };
    let context = device.cuda_stream().context().clone();
    // A tensor has events or not from its creation on: each part has its own tensors.
    // SAFETY: the context object was made by `device` above and is not shared; tensors without
    // events, of which there is none yet, would stay on its one stream.
    unsafe { context.enable_event_tracking() };
    let host = Host::new(&device, busy_bytes)?;
    let with_events_us = host.median_us(|| host.kernels())?;
    drop(host);
    // SAFETY: as in `device`: all tensors stay on its one stream, which keeps them in order without
    // events.
    unsafe { context.disable_event_tracking() };
    let host = Host::new(&device, busy_bytes)?;
    let without_events_us = host.median_us(|| host.kernels())?;
    let in_graph_us = match host.record() {
        Ok(graph) => Ok(host.median_us(|| graph.launch().map_err(failure::of))?),
        Err(error) => Err(error.to_string()),
    };
    Ok(LaunchCost { with_events_us, without_events_us, in_graph_us })
}

struct Host {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    busy: Tensor,
    small: Tensor,
}

impl Host {
    fn new(device: &CudaDevice, busy_bytes: usize) -> Result<Self> {
        Ok(Self {
            stream: device.cuda_stream(),
            busy: Output::zeros_f32(device, busy_bytes / 4)?.tensor(),
            small: Output::zeros_f32(device, 4096)?.tensor(),
            device: device.clone(),
        })
    }

    fn kernels(&self) -> Result<()> {
        let sum = |x: Tensor, _| crate::add(&x, &self.small);
        (0..LAUNCHES).try_fold(self.small.clone(), sum).map(drop)
    }

    fn median_us(&self, work: impl Fn() -> Result<()>) -> Result<f64> {
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..=ROUNDS {
            let mut copy = Output::new(&self.device, DType::F32, self.busy.elem_count())?;
            for _ in 0..COPIES {
                copy.copy_from(&input(&self.busy)?, &self.stream)?;
            }
            let begin = Instant::now();
            work()?;
            let us = begin.elapsed().as_secs_f64() * 1e6 / LAUNCHES as f64;
            self.stream.synchronize().map_err(failure::of)?;
            if round > 0 {
                times.push(us); // the first one takes memory from the device
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[ROUNDS / 2])
    }

    /// The kernels as a graph; memory that they take and give back is part of it.
    fn record(&self) -> Result<CudaGraph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(failure::of)?;
        let given = self.kernels();
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0)).map_err(failure::of)?;
        given?;
        graph.ok_or_else(|| Error::NoDevice("the driver recorded nothing".to_owned()))
    }
}
