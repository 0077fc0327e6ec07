//! Tensors of a device on the host.

use candle_core::{Device, Tensor};

/// Brings tensors to the host; they are there when this returns. A copy from a device is a piece of
/// its work like any other, which candle does not wait for; this waits once for all of them.
///
/// # Errors
/// Returns an error if the device refuses a copy, or if earlier work on it failed.
pub(crate) fn download<'a>(tensors: impl IntoIterator<Item = &'a mut Tensor>) -> candle_core::Result<()> {
    let mut device = None;
    for tensor in tensors {
        if !tensor.device().is_cpu() {
            device = Some(tensor.device().clone());
            *tensor = tensor.to_device(&Device::Cpu)?;
        }
    }
    device.map_or(Ok(()), |device| device.synchronize())
}
