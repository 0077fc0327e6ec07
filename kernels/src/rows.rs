//! Movement of rows: a token is one contiguous row, gathered by index, joined from parts. Works on
//! any device and dtype, and is differentiable; on a GPU each is one launch.

use candle_core::Tensor;

use crate::cuda;
use crate::device_list::DeviceList;
use crate::error::{Error, Result};

/// The rows of `x` (dimension 0) at `indices`, in that order.
///
/// # Errors
/// Returns an error if an index is beyond the rows.
pub fn gather(x: &Tensor, indices: &[u32]) -> Result<Tensor> {
    gather_list(x, &indices.into())
}

/// [`gather`] with a list that is used more than once: the device keeps it.
///
/// # Errors
/// Returns an error if an index is beyond the rows.
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

/// Writes `rows` `[count, ..]` over the rows of `into` from `first` on, in place: every tensor that
/// shares its storage sees them. Both are contiguous and of one dtype.
///
/// # Errors
/// Returns an error if rows are beyond the end, or if shapes or types do not fit.
pub fn write_rows(into: &Tensor, rows: &Tensor, first: usize) -> Result<()> {
    let (count, there) = (rows.dim(0)?, into.dim(0)?);
    let fits = rows.dtype() == into.dtype() && rows.dims()[1..] == into.dims()[1..] && first + count <= there;
    if !fits || !into.is_contiguous() || !rows.is_contiguous() {
        let expected = format!("rows within {:?}, {:?}", into.dims(), into.dtype());
        let found = format!("{:?} from row {first} on, {:?}", rows.dims(), rows.dtype());
        return Err(Error::Shape { op: "write_rows", what: "rows", expected, found });
    }
    if !cuda::write_rows(into, rows, first)? {
        into.slice_set(rows, 0, first)?;
    }
    Ok(())
}

/// `parts` (one and more) one after the other along dimension `dim`.
///
/// # Errors
/// Returns an error if there is no part, if shapes differ in another dimension, or if dtypes
/// differ.
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
/// Returns an error if the device refuses.
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
