//! Replacement of the CUDA kernels in builds without the feature `cuda`: no tensor is on a GPU, so
//! every operation returns `None`, and a request for a device returns an error that names the
//! feature.

mod device_info;

use candle_core::{CudaDevice, DType, Device, Shape, Tensor};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::{DeviceList, Gate, Packed, Partial, Positions, Query, Rope, WeightRef};

pub use device_info::{Identity, Memory, Pool};

/// A point in a device's work: there is none.
#[derive(Debug, Clone)]
pub enum DeviceEvent {}

impl DeviceEvent {
    /// # Errors
    /// Always returns [`Error::NotBuilt`].
    pub fn record(_device: &CudaDevice) -> Result<Self> {
        Err(Error::NotBuilt)
    }

    /// Never called: there is no event.
    pub fn has_passed(&self) -> bool {
        match *self {}
    }

    /// # Errors
    /// Never fails: there is no event.
    pub fn wait(&self) -> Result<()> {
        match *self {}
    }

    /// # Errors
    /// Never fails: there is no event.
    pub fn seconds_since(&self, _earlier: &DeviceEvent) -> Result<f64> {
        match *self {}
    }
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn count() -> Result<usize> {
    Err(Error::NotBuilt)
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn device(_ordinal: usize) -> Result<Device> {
    Err(Error::NotBuilt)
}

/// Lets this thread ask the device's driver: there is none to ask.
///
/// # Errors
/// Never fails.
pub fn attach_thread(_device: &Device) -> Result<()> {
    Ok(())
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn identity(_ordinal: usize) -> Result<Identity> {
    Err(Error::NotBuilt)
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn memory(_device: &Device) -> Result<Memory> {
    Err(Error::NotBuilt)
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn pool(_device: &Device) -> Result<Pool> {
    Err(Error::NotBuilt)
}

/// Whether a failure means that a device's memory did not suffice: there is no device.
pub fn is_out_of_memory(_error: &candle_core::Error) -> bool {
    false
}

/// A tensor with no elements.
///
/// # Panics
/// If the shape has elements: only a bug can do that.
///
/// # Errors
/// Never fails.
pub fn nothing(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    assert_eq!(shape.elem_count(), 0, "{shape:?} is not empty");
    Ok(Tensor::zeros(shape, dtype, device)?)
}

/// A tensor on the host, where it is.
///
/// # Errors
/// Never fails.
pub fn download(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.clone())
}

/// A list as a tensor, `[len]`.
///
/// # Errors
/// Never fails.
pub fn upload(list: &[u32], device: &Device) -> Result<Tensor> {
    Ok(Tensor::from_slice(list, list.len(), device)?)
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn uniform(_key: [u8; 32], _spread: f32, _shape: &[usize], _dtype: DType, _device: &Device) -> Result<Tensor> {
    Err(Error::NotBuilt)
}

/// Number of times that this process has given kernels to a driver: 0.
pub fn loads() -> usize {
    0
}

/// Leaves multiprocessors to others: there are none to leave. Gives the count from before.
pub fn leave_multiprocessors(_count: usize) -> usize {
    0
}

/// # Errors
/// Always returns [`Error::NotBuilt`].
pub fn multiprocessors(_device: &CudaDevice) -> Result<usize> {
    Err(Error::NotBuilt)
}

/// No copies on devices.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {}

pub(crate) fn distance(_a: &Tensor, _b: &Tensor, _absolute: bool) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn to_eight_bits(_x: &Tensor) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn from_eight_bits(_x: &Tensor, _dtype: DType) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn rms_norm(_x: &Tensor, _weight: &Tensor, _eps: f32) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn gated(_gate: &Tensor, _up: &Tensor, _by: Gate) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn add(_a: &Tensor, _b: &Tensor) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn add_biases(_x: &Tensor, _biases: &Tensor, _list: &Tensor) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn scale(_x: &Tensor, _factor: f32, _factors: Option<&Tensor>) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn cast(_x: &Tensor, _dtype: DType) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn product(
    _x: &Tensor,
    _weight: WeightRef<'_>,
    _terms: (Option<&Tensor>, Option<&Tensor>),
    _dtype: DType,
) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn add_product(_into: &Tensor, _x: &Tensor, _weight: WeightRef<'_>) -> Result<bool> {
    Ok(false)
}

pub(crate) fn unpack(_matrices: &[&Packed], _dtype: DType) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn merge(_parts: &[&Partial]) -> Result<Option<Partial>> {
    Ok(None)
}

pub(crate) fn rotated(_rope: &Rope, _x: &Tensor, _at: &Positions) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn contiguous(x: &Tensor) -> Result<Tensor> {
    Ok(x.contiguous()?)
}

pub(crate) fn gather(_x: &Tensor, _indices: &DeviceList) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn gather_by(_x: &Tensor, _list: &Tensor) -> Result<Option<Tensor>> {
    Ok(None)
}

pub(crate) fn grouped(_x: &Tensor, _counts: &[usize], _sets: &[Vec<&Tensor>]) -> Result<Option<Vec<Tensor>>> {
    Ok(None)
}

pub(crate) fn add_pairs(_into: &Tensor, _pairs: &Tensor, _list: &Tensor) -> Result<bool> {
    Ok(false)
}

pub(crate) fn write_rows(_into: &Tensor, _rows: &Tensor, _first: usize) -> Result<bool> {
    Ok(false)
}

pub(crate) fn join(_parts: &[&Tensor], _dim: usize) -> Result<Option<Tensor>> {
    Ok(None)
}

/// Whether attention has kernels for heads of this size and type: there are none here.
pub fn attends(_head_dim: usize, _dtype: DType) -> bool {
    false
}

/// The backend of GPUs: no call is its own.
pub(crate) struct Gpu;

impl Backend for Gpu {
    fn attend(&self, _query: &Query<'_>) -> Result<Option<Partial>> {
        Ok(None)
    }
}
