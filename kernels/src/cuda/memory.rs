//! Memory of a device: the free bytes, the pool that candle's tensors come from, and tensors made
//! from nothing or from a list.

use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{CudaDevice, DType, Device, Shape, Tensor};
use cudarc::driver::result::{device, mem_pool};
use cudarc::driver::sys;

use super::call::Output;
use super::device_info::{Memory, Pool};
use super::failure;
use crate::error::Result;

/// The free and total memory of a device. Does not wait for its work.
///
/// # Errors
/// Returns an error if the driver refuses, or if the device is no GPU.
pub fn memory(device: &Device) -> Result<Memory> {
    let context = device.as_cuda_device()?.cuda_stream().context().clone();
    let (free, total) = context.mem_get_info().map_err(failure::of)?;
    let pool = pool(device)?;
    let unused = pool.reserved_bytes - pool.used_bytes;
    // The two numbers are not of one moment: others may have taken or given memory between them.
    let free_bytes = (free as u64 + unused).min(total as u64);
    Ok(Memory { free_bytes, total_bytes: total as u64 })
}

/// The state of a device's pool. Does not wait for its work: memory that this work will free counts
/// as used.
///
/// # Errors
/// Returns an error if the driver refuses, or if the device is no GPU.
pub fn pool(device: &Device) -> Result<Pool> {
    let reserved_bytes = get(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    let used_bytes = get(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?.min(reserved_bytes);
    let used_high_bytes = get(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?;
    Ok(Pool { used_bytes, used_high_bytes, reserved_bytes })
}

/// The pool keeps freed memory, instead of returning it whenever the host waits.
pub(super) fn keep_freed(device: &Device) -> Result<()> {
    set(device, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)
}

fn handle(device: &Device) -> Result<sys::CUmemoryPool> {
    let ordinal = device.as_cuda_device()?.cuda_stream().context().ordinal();
    let handle = device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(failure::of)?;
    // SAFETY: the device is there: it has a context.
    unsafe { device::get_default_mem_pool(handle) }.map_err(failure::of)
}

fn get(device: &Device, attribute: sys::CUmemPool_attribute) -> Result<u64> {
    let mut value = 0u64;
    // SAFETY: the pool is the device's own; the attributes asked for here are 64-bit numbers.
    unsafe { mem_pool::get_attribute(handle(device)?, attribute, (&raw mut value).cast()) }.map_err(failure::of)?;
    Ok(value)
}

fn set(device: &Device, attribute: sys::CUmemPool_attribute, mut value: u64) -> Result<()> {
    // SAFETY: as above.
    unsafe { mem_pool::set_attribute(handle(device)?, attribute, (&raw mut value).cast()) }.map_err(failure::of)
}

/// A tensor with no elements, on any device (the driver gives no memory of 0 bytes, so it has room
/// for one).
///
/// # Panics
/// If the shape has elements: only a bug can do that.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn nothing(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    assert_eq!(shape.elem_count(), 0, "{shape:?} is not empty");
    match device {
        Device::Cuda(device) => Ok(Output::new(device, dtype, shape)?.tensor()),
        _ => Ok(Tensor::zeros(shape, dtype, device)?),
    }
}

/// A tensor of any device on the host. Waits for it: the driver only may.
///
/// # Errors
/// Returns an error if earlier work on the device failed.
pub fn download(tensor: &Tensor) -> Result<Tensor> {
    let here = tensor.to_device(&Device::Cpu)?;
    tensor.device().synchronize()?;
    Ok(here)
}

static UPLOADED: AtomicU64 = AtomicU64::new(0);

/// Bytes of the lists that this process has sent to devices.
pub fn uploaded_bytes() -> u64 {
    UPLOADED.load(Ordering::Relaxed)
}

/// Addresses on a device, as [`upload`] sends a list: two numbers each, the low half first.
///
/// # Errors
/// Returns an error if the driver refuses.
pub(super) fn upload_addresses(addresses: impl IntoIterator<Item = u64>, device: &CudaDevice) -> Result<Tensor> {
    let halves = |address: u64| [address as u32, (address >> 32) as u32];
    let list: Vec<u32> = addresses.into_iter().flat_map(halves).collect();
    upload(&list, &Device::Cuda(device.clone()))
}

/// A list on a device, `[len]`. The device's queue takes it; for a long list (some 64 KB) the
/// driver may let the host wait until the queue has come so far.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn upload(list: &[u32], device: &Device) -> Result<Tensor> {
    UPLOADED.fetch_add(size_of_val(list) as u64, Ordering::Relaxed);
    match list {
        [] => nothing(0, DType::U32, device),
        _ => Ok(Tensor::from_slice(list, list.len(), device)?),
    }
}
