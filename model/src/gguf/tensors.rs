//! Tensors of a GGUF file, as those of a folder.

use std::cell::RefCell;
use std::collections::BTreeSet;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{Packed, gather};

use super::file::{Gguf, Place, Stored};
use super::names::{Change, Source, source};
use crate::error::{Error, Result};

/// A file's tensors under the names of a folder.
pub(crate) struct OfGguf {
    file: Gguf,
    architecture: String,
    /// Names of the tensors that were read.
    read: RefCell<BTreeSet<String>>,
}

/// A tensor on the host.
pub(crate) enum Read {
    /// Plain numbers.
    Plain(Tensor),
    /// A packed matrix.
    Packed(Packed),
}

impl Read {
    /// Its numbers, unpacked if they are packed.
    ///
    /// # Errors
    /// Returns an error if candle fails.
    pub(crate) fn plain(&self, dtype: DType) -> Result<Tensor> {
        match self {
            Read::Plain(tensor) => Ok(tensor.to_dtype(dtype)?),
            Read::Packed(packed) => Ok(packed.unpacked(dtype)?),
        }
    }
}

impl OfGguf {
    pub(crate) fn new(file: Gguf) -> Self {
        let architecture = file.text("general.architecture").unwrap_or_default().to_owned();
        Self { file, architecture, read: RefCell::default() }
    }

    /// The error of a tensor that is not there.
    pub(crate) fn lacks(&self, name: &str, shape: &[usize]) -> Error {
        let name = source(name, &self.architecture).map_or_else(|| name.to_owned(), |source| source.name);
        Error::MissingTensor { folder: self.file.first().to_owned(), name, expected: shape.to_vec() }
    }

    /// See [`crate::weights::Weights::check_all_read`].
    pub(crate) fn check_all_read(&self, layers: usize) -> Result<()> {
        let read = self.read.borrow();
        let is_left = |name: &&String| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
            let is_beyond = layer.is_some_and(|layer| layer >= layers);
            !read.contains(*name) && !is_beyond && *name != "rope_freqs.weight"
        };
        match self.file.tensors.keys().find(is_left) {
            None => Ok(()),
            Some(name) => {
                let what =
                    format!("tensor `{}` is of no known use in a model of {}", name.escape_debug(), self.architecture);
                Err(Error::Weights { path: self.file.first().to_owned(), what })
            }
        }
    }

    /// Whether the file has a tensor of a name.
    pub(crate) fn has(&self, name: &str) -> bool {
        source(name, &self.architecture).is_some_and(|source| self.file.tensors.contains_key(&source.name))
    }

    /// The tensor of a name and shape; `None` if the file has none of that name.
    ///
    /// # Errors
    /// Returns an error if it has another shape, or if the file cannot be read.
    pub(crate) fn read(&self, name: &str, shape: &[usize]) -> Result<Option<Read>> {
        let Some(Source { name: own, expert, change }) = source(name, &self.architecture) else { return Ok(None) };
        let Some(place) = self.file.tensors.get(&own) else { return Ok(None) };
        let (inner, count) = match expert {
            None => (&place.shape[..], 1),
            Some(_) => (&place.shape[1..], place.shape[0]),
        };
        if inner != shape || expert.is_some_and(|expert| expert >= count) {
            let (folder, found) = (self.file.path_of(place).to_owned(), place.shape.clone());
            return Err(Error::WrongShape { folder, name: own, expected: shape.to_vec(), found });
        }
        self.read.borrow_mut().insert(own.clone());
        let length = place.bytes() / count.max(1);
        let bytes = self.file.bytes(place, expert.unwrap_or(0) * length, length)?;
        let read = match (place.stored, shape) {
            (Stored::Packed(packing), &[outputs, inputs]) => {
                Read::Packed(Packed::new(packing, [outputs, inputs], bytes)?)
            }
            (Stored::Packed(packing), &[width]) => {
                Read::Plain(Packed::new(packing, [1, width], bytes)?.unpacked(DType::F32)?.reshape(width)?)
            }
            (Stored::Packed(_), _) => {
                let what = format!("tensor `{own}` is packed and no matrix");
                return Err(Error::Weights { path: self.file.path_of(place).to_owned(), what });
            }
            (Stored::Plain(dtype), _) => Read::Plain(Tensor::from_raw_buffer(&bytes, dtype, shape, &Device::Cpu)?),
        };
        Ok(Some(match change {
            Change::None => read,
            Change::LessOne => Read::Plain((read.plain(DType::F32)? - 1.0)?),
            Change::OfHeads => self.of_heads(name, read, place)?,
        }))
    }

    /// Rows in the order of a folder: in each head the first halves of pairs, then the second
    /// ones. The file has both of a pair in turn.
    fn of_heads(&self, name: &str, read: Read, place: &Place) -> Result<Read> {
        let key = if name.contains("k_proj") { "attention.head_count_kv" } else { "attention.head_count" };
        let number = |key: &str| self.file.number(&format!("{}.{key}", self.architecture));
        let rows = place.shape[0];
        let heads = number(key).or_else(|| number("attention.head_count")).unwrap_or(0) as usize;
        if heads == 0 || !rows.is_multiple_of(2 * heads) {
            let what = format!("{rows} rows of {heads} heads: they do not fit");
            return Err(Error::Weights { path: self.file.path_of(place).to_owned(), what });
        }
        let half = rows / heads / 2;
        let order = (0..rows).map(|row| {
            let (head, within) = (row / (2 * half), row % (2 * half));
            2 * (head * half + within % half) + within / half
        });
        Ok(match read {
            Read::Packed(packed) => Read::Packed(packed.select(order)?),
            Read::Plain(tensor) => Read::Plain(gather(&tensor, &order.map(|row| row as u32).collect::<Vec<_>>())?),
        })
    }
}
