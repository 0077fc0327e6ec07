//! A packed matrix: rows of whole blocks.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result, expect};
use crate::{Packing, cuda, gather};

/// About how many numbers of a packed matrix a product on a GPU has unpacked at a time.
const UNPACKED: usize = 32 << 20;

/// A matrix `[outputs, inputs]` whose rows are runs of whole blocks. Its bytes are shared by
/// clones.
#[derive(Debug, Clone)]
pub struct Packed {
    packing: Packing,
    outputs: usize,
    inputs: usize,
    blocks: Blocks,
    in_bf16: bool,
}

/// The blocks of all rows, one row after the other.
#[derive(Debug, Clone)]
enum Blocks {
    Host(Arc<[u8]>),
    /// `[outputs, bytes of a row]` on a GPU, contiguous.
    Device(Tensor),
}

impl Packed {
    /// Rows of inputs for which a GPU reads blocks as they are. More are worth unpacking the
    /// matrix.
    pub(crate) const FEW_ROWS: usize = 8;

    /// A matrix of `[outputs, inputs]` numbers, row by row.
    ///
    /// # Errors
    /// Returns an error if a row is no whole number of blocks, or if there are more or fewer bytes
    /// than blocks.
    pub fn new(packing: Packing, [outputs, inputs]: [usize; 2], bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        expect("packed matrix", "numbers of a row beyond whole blocks", 0, inputs % packing.numbers())?;
        expect("packed matrix", "bytes", outputs * (inputs / packing.numbers()) * packing.bytes(), bytes.len())?;
        Ok(Self { packing, outputs, inputs, blocks: Blocks::Host(bytes), in_bf16: false })
    }

    /// The same matrix, whose products may round as those of a weight that is stored in bf16. On a
    /// CPU with AVX2, few rows meet codes in whole numbers: inputs are rounded to 16 bits by their
    /// row's largest one, and no number of the matrix is. Where the machine multiplies pairs of
    /// bf16, inputs of E4M3 and of many rows are rounded to them, and for many rows its numbers
    /// too.
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

    /// The same matrix on a device, whose copy it has where it is there already.
    ///
    /// # Errors
    /// Returns an error if the device refuses.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let shape = (self.outputs, self.row_bytes());
        let blocks = match (&self.blocks, device) {
            (Blocks::Host(_), Device::Cpu) => self.blocks.clone(),
            (Blocks::Host(bytes), _) if bytes.is_empty() => Blocks::Device(cuda::nothing(shape, DType::U8, device)?),
            (Blocks::Host(bytes), _) => Blocks::Device(Tensor::from_slice(bytes, shape, device)?),
            (Blocks::Device(blocks), Device::Cpu) => {
                Blocks::Host(cuda::download(blocks)?.flatten_all()?.to_vec1::<u8>()?.into())
            }
            (Blocks::Device(blocks), _) => Blocks::Device(blocks.to_device(device)?),
        };
        Ok(Self { blocks, ..self.clone() })
    }

    /// Its blocks on the host, row by row.
    ///
    /// # Panics
    /// If they are on a GPU: only a bug can do that.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.blocks {
            Blocks::Host(bytes) => bytes,
            Blocks::Device(_) => panic!("a packed matrix on a GPU is read by kernels there"),
        }
    }

    /// Its blocks `[outputs, bytes of a row]`, contiguous, if they are on a GPU.
    pub(crate) fn on_gpu(&self) -> Option<&Tensor> {
        match &self.blocks {
            Blocks::Host(_) => None,
            Blocks::Device(blocks) => Some(blocks),
        }
    }

    pub(crate) fn is_multiplied_in_bf16(&self) -> bool {
        self.in_bf16
    }

    /// Rows of such a matrix that a product on a GPU has unpacked at a time: whole tiles of it.
    pub fn unpacked_rows([outputs, inputs]: [usize; 2]) -> usize {
        (UNPACKED / inputs.max(1)).next_multiple_of(64).min(outputs)
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
        let indices: Vec<usize> = indices.into_iter().collect();
        if let Some(index) = indices.iter().find(|&&index| index >= self.outputs) {
            let (expected, found) = (format!("below {}", self.outputs), index.to_string());
            return Err(Error::Shape { op: "rows of a packed matrix", what: "index", expected, found });
        }
        let blocks = match &self.blocks {
            Blocks::Host(bytes) => {
                let (width, mut rows) = (self.row_bytes(), Vec::with_capacity(indices.len() * self.row_bytes()));
                indices.iter().for_each(|index| rows.extend_from_slice(&bytes[index * width..][..width]));
                Blocks::Host(rows.into())
            }
            Blocks::Device(blocks) => {
                let list: Vec<u32> = indices.iter().map(|&index| index as u32).collect();
                Blocks::Device(gather(blocks, &list)?)
            }
        };
        Ok(Self { outputs: indices.len(), blocks, ..self.clone() })
    }

    /// `count` rows from `first` on; on a GPU they share its memory.
    ///
    /// # Errors
    /// Returns an error if there are fewer rows.
    pub fn narrow(&self, first: usize, count: usize) -> Result<Self> {
        match &self.blocks {
            Blocks::Host(_) => self.select(first..first + count),
            Blocks::Device(blocks) => {
                let blocks = Blocks::Device(blocks.narrow(0, first, count)?);
                Ok(Self { outputs: count, blocks, ..self.clone() })
            }
        }
    }
}
