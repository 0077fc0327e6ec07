//! Devices: their number, their identity, and the one stream on which all of a device's work runs.

use candle_core::{CudaDevice, Device};
use cudarc::driver::{CudaContext, result, sys};

use super::device_info::Identity;
use super::{failure, memory, module};
use crate::error::{Error, Result};

/// The oldest CUDA whose drivers take the kernels' machine code, which is that of nvcc 13.0.
const OLDEST_DRIVER: (u32, u32) = (13, 0);

/// Number of GPUs that this process may use (`CUDA_VISIBLE_DEVICES` hides the others).
///
/// # Errors
/// Returns [`Error::NoDevice`] if the driver does not start: there is no GPU, or none that it can
/// use.
pub fn count() -> Result<usize> {
    match CudaContext::device_count() {
        Ok(count) => Ok(usize::try_from(count).expect("the driver counts devices from 0")),
        Err(error) => Err(Error::NoDevice(failure::words(error))),
    }
}

/// GPU number `ordinal` with its own stream, and all kernels loaded: a launch loads nothing, since
/// loading could wait for running kernels (NCCL's, which wait for other ranks). Freed memory stays
/// in the process's pool, so that it costs nothing to get it again.
///
/// Tensors carry no events that order one stream after another, which would cost some ten calls of
/// the driver an operation: all computation goes to this one stream. A caller with another stream
/// (for messages between GPUs) orders it by its own events, and holds tensors until this stream has
/// passed the other's use of them.
///
/// # Errors
/// Returns [`Error::NoDevice`] if no device has this number, if the kernels are not compiled for
/// it, or if the driver is older than the kernels' CUDA.
pub fn device(ordinal: usize) -> Result<Device> {
    let who = identity(ordinal)?;
    if who.driver < OLDEST_DRIVER {
        let ((major, minor), (needed, needed_minor)) = (who.driver, OLDEST_DRIVER);
        return Err(Error::NoDevice(format!(
            "its driver knows CUDA {major}.{minor}, and this program is built for {needed}.{needed_minor}: \
             install NVIDIA's driver 580 or newer"
        )));
    }
    if !module::runs_on(who.capability) {
        let (major, minor) = who.capability;
        let name = &who.name;
        return Err(Error::NoDevice(format!(
            "{name} has compute capability {major}.{minor}; the kernels are compiled for 8.0 to 8.9 and 9.0"
        )));
    }
    let device = CudaDevice::new_with_stream(ordinal)?;
    // SAFETY: this device's tensors are made, used and freed in the order of its one stream;
    // comm::nccl, which has a second one, orders it by its own events and frees nothing before the
    // first stream has waited for them.
    unsafe { device.disable_event_tracking() };
    module::load(&device)?;
    let device = Device::Cuda(device);
    memory::keep_freed(&device)?;
    Ok(device)
}

/// The identity of GPU number `ordinal`.
///
/// # Errors
/// Returns [`Error::NoDevice`] if no device has this number.
pub fn identity(ordinal: usize) -> Result<Identity> {
    let count = count()?;
    if ordinal >= count {
        return Err(Error::NoDevice(format!("number {ordinal} of {count}, counted from 0")));
    }
    let handle =
        result::device::get(i32::try_from(ordinal).expect("it is below the driver's count")).map_err(failure::of)?;
    let attribute = |which: sys::CUdevice_attribute| -> Result<u32> {
        // SAFETY: the handle is the driver's own, of a device that is there.
        let value = unsafe { result::device::get_attribute(handle, which) }.map_err(failure::of)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let uuid = result::device::get_uuid(handle).map_err(failure::of)?.bytes.map(|byte| byte as u8);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let groups = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
    let major = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let domain = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    // SAFETY: as above.
    let memory_bytes = unsafe { result::device::total_mem(handle) }.map_err(failure::of)? as u64;
    Ok(Identity {
        name: result::device::get_name(handle).map_err(failure::of)?,
        uuid: format!("GPU-{}", groups.join("-")),
        bus_id: format!("{domain:04x}:{bus:02x}:{slot:02x}.0"),
        capability: (major, minor),
        memory_bytes,
        driver: driver_version()?,
    })
}

/// Lets this thread ask the device's driver: a thread that was not the one to open a device does
/// this first.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn attach_thread(device: &Device) -> Result<()> {
    match device {
        Device::Cuda(device) => device.cuda_stream().context().bind_to_thread().map_err(failure::of),
        _ => Ok(()),
    }
}

/// The newest CUDA that the driver knows.
fn driver_version() -> Result<(u32, u32)> {
    let mut version = 0;
    // SAFETY: the driver writes one number to the place it is given.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failure::of)?;
    let version = u32::try_from(version).unwrap_or(0);
    Ok((version / 1000, version % 1000 / 10))
}
