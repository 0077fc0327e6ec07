//! Stands in for the CUDA kernels in builds without the feature `cuda`: everything answers [`Error::NotBuilt`].

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};

/// Memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What may still be taken.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// Who a GPU is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The maker's name for it.
    pub name: String,
}

/// Number of devices.
///
/// # Errors
/// Always.
pub fn count() -> Result<usize> {
    Err(Error::NotBuilt)
}

/// Opens a device.
///
/// # Errors
/// Always.
pub fn device(_ordinal: usize) -> Result<Device> {
    Err(Error::NotBuilt)
}

/// Who a device is.
///
/// # Errors
/// Always.
pub fn identity(_ordinal: usize) -> Result<Identity> {
    Err(Error::NotBuilt)
}

/// A device's memory.
///
/// # Errors
/// Always.
pub fn memory(_device: &Device) -> Result<Memory> {
    Err(Error::NotBuilt)
}

/// Uniform random numbers.
///
/// # Errors
/// Always.
pub fn uniform(_key: [u8; 32], _spread: f32, _shape: &[usize], _dtype: DType, _device: &Device) -> Result<Tensor> {
    Err(Error::NotBuilt)
}
