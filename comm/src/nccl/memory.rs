//! Memory of a device, as NCCL's calls need it: bytes in use, room for received tensors, and
//! addresses of tensors.

use candle_core::backend::{BackendDevice as _, BackendStorage as _};
use candle_core::cuda_backend::CudaStorageSlice;
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use candle_core::{CudaDevice, CudaStorage, DType, Shape, Storage, Tensor, op::BackpropOp};
use cudarc::driver::sys as driver;

use super::failure::{self, cuda};
use crate::{Error, Result};

/// Free bytes of the GPU of this thread's context; none if the driver does not answer, as after a
/// failed kernel.
pub fn free_bytes() -> Option<u64> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the driver writes two numbers to the places it is given; without a context it
    // refuses.
    unsafe { driver::cuMemGetInfo_v2(&mut free, &mut total) }.result().ok()?;
    Some(free as u64)
}

/// Bytes of a device that are in use, by any process, outside the pool of tensors. The device's
/// context becomes this thread's.
///
/// # Errors
/// Returns an error if the driver refuses.
pub fn outside_the_pool_bytes(device: &CudaDevice) -> Result<u64> {
    let context = device.cuda_stream().context().clone();
    context.bind_to_thread().map_err(cuda)?;
    let (free, total) = context.mem_get_info().map_err(cuda)?;
    let (mut pool, mut reserved) = (std::ptr::null_mut(), 0u64);
    // SAFETY: the driver writes the pool's handle to the place it is given.
    unsafe { driver::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()) }.result().map_err(cuda)?;
    let which = driver::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    // SAFETY: the pool is the device's own, and this attribute is a number of 64 bits.
    unsafe { driver::cuMemPoolGetAttribute(pool, which, (&raw mut reserved).cast()) }.result().map_err(cuda)?;
    Ok((total.saturating_sub(free) as u64).saturating_sub(reserved))
}

/// Device memory for the data that a call receives.
pub struct Buffer {
    storage: CudaStorage,
    dims: Vec<usize>,
}

impl Buffer {
    /// Memory for a tensor, allocated in the order of the device's stream. Its content is
    /// undefined.
    pub fn new(device: &CudaDevice, dtype: DType, dims: Vec<usize>) -> Result<Self> {
        // The pool gives no memory of no bytes.
        let count = dims.iter().product::<usize>().max(1);
        // SAFETY: no code reads it before the call that fills it has ended: it becomes a tensor
        // only then.
        let storage = unsafe { device.alloc_uninit(&Shape::from(count), dtype) };
        let storage = storage.map_err(|error| failure::received(error, count * dtype.size_in_bytes()))?;
        Ok(Self { storage, dims })
    }

    /// The address of the memory. Work that is put on `stream` from now on finds it allocated.
    pub fn address(&mut self, stream: &CudaStream) -> Result<u64> {
        place_of(&mut self.storage, stream)
    }

    /// The tensor, once the computing stream has passed the call that fills it.
    pub fn into_tensor(self) -> Tensor {
        Tensor::from_storage(Storage::Cuda(self.storage), self.dims, BackpropOp::none(), false)
    }
}

/// Does the same with the slice of any dtype that candle computes with.
macro_rules! with_slice {
    ($storage:expr, $slice:ident => $body:expr) => {
        match $storage {
            CudaStorageSlice::U8($slice) => Ok($body),
            CudaStorageSlice::U32($slice) => Ok($body),
            CudaStorageSlice::I16($slice) => Ok($body),
            CudaStorageSlice::I32($slice) => Ok($body),
            CudaStorageSlice::I64($slice) => Ok($body),
            CudaStorageSlice::BF16($slice) => Ok($body),
            CudaStorageSlice::F16($slice) => Ok($body),
            CudaStorageSlice::F32($slice) => Ok($body),
            CudaStorageSlice::F64($slice) => Ok($body),
            _ => Err(Error::Tensor("NCCL carries no tensors of this dtype".to_owned())),
        }
    };
}

fn place_of(storage: &mut CudaStorage, stream: &CudaStream) -> Result<u64> {
    fn of<T>(slice: &mut CudaSlice<T>, stream: &CudaStream) -> u64 {
        slice.device_ptr_mut(stream).0
    }
    with_slice!(&mut storage.slice, slice => of(slice, stream))
}

/// The address of a tensor's data, which must be contiguous and on a GPU. `stream` has passed all
/// earlier writes to it.
pub fn address_of(tensor: &Tensor, stream: &CudaStream) -> Result<u64> {
    fn of<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> u64 {
        slice.device_ptr(stream).0
    }
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return Err(Error::Tensor(format!("NCCL carries tensors on a GPU, this one is on {:?}", tensor.device())));
    };
    let start_bytes = (layout.start_offset() * storage.dtype().size_in_bytes()) as u64;
    let address: Result<u64> = with_slice!(&storage.slice, slice => of(slice, stream));
    Ok(address? + start_bytes)
}
