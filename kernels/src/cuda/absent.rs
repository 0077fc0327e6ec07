//! Stands in for the CUDA kernels in builds without the feature `cuda`.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

/// See the module of the same name in a build with CUDA.
///
/// # Errors
/// [`Error::NotBuilt`], always.
pub fn uniform(_key: [u8; 32], _spread: f32, _shape: &[usize], _dtype: DType, _device: &Device) -> Result<Tensor> {
    Err(Error::NotBuilt)
}
