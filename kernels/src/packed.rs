//! A packed matrix: rows of whole blocks.

use std::sync::Arc;

use crate::Packing;
use crate::error::{Error, Result, expect};

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
}
