//! Copies of a rotary embedding's tables on the devices that have asked for them.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::CudaDevice;
use candle_core::cuda::DeviceId;
use cudarc::driver::CudaSlice;

/// A rope's tables on one device.
#[derive(Debug)]
pub struct DeviceTables {
    /// `[positions, rotary_dims/2]`.
    pub cosine: CudaSlice<f32>,
    /// `[positions, rotary_dims/2]`.
    pub sine: CudaSlice<f32>,
}

/// The copies of one rope's tables on the devices that have asked for them.
#[derive(Debug, Default)]
pub struct RopeTables(Mutex<Vec<(DeviceId, Arc<DeviceTables>)>>);

impl RopeTables {
    /// The copy on a device; if there is none the new one becomes it.
    pub(super) fn stored(&self, device: &CudaDevice, new: Option<&Arc<DeviceTables>>) -> Option<Arc<DeviceTables>> {
        let mut copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = copies.iter().find(|(id, _)| *id == device.id()).map(|(_, tables)| tables.clone());
        found.or_else(|| {
            copies.extend(new.map(|tables| (device.id(), tables.clone())));
            new.cloned()
        })
    }
}
