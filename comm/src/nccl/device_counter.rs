//! A number in memory of the host that the device writes: how far a stream is, for a thread that
//! must not ask the driver.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use candle_core::cuda_backend::cudarc::driver::{CudaStream, sys};

use super::failure::cuda;
use crate::Result;

/// The number. It begins at 0.
pub struct DeviceCounter {
    /// Pinned memory of the host. It is never freed, because the device may still write there when
    /// the group has died: a page a communicator.
    host: &'static AtomicU32,
    /// The same memory as the device calls it.
    device: sys::CUdeviceptr,
}

impl DeviceCounter {
    /// Takes the memory. The thread's context is that of the streams which will write.
    ///
    /// # Errors
    /// Returns an error if the driver has no pinned memory left.
    pub fn new() -> Result<Self> {
        let (mut host, mut device) = (ptr::null_mut(), 0);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the driver writes an address to the place it is given.
        unsafe { sys::cuMemHostAlloc(&mut host, size_of::<AtomicU32>(), flags) }.result().map_err(cuda)?;
        // SAFETY: the memory was given out above, to be seen by devices; the driver writes an
        // address to the place it is given.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) }.result().map_err(cuda)?;
        // SAFETY: no other code has the memory yet. It is as large as the number, and aligned as
        // pages are.
        unsafe { ptr::write(host.cast::<AtomicU32>(), AtomicU32::new(0)) };
        // SAFETY: the memory holds a number now, is never freed, and is only ever touched as an
        // atomic number from here on.
        let host = unsafe { &*host.cast::<AtomicU32>() };
        Ok(Self { host, device })
    }

    /// Lets the device write `number` when `stream` has come so far.
    ///
    /// # Errors
    /// Returns an error if the CUDA driver fails.
    pub fn write(&self, stream: &CudaStream, number: u32) -> Result<()> {
        // The device first makes earlier writes visible.
        let flags = sys::CUstreamWriteValue_flags::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
        // SAFETY: the address is that of a number of four bytes which is never freed; the stream
        // lives.
        let outcome = unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), self.device, number, flags) };
        outcome.result().map_err(cuda)
    }

    /// The number that the device has written last. Makes no call to the driver.
    pub fn read(&self) -> u32 {
        self.host.load(Ordering::Acquire)
    }
}
