//! How far rows lie from others.

use candle_core::{DType, Tensor};

use crate::cuda;
use crate::error::{Error, Result};

/// The squared Euclidean distance of each row of `a` from that of `b`, over all its dimensions: `[rows]` in f32 (f64 where they are).
/// Both are `[rows, ..]` of one shape and type. Differentiable.
///
/// # Errors
/// Shapes that differ.
pub fn squared_distance(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() {
        let (expected, found) = (format!("{:?}", a.dims()), format!("{:?}", b.dims()));
        return Err(Error::Shape { op: "squared_distance", what: "the other rows", expected, found });
    }
    let wide = if a.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    if a.elem_count() == 0 {
        return cuda::nothing(0, wide, a.device());
    }
    if !a.track_op()
        && !b.track_op()
        && let Some(distances) = cuda::squared_distance(a, b)?
    {
        return Ok(distances);
    }
    let rows = a.dim(0)?;
    let flat = |x: &Tensor| -> Result<Tensor> { Ok(x.reshape((rows, ()))?.to_dtype(wide)?) };
    Ok((flat(a)? - flat(b)?)?.sqr()?.sum(1)?)
}
