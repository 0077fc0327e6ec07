//! A kernel launch: tensors become addresses, held until it is given to the stream, and numbers
//! become words.

use std::sync::Arc;

use candle_core::backend::BackendStorage;
use candle_core::cuda::{CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Shape, Storage, StorageRef, Tensor};
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg, SyncOnDrop,
};

use super::{failure, module};
use crate::error::{Error, Result};

/// Applies an expression to the slice of a storage of any type.
macro_rules! with_slice {
    ($storage:expr, $slice:ident => $answer:expr) => {
        match $storage {
            CudaStorageSlice::U8($slice) => Some($answer),
            CudaStorageSlice::U32($slice) => Some($answer),
            CudaStorageSlice::I64($slice) => Some($answer),
            CudaStorageSlice::BF16($slice) => Some($answer),
            CudaStorageSlice::F16($slice) => Some($answer),
            CudaStorageSlice::F32($slice) => Some($answer),
            CudaStorageSlice::F64($slice) => Some($answer),
            _ => None,
        }
    };
}

/// The address of memory for work on `stream` that reads; the work must be given to the stream
/// before the guard is dropped.
pub fn address<'a>(slice: &'a CudaStorageSlice, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
    with_slice!(slice, slice => slice.device_ptr(stream)).expect("candle makes tensors of the types listed here")
}

/// The same for work that writes.
pub fn address_mut<'a>(slice: &'a mut CudaStorageSlice, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
    with_slice!(slice, slice => slice.device_ptr_mut(stream)).expect("candle makes tensors of the types listed here")
}

/// A tensor on a GPU, held while a kernel that reads it is launched.
pub struct Input<'t> {
    storage: StorageRef<'t>,
    offset_bytes: u64,
}

impl<'t> Input<'t> {
    /// Holds a tensor of any layout: the address is that of the first element. `None` for a tensor
    /// that is not on a GPU.
    pub fn new(tensor: &'t Tensor) -> Option<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cuda(_) => {
                let offset_bytes = (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64;
                Some(Self { storage, offset_bytes })
            }
            _ => None,
        }
    }

    /// The device that holds it.
    pub fn device(&self) -> &CudaDevice {
        self.storage().device()
    }

    fn storage(&self) -> &CudaStorage {
        match &*self.storage {
            Storage::Cuda(storage) => storage,
            _ => unreachable!("checked when it was made"),
        }
    }

    /// The address of the first element for work on `stream`; the work must be given to the stream
    /// before the guard is dropped.
    pub fn address<'a>(&'a self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        let (address, guard) = address(&self.storage().slice, stream);
        (address + self.offset_bytes, guard)
    }
}

/// Fresh memory on a GPU that a kernel fills; becomes a tensor.
pub struct Output {
    storage: CudaStorage,
    shape: Shape,
}

impl Output {
    /// Uninitialised memory: all of it must have been filled before the tensor is taken.
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn new(device: &CudaDevice, dtype: DType, shape: impl Into<Shape>) -> Result<Self> {
        let (shape, stream) = (shape.into(), device.cuda_stream());
        let count = shape.elem_count().max(1); // the driver gives no memory of 0 bytes
        macro_rules! slice {
            ($variant:ident, $type:ty) => {
                // SAFETY: any bits are a value of these types, and the kernel that fills it runs
                // before any reader.
                CudaStorageSlice::$variant(unsafe { stream.alloc::<$type>(count) }.w()?)
            };
        }
        let slice = match dtype {
            DType::U8 => slice!(U8, u8),
            DType::U32 => slice!(U32, u32),
            DType::I64 => slice!(I64, i64),
            DType::BF16 => slice!(BF16, half::bf16),
            DType::F16 => slice!(F16, half::f16),
            DType::F32 => slice!(F32, f32),
            DType::F64 => slice!(F64, f64),
            other => {
                let found = format!("{other:?}");
                return Err(Error::Shape { op: "cuda", what: "dtype", expected: "a plain number".into(), found });
            }
        };
        Ok(Self { storage: CudaStorage { slice, device: device.clone() }, shape })
    }

    /// Zeros in f32.
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn zeros_f32(device: &CudaDevice, count: usize) -> Result<Self> {
        let slice = CudaStorageSlice::F32(device.cuda_stream().alloc_zeros(count.max(1)).w()?);
        Ok(Self { storage: CudaStorage { slice, device: device.clone() }, shape: count.into() })
    }

    /// The address for work on `stream` that writes; the work must be given to the stream before
    /// the guard is dropped.
    pub fn address<'a>(&'a mut self, stream: &'a CudaStream) -> (u64, SyncOnDrop<'a>) {
        address_mut(&mut self.storage.slice, stream)
    }

    /// Fills it with the bytes of a contiguous tensor of the same size and type.
    ///
    /// # Errors
    /// Returns an error if the driver refuses.
    pub fn copy_from(&mut self, from: &Input<'_>, stream: &CudaStream) -> Result<()> {
        let bytes = self.shape.elem_count() * self.storage.dtype().size_in_bytes();
        let ((from, _from), (to, _to)) = (from.address(stream), self.address(stream));
        // SAFETY: both are memory of this device with at least that number of bytes, held until the
        // copy is given to the stream.
        unsafe { cudarc::driver::result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.map_err(failure::of)
    }

    /// The tensor, once everything that fills it has been given to the device.
    pub fn tensor(self) -> Tensor {
        Tensor::from_storage(Storage::Cuda(self.storage), self.shape, BackpropOp::none(), false)
    }
}

