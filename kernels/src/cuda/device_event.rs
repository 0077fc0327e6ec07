//! A point in a device's work.

use std::sync::Arc;

use candle_core::CudaDevice;
use cudarc::driver::{CudaEvent, sys};

use super::failure;
use crate::error::Result;

/// A point in the work of a device's stream. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DeviceEvent(Arc<CudaEvent>);

impl DeviceEvent {
    /// The point after all work that the device has been given so far.
    ///
    /// # Errors
    /// Returns an error if the driver refuses.
    pub fn record(device: &CudaDevice) -> Result<Self> {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = device.cuda_stream().record_event(Some(flags)).map_err(failure::of)?;
        Ok(Self(Arc::new(event)))
    }

    /// Whether the device has come here. Does not wait.
    pub fn has_passed(&self) -> bool {
        self.0.is_complete()
    }

    /// Waits until the device has come here.
    ///
    /// # Errors
    /// Returns an error if earlier work on the device failed.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(failure::of)
    }

    /// Seconds of the device's clock from `earlier` to this. Waits for both.
    ///
    /// # Errors
    /// Returns an error if work before them failed, or if they are of different devices.
    pub fn seconds_since(&self, earlier: &DeviceEvent) -> Result<f64> {
        let milliseconds = earlier.0.elapsed_ms(&self.0).map_err(failure::of)?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}
