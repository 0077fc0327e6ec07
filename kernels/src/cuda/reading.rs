//! Addresses of device memory. With an address comes what the driver must know of its use: it is kept until the launch is in
//! the stream.

use candle_core::cuda_backend::CudaDType;
use candle_core::{Layout, Storage, Tensor};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};

use crate::error::Result;

/// An address and the record of its use.
pub(super) type Address<'a> = (u64, SyncOnDrop<'a>);

/// Where a slice begins, to be read.
pub(super) fn of<'a, T>(slice: &'a CudaSlice<T>, stream: &'a CudaStream) -> Address<'a> {
    slice.device_ptr(stream)
}

/// Where a slice begins, to be written.
pub(super) fn of_mut<'a, T>(slice: &'a mut CudaSlice<T>, stream: &'a CudaStream) -> Address<'a> {
    slice.device_ptr_mut(stream)
}

/// Contiguous tensors on a device, held so that their storage stays where it is.
pub(super) struct Reading<'t> {
    held: Vec<(std::sync::RwLockReadGuard<'t, Storage>, &'t Layout)>,
}

impl<'t> Reading<'t> {
    /// Holds these tensors.
    pub fn new(tensors: impl IntoIterator<Item = &'t Tensor>) -> Self {
        Self { held: tensors.into_iter().map(Tensor::storage_and_layout).collect() }
    }

    /// Holds keys and values, block by block.
    pub fn of_pairs(pairs: &'t [(Tensor, Tensor)]) -> Self {
        Self::new(pairs.iter().flat_map(|(k, v)| [k, v]))
    }

    /// Where tensor `index` begins.
    ///
    /// # Errors
    /// It is not on a device, or of another type.
    pub fn address<'a, T: CudaDType>(&'a self, index: usize, stream: &'a CudaStream) -> Result<Address<'a>> {
        let (storage, layout) = &self.held[index];
        let Storage::Cuda(storage) = &**storage else {
            return Err(candle_core::Error::Msg("a tensor that should be on the device is not".to_owned()).into());
        };
        let (begin, used) = of(storage.as_cuda_slice::<T>()?, stream);
        Ok((begin + (layout.start_offset() * size_of::<T>()) as u64, used))
    }

    /// Where keys and values begin, block by block.
    ///
    /// # Errors
    /// As [`address`](Self::address).
    pub fn pairs<'a, T: CudaDType>(&'a self, stream: &'a CudaStream) -> Result<Vec<(Address<'a>, Address<'a>)>> {
        let pair = |index: usize| Ok((self.address::<T>(2 * index, stream)?, self.address::<T>(2 * index + 1, stream)?));
        (0..self.held.len() / 2).map(pair).collect()
    }
}
