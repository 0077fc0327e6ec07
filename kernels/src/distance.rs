//! Distances of rows from others.

use candle_core::{DType, Tensor};

use crate::cuda;
use crate::error::{Error, Result};

/// Distance that is summed over the dimensions of two rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// Squares of differences: the squared Euclidean distance.
    Squared,
    /// Absolute differences.
    Absolute,
}

/// The distance of each row of `a` from that of `b`, over all its dimensions: `[rows]` in f32 (f64
/// where they are). Both are `[rows, ..]` of one shape and type. Differentiable.
///
/// # Errors
/// Returns an error if the shapes differ.
pub fn distance(a: &Tensor, b: &Tensor, by: Distance) -> Result<Tensor> {
    if a.dims() != b.dims() {
        let (expected, found) = (format!("{:?}", a.dims()), format!("{:?}", b.dims()));
        return Err(Error::Shape { op: "distance", what: "the other rows", expected, found });
    }
    let wide = if a.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    if a.elem_count() == 0 {
        return cuda::nothing(0, wide, a.device());
    }
    if !a.track_op()
        && !b.track_op()
        && let Some(distances) = cuda::distance(a, b, by == Distance::Absolute)?
    {
        return Ok(distances);
    }
    let rows = a.dim(0)?;
    let flat = |x: &Tensor| -> Result<Tensor> { Ok(x.reshape((rows, ()))?.to_dtype(wide)?) };
    let apart = (flat(a)? - flat(b)?)?;
    let each = match by {
        Distance::Squared => apart.sqr()?,
        Distance::Absolute => apart.abs()?,
    };
    Ok(each.sum(1)?)
}
