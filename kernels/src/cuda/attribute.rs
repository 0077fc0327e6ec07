//! Attributes of an open device.

use candle_core::CudaDevice;
use cudarc::driver::sys;

use super::failure;
use crate::error::Result;

/// Compute capability of a device.
pub fn capability(device: &CudaDevice) -> Result<(u32, u32)> {
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(failure::of)?;
    Ok((major.unsigned_abs(), minor.unsigned_abs()))
}

/// One of a device's numbers.
pub fn attribute(device: &CudaDevice, which: sys::CUdevice_attribute) -> Result<usize> {
    let value = device.cuda_stream().context().attribute(which).map_err(failure::of)?;
    Ok(usize::try_from(value).unwrap_or(0))
}
