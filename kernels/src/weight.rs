//! The matrix of a linear layer: plain numbers, or packed ones that are unpacked piece by piece
//! within a product.

use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::{Packed, cpu, gather};

impl Packed {
    /// All numbers `[outputs, inputs]`, on the host.
    ///
    /// # Errors
    /// Returns an error if candle fails.
    pub fn unpacked(&self, dtype: DType) -> Result<Tensor> {
        let [outputs, inputs] = self.dims();
        let mut numbers = vec![0.0; outputs * inputs];
        cpu::unpack_rows(self, &mut numbers);
        Ok(Tensor::from_vec(numbers, (outputs, inputs), &Device::Cpu)?.to_dtype(dtype)?)
    }
}

/// The matrix of a linear layer.
#[derive(Debug, Clone)]
pub enum Weight {
    /// `[outputs, inputs]`, of any float dtype.
    Plain(Tensor),
    /// Packed, on the host.
    Packed(Packed),
}

impl Weight {
    /// The rows at `indices`, in that order, `[rows, inputs]`: of a packed one in f32.
    ///
    /// # Errors
    /// Returns an error if an index is beyond the rows.
    pub fn rows(&self, indices: &[u32]) -> Result<Tensor> {
        match self {
            Weight::Plain(weight) => gather(weight, indices),
            Weight::Packed(packed) => packed.select(indices.iter().map(|&index| index as usize))?.unpacked(DType::F32),
        }
    }

    /// `count` rows from `first` on.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn narrow(&self, first: usize, count: usize) -> Result<Self> {
        Ok(match self {
            Weight::Plain(weight) => Weight::Plain(weight.narrow(0, first, count)?),
            Weight::Packed(packed) => Weight::Packed(packed.select(first..first + count)?),
        })
    }

    /// The plain matrix, if it is one.
    pub fn plain(&self) -> Option<&Tensor> {
        match self {
            Weight::Plain(weight) => Some(weight),
            Weight::Packed(_) => None,
        }
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

impl WeightRef<'_> {
    pub(crate) fn dims(self) -> Result<[usize; 2]> {
        match self {
            WeightRef::Plain(weight) => Ok(weight.dims2()?.into()),
            WeightRef::Packed(packed) => Ok(packed.dims()),
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
