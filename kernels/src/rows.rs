//! Movement of rows: a token is one contiguous row, gathered by index, joined from parts. Works on any device and
//! dtype, and is differentiable; on a GPU each is one launch.

use candle_core::Tensor;

use crate::cuda;
use crate::device_list::DeviceList;
use crate::error::{Error, Result};

/// The rows of `x` (dimension 0) at `indices`, in that order.
///
/// # Errors
/// An index beyond the rows.
pub fn gather(x: &Tensor, indices: &[u32]) -> Result<Tensor> {
    gather_list(x, &indices.into())
}

/// [`gather`] with a list that is used more than once: the device keeps it.
///
/// # Errors
/// An index beyond the rows.
pub fn gather_list(x: &Tensor, indices: &DeviceList) -> Result<Tensor> {
    if indices.is_empty() {
        return Ok(x.narrow(0, 0, 0)?);
    }
    check("gather", indices, x.dim(0)?)?;
    if let Some(rows) = cuda::gather(x, indices)? {
        return Ok(rows);
    }
    let list = Tensor::from_slice(indices, indices.len(), x.device())?;
    Ok(x.contiguous()?.index_select(&list, 0)?)
}

/// `parts` (one and more) one after the other along dimension `dim`.
///
/// # Errors
/// No part; shapes that differ in another dimension, dtypes that differ.
pub fn join(parts: &[&Tensor], dim: usize) -> Result<Tensor> {
    let Some((first, rest)) = parts.split_first() else {
        let (expected, found) = ("at least one".into(), "none".into());
        return Err(Error::Shape { op: "join", what: "parts", expected, found });
    };
    if rest.is_empty() {
        return Ok((*first).clone());
    }
    let like_first = |part: &&Tensor| {
        let same = |i: usize| i == dim || part.dims()[i] == first.dims()[i];
        part.rank() == first.rank() && part.dtype() == first.dtype() && (0..first.rank()).all(same)
    };
    if dim < first.rank()
        && parts.iter().all(like_first)
        && let Some(joined) = cuda::join(parts, dim)?
    {
        return Ok(joined);
    }
    Ok(Tensor::cat(parts, dim)?)
}

/// The tensor itself where its numbers follow one another, else a copy.
///
/// # Errors
/// The device refuses.
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    cuda::contiguous(x)
}

/// Checks that every index is a row.
fn check(op: &'static str, indices: &[u32], rows: usize) -> Result<()> {
    match indices.iter().find(|&&index| index as usize >= rows) {
        None => Ok(()),
        Some(index) => {
            let (expected, found) = (format!("below {rows}"), index.to_string());
            Err(Error::Shape { op, what: "index", expected, found })
        }
    }
}
