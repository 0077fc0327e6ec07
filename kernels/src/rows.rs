//! Movement of rows: a token is one contiguous row, gathered and replaced by index, joined from parts. Works on any device and
//! dtype, and is differentiable; on a GPU each is one launch.

use candle_core::Tensor;

use crate::cuda;
use crate::device_list::DeviceList;
use crate::error::{Error, Result, expect};

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

/// `base` with its rows at `indices` replaced by `rows`, in that order; `base` itself is left alone. Where an index
/// occurs twice, its last row counts.
///
/// # Errors
/// Shapes that do not fit, an index beyond the rows.
pub fn scatter(base: &Tensor, indices: &[u32], rows: &Tensor) -> Result<Tensor> {
    expect("scatter", "rows", indices.len(), rows.dim(0)?)?;
    if indices.is_empty() {
        return Ok(base.clone());
    }
    let count = base.dim(0)?;
    check("scatter", indices, count)?;
    if rows.dims()[1..] != base.dims()[1..] || rows.dtype() != base.dtype() {
        let shape = |x: &Tensor| format!("{:?} {:?}", &x.dims()[1..], x.dtype());
        let (expected, found) = (shape(base), shape(rows));
        return Err(Error::Shape { op: "scatter", what: "each row", expected, found });
    }
    let mut source: Vec<u32> = (0..count as u32).collect();
    for (row, &index) in indices.iter().enumerate() {
        source[index as usize] = (count + row) as u32;
    }
    if let Some(patched) = cuda::replaced(base, rows, &source.as_slice().into())? {
        return Ok(patched);
    }
    gather(&Tensor::cat(&[base, rows], 0)?, &source)
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
