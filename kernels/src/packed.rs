//! The matrix of a linear layer: plain numbers, or packed ones that are unpacked piece by piece
//! within a product.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result, expect};
use crate::{Packing, cpu, gather};

/// A matrix `[outputs, inputs]` whose rows are runs of whole blocks. Its bytes are shared by
/// clones.
#[derive(Debug, Clone)]
pub struct Packed {
    packing: Packing,
    outputs: usize,
    inputs: usize,
    bytes: Arc<[u8]>,
    in_bf16: bool,
}

impl Packed {
    /// A matrix of `[outputs, inputs]` numbers, row by row.
    ///
    /// # Errors
    /// Returns an error if a row is no whole number of blocks, or if there are more or fewer bytes
    /// than blocks.
    pub fn new(packing: Packing, [outputs, inputs]: [usize; 2], bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        expect("packed matrix", "numbers of a row beyond whole blocks", 0, inputs % packing.numbers())?;
        expect("packed matrix", "bytes", outputs * (inputs / packing.numbers()) * packing.bytes(), bytes.len())?;
        Ok(Self { packing, outputs, inputs, bytes, in_bf16: false })
    }

    /// The same matrix; where the machine multiplies pairs of bf16, products round their inputs to
    /// them, as with a weight that is stored in bf16. Products of many rows round its numbers too;
    /// those of few rows round codes with a scale, which they keep, and no number of others.
    #[must_use]
    pub fn multiplied_in_bf16(self, in_bf16: bool) -> Self {
        Self { in_bf16, ..self }
    }

    /// How it is packed.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// `[outputs, inputs]`.
    pub fn dims(&self) -> [usize; 2] {
        [self.outputs, self.inputs]
    }

    /// Its blocks, row by row.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn is_multiplied_in_bf16(&self) -> bool {
        self.in_bf16
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.inputs / self.packing.numbers() * self.packing.bytes()
    }

    /// The rows at `indices`, in that order, packed as they are.
    ///
    /// # Errors
    /// Returns an error if an index is beyond the rows.
    pub fn select(&self, indices: impl IntoIterator<Item = usize>) -> Result<Self> {
        let (width, mut bytes, mut outputs) = (self.row_bytes(), Vec::new(), 0);
        for index in indices {
            if index >= self.outputs {
                let (expected, found) = (format!("below {}", self.outputs), index.to_string());
                return Err(Error::Shape { op: "rows of a packed matrix", what: "index", expected, found });
            }
            bytes.extend_from_slice(&self.bytes[index * width..][..width]);
            outputs += 1;
        }
        Ok(Self { outputs, bytes: bytes.into(), ..self.clone() })
    }

    /// All numbers `[outputs, inputs]`, on the host.
    ///
    /// # Errors
    /// Returns an error if candle fails.
    pub fn unpacked(&self, dtype: DType) -> Result<Tensor> {
        let mut numbers = vec![0.0; self.outputs * self.inputs];
        cpu::unpack_rows(self, &mut numbers);
        Ok(Tensor::from_vec(numbers, (self.outputs, self.inputs), &Device::Cpu)?.to_dtype(dtype)?)
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
    /// `[outputs, inputs]`.
    ///
    /// # Errors
    /// Returns an error if a plain one is no matrix.
    pub fn dims(&self) -> Result<[usize; 2]> {
        Factor::from(self).dims()
    }

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
pub enum Factor<'a> {
    /// `[outputs, inputs]`.
    Plain(&'a Tensor),
    /// `[outputs, inputs]`, packed.
    Packed(&'a Packed),
}

impl Factor<'_> {
    pub(crate) fn dims(self) -> Result<[usize; 2]> {
        match self {
            Factor::Plain(weight) => Ok(weight.dims2()?.into()),
            Factor::Packed(packed) => Ok(packed.dims()),
        }
    }
}

impl<'a> From<&'a Tensor> for Factor<'a> {
    fn from(weight: &'a Tensor) -> Self {
        Factor::Plain(weight)
    }
}

impl<'a> From<&'a Weight> for Factor<'a> {
    fn from(weight: &'a Weight) -> Self {
        match weight {
            Weight::Plain(weight) => Factor::Plain(weight),
            Weight::Packed(packed) => Factor::Packed(packed),
        }
    }
}

impl<'a> From<&'a Packed> for Factor<'a> {
    fn from(weight: &'a Packed) -> Self {
        Factor::Packed(weight)
    }
}
