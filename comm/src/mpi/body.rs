//! Tensors and bytes as they go over the wire: sent from their own memory, received into their
//! final memory.

use std::ops::Deref;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use candle_core::{CpuStorage, DType, Device, Layout, Shape, Storage, Tensor};
use half::{bf16, f16};
use tributary_protocol::{checksum, within_limit};

use crate::group::call::{Call, Form, Payload};
use crate::{Error, Result};

/// The body that a letter carries.
pub enum Body {
    /// Nothing.
    None,
    /// A contiguous tensor on the CPU.
    Tensor(Tensor),
    /// Bytes.
    Bytes(Arc<Vec<u8>>),
}

impl Body {
    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Body::None => 0,
            Body::Tensor(tensor) => tensor.elem_count() * tensor.dtype().size_in_bytes(),
            Body::Bytes(bytes) => bytes.len(),
        }
    }

    /// The bytes of a message, which a checksum guards; none for a tensor.
    pub fn message(&self) -> Option<&[u8]> {
        match self {
            Body::Bytes(bytes) => Some(bytes),
            Body::None | Body::Tensor(_) => None,
        }
    }

    /// Holds the tensor's storage for reading, if there is one.
    pub fn open(&self) -> Opened<'_> {
        match self {
            Body::None => Opened::Bytes(&[]),
            Body::Bytes(bytes) => Opened::Bytes(bytes),
            Body::Tensor(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                Opened::Storage(Box::new(storage), layout)
            }
        }
    }
}

/// A body that can be read.
pub enum Opened<'a> {
    Bytes(&'a [u8]),
    /// The storage, locked for reading, and the tensor's place in it.
    Storage(Box<dyn Deref<Target = Storage> + 'a>, &'a Layout),
}

impl Opened<'_> {
    /// Its bytes.
    ///
    /// # Errors
    /// Returns an error if the dtype cannot be sent.
    pub fn bytes(&self) -> Result<&[u8]> {
        let (storage, layout) = match self {
            Opened::Bytes(bytes) => return Ok(bytes),
            Opened::Storage(storage, layout) => (storage, layout),
        };
        let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let Storage::Cpu(storage) = &***storage else {
            return Err(Error::Tensor("a tensor that is not on the CPU cannot be sent over MPI".to_owned()));
        };
        match storage {
            CpuStorage::U8(values) => Ok(&values[range]),
            CpuStorage::U32(values) => Ok(cast_slice(&values[range])),
            CpuStorage::I64(values) => Ok(cast_slice(&values[range])),
            CpuStorage::BF16(values) => Ok(cast_slice(&values[range])),
            CpuStorage::F16(values) => Ok(cast_slice(&values[range])),
            CpuStorage::F32(values) => Ok(cast_slice(&values[range])),
            CpuStorage::F64(values) => Ok(cast_slice(&values[range])),
            _ => Err(Error::Tensor("a dtype that is not sent over MPI".to_owned())),
        }
    }
}

/// The memory that a body on its way is received in.
pub enum ReceiveBuffer {
    U8(Vec<u8>),
    U32(Vec<u32>),
    I64(Vec<i64>),
    BF16(Vec<bf16>),
    F16(Vec<f16>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl ReceiveBuffer {
    /// Memory for the body of `body_bytes` that rank `from` announces to `to` in this call.
    ///
    /// # Errors
    /// Returns an error if the length is not the call's, if the dtype cannot be sent, or if memory
    /// is short.
    pub fn for_call(call: &Call, from: usize, to: usize, body_bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(body_bytes).map_err(|_| Error::Frame(format!("{body_bytes} bytes")))?;
        match call {
            Call::BroadcastBytes { .. } | Call::GatherBytes { .. } => within_limit(bytes)?,
            _ if call.bytes_to(from, to) == body_bytes => {}
            _ => {
                let wanted = call.bytes_to(from, to);
                return Err(Error::Frame(format!("{body_bytes} bytes from rank {from}, the call has {wanted}")));
            }
        }
        match call.form() {
            None => Ok(ReceiveBuffer::U8(zeroed(bytes)?)),
            Some(Form { dtype: DType::U8, .. }) => Ok(ReceiveBuffer::U8(zeroed(bytes)?)),
            Some(Form { dtype: DType::U32, .. }) => Ok(ReceiveBuffer::U32(zeroed(bytes)?)),
            Some(Form { dtype: DType::I64, .. }) => Ok(ReceiveBuffer::I64(zeroed(bytes)?)),
            Some(Form { dtype: DType::BF16, .. }) => Ok(ReceiveBuffer::BF16(zeroed(bytes)?)),
            Some(Form { dtype: DType::F16, .. }) => Ok(ReceiveBuffer::F16(zeroed(bytes)?)),
            Some(Form { dtype: DType::F32, .. }) => Ok(ReceiveBuffer::F32(zeroed(bytes)?)),
            Some(Form { dtype: DType::F64, .. }) => Ok(ReceiveBuffer::F64(zeroed(bytes)?)),
            Some(Form { dtype, .. }) => Err(Error::Tensor(format!("{dtype:?} is not sent over MPI"))),
        }
    }

    /// The buffer as bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            ReceiveBuffer::U8(values) => values,
            ReceiveBuffer::U32(values) => cast_slice_mut(values),
            ReceiveBuffer::I64(values) => cast_slice_mut(values),
            ReceiveBuffer::BF16(values) => cast_slice_mut(values),
            ReceiveBuffer::F16(values) => cast_slice_mut(values),
            ReceiveBuffer::F32(values) => cast_slice_mut(values),
            ReceiveBuffer::F64(values) => cast_slice_mut(values),
        }
    }

