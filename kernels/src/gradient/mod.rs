//! Gradients for training that candle does not give: operations with frozen weights and
//! hand-written gradients. candle would compute the gradient of every weight too, and would keep
//! every score of attention; here a linear layer's backward pass is one product, and attention
//! computes its probabilities again.
//!
//! On the CPU in f32 and f64, the latter for checks by finite differences. Everything else takes
//! candle's operations, as it did.

mod attend;
mod gated;
mod linear;
mod norm;
mod rotate;
mod sight;

use candle_core::{CpuStorage, DType, Layout, Storage, Tensor, WithDType};

pub(crate) use attend::Tiled;
pub(crate) use gated::gated;
pub(crate) use linear::product;
pub(crate) use norm::rms_norm;
pub(crate) use rotate::rotated;

/// Whether these tensors are on the host and of one type that is computed here.
fn computes(tensors: &[&Tensor]) -> bool {
    let Some(dtype) = tensors.first().map(|tensor| tensor.dtype()) else { return false };
    let known = matches!(dtype, DType::F32 | DType::F64);
    known && tensors.iter().all(|tensor| tensor.dtype() == dtype && tensor.device().is_cpu())
}

/// The numbers of a contiguous storage.
fn slice<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [T]> {
    match layout.contiguous_offsets() {
        Some((from, to)) => Ok(&storage.as_slice::<T>()?[from..to]),
        None => candle_core::bail!("a tensor of {:?} is not contiguous", layout.shape()),
    }
}

/// Calls `work` with the numbers of a tensor on the host.
fn with<T: WithDType, R>(tensor: &Tensor, work: impl FnOnce(&[T]) -> candle_core::Result<R>) -> candle_core::Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(slice(storage, layout)?),
        _ => candle_core::bail!("a tensor is not on the host"),
    }
}

/// The failure of an operation that was given another type than it computes in.
fn unknown(op: &'static str, dtype: DType) -> candle_core::Error {
    candle_core::Error::UnsupportedDTypeForOp(dtype, op)
}