/// A launch in the making. Arguments are pushed in the order of the kernel's parameters.
pub struct Call<'a> {
    function: CudaFunction,
    stream: &'a CudaStream,
    arguments: Vec<Vec<u64>>,
    guards: Vec<SyncOnDrop<'a>>,
    /// The bitwise or of all addresses: its low zero bits are common to all.
    places: u64,
}

impl<'a> Call<'a> {
    /// The kernel `name` of `kernels/cu`, on the device's stream.
    ///
    /// # Errors
    /// Returns an error if there is no kernel of this name, or if the driver refuses the kernels at
    /// the device's first use.
    pub fn new(device: &CudaDevice, stream: &'a Arc<CudaStream>, name: &str) -> Result<Self> {
        let function = module::function(device, name)?;
        Ok(Self { function, stream, arguments: Vec::new(), guards: Vec::new(), places: 0 })
    }

    /// Pushes the address of memory that the kernel writes.
    pub fn output(&mut self, output: &'a mut Output) -> &mut Self {
        let address = self.address_of_output(output);
        self.word(address)
    }

    /// Pushes the address of a tensor that the kernel reads.
    pub fn input(&mut self, input: &'a Input<'_>) -> &mut Self {
        let address = self.address_of(input);
        self.word(address)
    }

    /// Pushes the address of memory that the kernel reads.
    pub fn slice<T>(&mut self, slice: &'a CudaSlice<T>) -> &mut Self {
        let (address, guard) = slice.device_ptr(self.stream);
        self.guards.push(guard);
        self.places |= address;
        self.word(address)
    }

    /// The address of a tensor that the kernel reads, to be part of a block.
    pub fn address_of(&mut self, input: &'a Input<'_>) -> u64 {
        let (address, guard) = input.address(self.stream);
        self.guards.push(guard);
        self.places |= address;
        address
    }

    /// The address of memory that the kernel writes, to be part of a block.
    pub fn address_of_output(&mut self, output: &'a mut Output) -> u64 {
        let (address, guard) = output.address(self.stream);
        self.guards.push(guard);
        self.places |= address;
        address
    }

    /// The address of memory that is no tensor, to be part of a block.
    pub fn address_of_slice<T>(&mut self, slice: &'a CudaSlice<T>) -> u64 {
        let (address, guard) = slice.device_ptr(self.stream);
        self.guards.push(guard);
        address
    }

    /// Pushes 1 if all addresses so far and these strides, in bytes, are multiples of 16, else 0.
    pub fn aligned(&mut self, strides: &[usize]) -> &mut Self {
        let aligned = self.alignment(strides) >= 16;
        self.word(u64::from(aligned))
    }

    /// The largest power of two, up to 16, that divides all addresses so far and these numbers of
    /// bytes.
    pub fn alignment(&self, bytes: &[usize]) -> usize {
        let all = bytes.iter().fold(self.places, |all, &bytes| all | bytes as u64);
        1 << all.trailing_zeros().min(4)
    }

    /// Pushes an integer of up to 8 bytes, or an address. (A narrower parameter takes the low
    /// bytes.)
    pub fn word(&mut self, word: u64) -> &mut Self {
        self.block(vec![word])
    }

    /// Pushes a count.
    pub fn count(&mut self, count: usize) -> &mut Self {
        self.word(count as u64)
    }

    /// Pushes an f32.
    pub fn real(&mut self, x: f32) -> &mut Self {
        self.word(u64::from(x.to_bits()))
    }

    /// Pushes a struct, as its 8-byte words.
    pub fn block(&mut self, words: Vec<u64>) -> &mut Self {
        self.arguments.push(words);
        self
    }

    /// Gives the kernel to the stream.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, and all its accesses must be within their memory.
    ///
    /// # Errors
    /// Returns an error if the driver refuses.
    pub unsafe fn launch(self, grid: (u32, u32, u32), block_threads: u32, shared_bytes: u32) -> Result<()> {
        let mut launch = self.stream.launch_builder(&self.function);
        for words in &self.arguments {
            launch.arg(&words[0]); // only its address counts
        }
        let config = LaunchConfig { grid_dim: grid, block_dim: (block_threads, 1, 1), shared_mem_bytes: shared_bytes };
        // SAFETY: the caller promises the conditions that the driver cannot check.
        unsafe { launch.launch(config) }.map_err(failure::of)?;
        drop(self.guards);
        Ok(())
    }
}

/// Number of blocks of `block_threads` threads for `threads` threads.
///
/// # Errors
/// Returns an error if there are more blocks than a grid can have.
pub fn blocks(threads: usize, block_threads: u32) -> Result<(u32, u32, u32)> {
    match i32::try_from(threads.div_ceil(block_threads as usize)) {
        Ok(count) => Ok((count.unsigned_abs(), 1, 1)),
        Err(_) => {
            let found = threads.to_string();
            Err(Error::Shape { op: "cuda", what: "threads", expected: "fewer than 2^31 blocks".into(), found })
        }
    }
}

/// The end of a kernel's name for tensors of this type, if it has one.
pub fn suffix(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::BF16 => Some("bf16"),
        DType::F16 => Some("f16"),
        DType::F32 => Some("f32"),
        _ => None,
    }
}

/// Whether a GPU holds these tensors, and no gradient is wanted.
pub fn ours(tensors: &[&Tensor]) -> bool {
    tensors.iter().all(|tensor| tensor.device().is_cuda() && !tensor.track_op())
}