    /// Checks the body from rank `from` against its checksum, if it has one.
    ///
    /// # Errors
    /// Returns [`Error::Frame`] if the checksum differs.
    pub fn is_undamaged(&self, wanted: Option<u32>, from: usize) -> Result<()> {
        match (self, wanted) {
            (ReceiveBuffer::U8(bytes), Some(wanted)) if checksum(&[bytes]) != wanted => {
                Err(Error::Frame(format!("{} bytes from rank {from} with a wrong checksum", bytes.len())))
            }
            _ => Ok(()),
        }
    }

    /// The received body as the payload of a call that rank `from` made and `to` received.
    ///
    /// # Errors
    /// Returns an error if the tensor cannot be made.
    pub fn into_payload(self, call: &Call, from: usize, to: usize, world: usize) -> Result<Payload> {
        let Some(form) = call.form() else {
            let ReceiveBuffer::U8(bytes) = self else { return Err(Error::Frame("bytes of a dtype".to_owned())) };
            let carries = matches!(call, Call::BroadcastBytes { root } if *root == from)
                || matches!(call, Call::GatherBytes { root } if *root == to);
            return Ok(Payload { tensors: Vec::new(), bytes: carries.then(|| Arc::new(bytes)) });
        };
        let rows = call.rows_to(from, to);
        let shape: Shape = std::iter::once(rows).chain(form.row_dims.iter().copied()).collect::<Vec<_>>().into();
        let device = &Device::Cpu;
        let tensor = match self {
            ReceiveBuffer::U8(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::U32(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::I64(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::BF16(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::F16(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::F32(values) => Tensor::from_vec(values, shape, device),
            ReceiveBuffer::F64(values) => Tensor::from_vec(values, shape, device),
        }?;
        let tensors = match call {
            Call::AllToAll { .. } => (0..world).map(|rank| (rank == to).then(|| tensor.clone())).collect(),
            _ => vec![Some(tensor)],
        };
        Ok(Payload { tensors, bytes: None })
    }
}

/// Zeros that fill `bytes` bytes.
fn zeroed<T: bytemuck::Zeroable + Copy>(bytes: usize) -> Result<Vec<T>> {
    let count = bytes / size_of::<T>();
    let mut values = Vec::new();
    values.try_reserve_exact(count).map_err(|_| Error::Tensor(format!("no memory for {bytes} bytes")))?;
    values.resize(count, T::zeroed());
    Ok(values)
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{MESSAGE_LIMIT_BYTES, decode_frame};

    use super::super::letter::{Head, Letter};
    use super::*;

    #[test]
    fn every_dtype_comes_out_as_it_went_in() {
        let whole = Tensor::arange(0u32, 24, &Device::Cpu).unwrap().reshape((6, 4)).unwrap();
        for dtype in [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64] {
            // A part that does not begin where its storage does.
            let sent = whole.to_dtype(dtype).unwrap().narrow(0, 2, 3).unwrap();
            let call = Call::AllGather { form: Form::of(&sent).unwrap(), rows: vec![1, 3] };
            let body = Body::Tensor(sent.clone());
            let mut buffer = ReceiveBuffer::for_call(&call, 1, 0, body.bytes() as u64).unwrap();
            buffer.bytes_mut().copy_from_slice(body.open().bytes().unwrap());
            let payload = buffer.into_payload(&call, 1, 0, 2).unwrap();
            let found = payload.tensors[0].as_ref().unwrap();
            let difference = (found.to_dtype(DType::F64).unwrap() - sent.to_dtype(DType::F64).unwrap()).unwrap();
            assert_eq!(found.dtype(), dtype);
            assert_eq!(difference.abs().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap(), 0.0, "{dtype:?}");
        }
    }

    #[test]
    fn a_length_that_is_not_the_calls_is_refused() {
        let form = Form { dtype: DType::F32, row_dims: vec![4] };
        let call = Call::AllGather { form, rows: vec![1, 3] };
        assert!(ReceiveBuffer::for_call(&call, 1, 0, 48).is_ok());
        for bytes in [0, 47, 49, u64::MAX] {
            assert!(matches!(ReceiveBuffer::for_call(&call, 1, 0, bytes), Err(Error::Frame(_))), "{bytes}");
        }
        let message = Call::BroadcastBytes { root: 1 };
        let limit = MESSAGE_LIMIT_BYTES as u64;
        assert!(ReceiveBuffer::for_call(&message, 1, 0, limit).is_ok());
        for bytes in [limit + 1, 4 << 30, u64::MAX >> 1] {
            assert!(matches!(ReceiveBuffer::for_call(&message, 1, 0, bytes), Err(Error::Frame(_))), "{bytes}");
        }
    }

    #[test]
    fn a_damaged_message_is_refused() {
        let call = Call::GatherBytes { root: 0 };
        let sent: Vec<u8> = (0..=255).collect();
        let body = Body::Bytes(Arc::new(sent.clone()));
        let letter = Letter::call(0, 3, call.clone(), body).unwrap();
        let head: Head = decode_frame(&letter.head).unwrap();
        for bit in 0..8 * sent.len() {
            let mut buffer = ReceiveBuffer::for_call(&head.call, 1, 0, head.body_bytes).unwrap();
            buffer.bytes_mut().copy_from_slice(letter.body.open().bytes().unwrap());
            buffer.is_undamaged(head.body_checksum, 1).unwrap();
            buffer.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(buffer.is_undamaged(head.body_checksum, 1), Err(Error::Frame(_))), "bit {bit}");
        }
    }
}
