//! The matrix of a linear layer: plain numbers, or packed ones that are unpacked piece by piece
//! within a product.

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::{Packed, cast, cpu, cuda, gather};

impl Packed {
    /// All numbers `[outputs, inputs]`, where the blocks are.
    ///
    /// # Errors
    /// Returns an error if candle fails, or on a GPU if the dtype is not bf16, f16 or f32.
    pub fn unpacked(&self, dtype: DType) -> Result<Tensor> {
        if self.on_gpu().is_none() {
            let [outputs, inputs] = self.dims();
            let mut numbers = vec![0.0; outputs * inputs];
            cpu::unpack_all(self.packing(), self.bytes(), &mut numbers);
            return Ok(Tensor::from_vec(numbers, (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)?);
        }
        let (expected, found) = ("bf16, f16 or f32".to_owned(), format!("{dtype:?}"));
        cuda::unpack(&[self], dtype)?.ok_or(Error::Shape { op: "unpacking on a GPU", what: "dtype", expected, found })
    }
}

/// The matrix of a linear layer.
#[derive(Debug, Clone)]
pub enum Weight {
    /// `[outputs, inputs]`, of any float dtype.
    Plain(Tensor),
    /// Packed.
    Packed(Packed),
}

impl Weight {
    /// The rows at `indices`, in that order, `[rows, inputs]`, in `dtype`.
    ///
    /// # Errors
    /// Returns an error if an index is beyond the rows, or as [`Packed::unpacked`] does.
    pub fn rows(&self, indices: &[u32], dtype: DType) -> Result<Tensor> {
        match self {
            Weight::Plain(weight) => cast(&gather(weight, indices)?, dtype),
            Weight::Packed(packed) => packed.select(indices.iter().map(|&index| index as usize))?.unpacked(dtype),
        }
    }

    /// `count` rows from `first` on.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn narrow(&self, first: usize, count: usize) -> Result<Self> {
        Ok(match self {
            Weight::Plain(weight) => Weight::Plain(weight.narrow(0, first, count)?),
            Weight::Packed(packed) => Weight::Packed(packed.narrow(first, count)?),
        })
    }
}

impl From<Tensor> for Weight {
    fn from(weight: Tensor) -> Self {
        Weight::Plain(weight)
    }
}

/// A matrix that a product reads.
#[derive(Debug, Clone, Copy)]
pub enum WeightRef<'a> {
    /// `[outputs, inputs]`.
    Plain(&'a Tensor),
    /// `[outputs, inputs]`, packed.
    Packed(&'a Packed),
}

impl<'a> WeightRef<'a> {
    pub(crate) fn dims(self) -> Result<[usize; 2]> {
        match self {
            WeightRef::Plain(weight) => Ok(weight.dims2()?.into()),
            WeightRef::Packed(packed) => Ok(packed.dims()),
        }
    }

    /// The plain matrix, if it is one.
    pub(crate) fn plain(self) -> Option<&'a Tensor> {
        match self {
            WeightRef::Plain(weight) => Some(weight),
            WeightRef::Packed(_) => None,
        }
    }

    /// The packed matrix, if it is one.
    pub(crate) fn packed(self) -> Option<&'a Packed> {
        match self {
            WeightRef::Plain(_) => None,
            WeightRef::Packed(packed) => Some(packed),
        }
    }
}

impl<'a> From<&'a Tensor> for WeightRef<'a> {
    fn from(weight: &'a Tensor) -> Self {
        WeightRef::Plain(weight)
    }
}

impl<'a> From<&'a Weight> for WeightRef<'a> {
    fn from(weight: &'a Weight) -> Self {
        match weight {
            Weight::Plain(weight) => WeightRef::Plain(weight),
            Weight::Packed(packed) => WeightRef::Packed(packed),
        }
    }
}

impl<'a> From<&'a Packed> for WeightRef<'a> {
    fn from(weight: &'a Packed) -> Self {
        WeightRef::Packed(weight)
    }
}
