//! Tensors as the bytes of a file, and back: little-endian, row by row.

use candle_core::{CpuStorage, DType, Device, Layout, Storage, Tensor};
use half::{bf16, f16};
use tributary_kernels::cuda;
use tributary_store::Numbers;

use crate::error::{Error, Result};

/// The stored form of a dtype, if its chunks can be stored.
pub fn numbers(dtype: DType) -> Option<Numbers> {
    match dtype {
        DType::F32 => Some(Numbers::F32),
        DType::BF16 => Some(Numbers::Bf16),
        DType::F16 => Some(Numbers::F16),
        DType::U8 => Some(Numbers::EightBits),
        _ => None,
    }
}

/// Appends the bytes of a tensor, which may be on a device.
///
/// # Errors
/// Returns an error if a candle operation fails, or if the dtype is not stored.
pub fn append(tensor: &Tensor, bytes: &mut Vec<u8>) -> Result<()> {
    with_bytes(&[tensor], |all| bytes.extend_from_slice(all[0]))
}

/// Calls `read` with the bytes of each tensor. Those that lie in the host's memory without gaps are
/// not copied.
///
/// # Errors
/// Returns an error if a candle operation fails, or if a dtype is not stored.
pub fn with_bytes<T>(tensors: &[&Tensor], read: impl FnOnce(&[&[u8]]) -> T) -> Result<T> {
    let here: Vec<Tensor> =
        tensors.iter().map(|tensor| Ok(cuda::download(tensor)?.contiguous()?)).collect::<Result<_>>()?;
    let held: Vec<_> = here.iter().map(Tensor::storage_and_layout).collect();
    let bytes = held.iter().map(|(storage, layout)| bytes_of(storage, layout)).collect::<Result<Vec<_>>>()?;
    Ok(read(&bytes))
}

/// The bytes of a tensor without gaps in the host's memory.
fn bytes_of<'a>(storage: &'a Storage, layout: &Layout) -> Result<&'a [u8]> {
    let Storage::Cpu(storage) = storage else { return Err(Error::Bug("a download lies in the host's memory")) };
    let place = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    Ok(match storage {
        CpuStorage::F32(numbers) => bytemuck::cast_slice(&numbers[place]),
        CpuStorage::BF16(numbers) => bytemuck::cast_slice(&numbers[place]),
        CpuStorage::F16(numbers) => bytemuck::cast_slice(&numbers[place]),
        CpuStorage::U8(numbers) => &numbers[place],
        _ => return Err(Error::Bug("chunks of this type of numbers are not stored")),
    })
}

/// Memory for a tensor's numbers. It is filled before it becomes a tensor, so that no byte is
/// copied.
pub enum Buffer {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    EightBits(Vec<u8>),
}

impl Buffer {
    /// Room for `count` numbers.
    pub fn new(numbers: Numbers, count: usize) -> Self {
        match numbers {
            Numbers::F32 => Buffer::F32(vec![0.0; count]),
            Numbers::Bf16 => Buffer::Bf16(vec![bf16::ZERO; count]),
            Numbers::F16 => Buffer::F16(vec![f16::ZERO; count]),
            Numbers::EightBits => Buffer::EightBits(vec![0; count]),
        }
    }

    /// The bytes to fill.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Buffer::F32(numbers) => bytemuck::cast_slice_mut(numbers),
            Buffer::Bf16(numbers) => bytemuck::cast_slice_mut(numbers),
            Buffer::F16(numbers) => bytemuck::cast_slice_mut(numbers),
            Buffer::EightBits(numbers) => numbers,
        }
    }

    /// The tensor, in the host's memory.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn tensor(self, shape: (usize, usize, usize)) -> Result<Tensor> {
        Ok(match self {
            Buffer::F32(numbers) => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            Buffer::Bf16(numbers) => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            Buffer::F16(numbers) => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            Buffer::EightBits(numbers) => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_comes_back_from_its_bytes_bit_for_bit() {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::U8] {
            let shape = (3, 2, 4);
            let tensor =
                Tensor::rand(-1f32, 1f32, shape, &Device::Cpu).and_then(|t| t.to_dtype(dtype)).expect("a tensor");
            let bytes = |tensor: &Tensor| {
                let mut bytes = Vec::new();
                append(tensor, &mut bytes).map(|()| bytes).expect("bytes")
            };
            let stored = bytes(&tensor.narrow(0, 1, 2).expect("rows"));
            let mut buffer = Buffer::new(numbers(dtype).expect("stored"), 16);
            buffer.bytes().copy_from_slice(&stored);
            let back = buffer.tensor((2, 2, 4)).expect("a tensor");
            assert_eq!((back.dtype(), bytes(&back)), (dtype, stored));
        }
        assert_eq!(numbers(DType::F64), None);
    }
}
