//! The operations between a layer's products: norms, the gated activation, sums, factors, changes
//! of type. One launch each.

use candle_core::{D, DType, Tensor};

use super::call::{Call, Input, Output, blocks, ours, suffix};
use super::rows::{contiguous, row_stride};
use crate::Gate;
use crate::error::Result;

/// Threads of a block in all kernels of this file but the norm of long rows.
const THREADS: u32 = 256;

/// Rows up to this number of numbers count as heads: several to a block.
const SHORT_ROW: usize = 256;

/// Numbers of a long row that its block keeps with one run of 8 a thread.
const LONG_ROW: usize = 512 * 8;

/// The longest row that the norm takes: 4 runs a thread.
const LONGEST_ROW: usize = 4 * LONG_ROW;

/// See [`crate::rms_norm`].
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Option<Tensor>> {
    let dim = weight.dims1()?;
    let Some(suffix) = suffix(x.dtype()).filter(|_| ours(&[x, weight]) && (1..=LONGEST_ROW).contains(&dim)) else {
        return Ok(None);
    };
    let (x, weight) = (contiguous(x)?, cast_or_same(weight, DType::F32)?);
    let (Some(values), Some(scale)) = (Input::new(&x), Input::new(&weight)) else { return Ok(None) };
    let (device, rows) = (values.device().clone(), x.elem_count() / dim);
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, x.dtype(), x.shape())?);
    let short = dim <= SHORT_ROW;
    let runs = dim.div_ceil(LONG_ROW).next_power_of_two();
    let name = if short { format!("rms_norm_heads_{suffix}") } else { format!("rms_norm_{runs}_{suffix}") };
    let mut call = Call::new(&device, &stream, &name)?;
    call.output(&mut out).input(&values).input(&scale);
    let (row_bytes, lanes) = (dim * x.dtype().size_in_bytes(), dim.div_ceil(8).next_power_of_two());
    if short {
        call.count(rows).count(dim).count(lanes).real(eps).aligned(&[row_bytes]);
        // SAFETY: the arguments of rms_norm_heads; it touches `rows` rows of `dim`, which the three
        // tensors have.
        unsafe { call.launch(blocks(rows * lanes, THREADS)?, THREADS, 0) }?;
    } else {
        call.count(dim).real(eps).aligned(&[row_bytes]);
        // SAFETY: the arguments of rms_norm_N, which keeps N runs a thread; block i touches row i
        // of `dim`, and there are `rows`.
        unsafe { call.launch(blocks(rows, 1)?, long_threads(dim), 0) }?;
    }
    Ok(Some(out.tensor()))
}

/// Threads for a row: as few whole warps as keep it in their registers with one run of 8 each, at
/// most 512.
fn long_threads(dim: usize) -> u32 {
    dim.div_ceil(8).next_multiple_of(32).min(512) as u32
}

/// See [`crate::gated`].
pub fn gated(gate: &Tensor, up: &Tensor, by: Gate) -> Result<Option<Tensor>> {
    match by {
        Gate::Silu => of_two("silu_mul", gate, up, None),
        Gate::GeluTanh => of_two("gelu_mul", gate, up, None),
        Gate::ClampedSilu { limit } => of_two("clamped_silu_mul", gate, up, Some(limit)),
    }
}

/// See [`crate::add`].
pub fn add(a: &Tensor, b: &Tensor) -> Result<Option<Tensor>> {
    of_two("add", a, b, None)
}

/// `a` and `b` of one shape; their rows may be apart (halves of one product). A number that the
/// kernel wants beside them comes last.
fn of_two(name: &str, a: &Tensor, b: &Tensor, real: Option<f32>) -> Result<Option<Tensor>> {
    let Some(suffix) = suffix(a.dtype()).filter(|_| ours(&[a, b]) && a.dtype() == b.dtype()) else {
        return Ok(None);
    };
    let (a, b) = (with_rows(a)?, with_rows(b)?);
    let (Some(a_stride), Some(b_stride)) = (row_stride(&a), row_stride(&b)) else { return Ok(None) };
    let (Some(first), Some(second)) = (Input::new(&a), Input::new(&b)) else { return Ok(None) };
    let dim = a.dim(D::Minus1)?;
    let (device, rows, size) = (first.device().clone(), a.elem_count() / dim, a.dtype().size_in_bytes());
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, a.dtype(), a.shape())?);
    let mut call = Call::new(&device, &stream, &format!("{name}_{suffix}"))?;
    call.output(&mut out).input(&first).input(&second).count(rows).count(dim).count(a_stride).count(b_stride);
    call.aligned(&[dim * size, a_stride * size, b_stride * size]);
    if let Some(real) = real {
        call.real(real);
    }
    // SAFETY: the arguments of the kernel; it touches `rows` rows of `dim`, which the three tensors
    // have at these strides.
    unsafe { call.launch(blocks(rows * dim.div_ceil(8), THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}

/// The tensor itself where its rows have one stride, else a contiguous copy.
fn with_rows(x: &Tensor) -> Result<Tensor> {
    if x.rank() >= 1 && row_stride(x).is_some() { Ok(x.clone()) } else { contiguous(x) }
}

/// `bias` `[dim]` in every row of the answer `[rows, dim]`, or `x + bias` where `x` is given; in
/// `dtype`, which is `x`'s.
pub(super) fn bias_rows(x: Option<&Tensor>, bias: &Tensor, rows: usize, dtype: DType) -> Result<Option<Output>> {
    biased(x, bias, None, rows, dtype)
}

/// `x` `[rows, dim]` with a row of `biases` `[any, dim]` added to each of its rows: that in `list`
/// `[rows]`, which is u32 on its device. They are known to be rows.
pub fn add_biases(x: &Tensor, biases: &Tensor, list: &Tensor) -> Result<Option<Tensor>> {
    if !ours(&[x, biases, list]) {
        return Ok(None);
    }
    Ok(biased(Some(x), biases, Some(list), x.dim(0)?, x.dtype())?.map(Output::tensor))
}

/// See [`bias_rows`], and [`add_biases`] where there is a list.
fn biased(
    x: Option<&Tensor>,
    biases: &Tensor,
    list: Option<&Tensor>,
    rows: usize,
    dtype: DType,
) -> Result<Option<Output>> {
    let Some(suffix) = suffix(dtype).filter(|_| x.is_none_or(|x| x.dtype() == dtype)) else { return Ok(None) };
    let biases = cast_or_same(biases, DType::F32)?;
    let x = x.map(contiguous).transpose()?;
    let (dim, values, list) = (biases.dim(D::Minus1)?, x.as_ref().and_then(Input::new), list.and_then(Input::new));
    let Some(added) = Input::new(&biases) else { return Ok(None) };
    let device = added.device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, dtype, (rows, dim))?);
    let mut call = Call::new(&device, &stream, &format!("bias_rows_{suffix}"))?;
    call.output(&mut out);
    match &values {
        Some(values) => call.input(values),
        None => call.word(0),
    };
    call.input(&added).count(rows).count(dim).aligned(&[dim * dtype.size_in_bytes()]);
    match &list {
        Some(list) => call.input(list),
        None => call.word(0),
    };
    // SAFETY: the arguments of bias_rows; it touches `rows` rows of `dim`, as many numbers of the
    // list, and the rows of the biases that these are, or the first.
    unsafe { call.launch(blocks(rows * dim.div_ceil(8), THREADS)?, THREADS, 0) }?;
    Ok(Some(out))
}

/// See [`crate::scale`]; with `factors`, one a row, [`crate::scale_rows`].
pub fn scale(x: &Tensor, factor: f32, factors: Option<&Tensor>) -> Result<Option<Tensor>> {
    let known = factors.is_none_or(|factors| ours(&[factors]) && factors.dtype() == DType::F32);
    let Some(suffix) = suffix(x.dtype()).filter(|_| ours(&[x]) && known) else { return Ok(None) };
    let (x, factors) = (contiguous(x)?, factors.map(contiguous).transpose()?);
    let rows = factors.as_ref().map_or(1, |_| x.dims()[0]);
    let dim = x.elem_count() / rows;
    let (Some(values), of_rows) = (Input::new(&x), factors.as_ref().and_then(Input::new)) else { return Ok(None) };
    let device = values.device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, x.dtype(), x.shape())?);
    let mut call = Call::new(&device, &stream, &format!("scale_{suffix}"))?;
    call.output(&mut out).input(&values);
    match &of_rows {
        Some(of_rows) => call.input(of_rows),
        None => call.word(0),
    };
    call.count(rows).count(dim).real(factor).aligned(&[dim * x.dtype().size_in_bytes()]);
    // SAFETY: the arguments of scale; it touches `rows` rows of `dim`, which both tensors have, and
    // as many factors.
    unsafe { call.launch(blocks(rows * dim.div_ceil(8), THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}

/// See [`crate::cast`].
pub fn cast(x: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
    let (Some(from), Some(to)) = (suffix(x.dtype()), suffix(dtype)) else { return Ok(None) };
    if !ours(&[x]) || from == to {
        return Ok(None);
    }
    let x = contiguous(x)?;
    let Some(values) = Input::new(&x) else { return Ok(None) };
    let (device, count) = (values.device().clone(), x.elem_count());
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, dtype, x.shape())?);
    let mut call = Call::new(&device, &stream, &format!("cast_{from}_{to}"))?;
    call.output(&mut out).input(&values).count(count).aligned(&[]);
    // SAFETY: the arguments of cast; both tensors have `count` numbers.
    unsafe { call.launch(blocks(count.div_ceil(8), THREADS)?, THREADS, 0) }?;
    Ok(Some(out.tensor()))
}

/// A contiguous tensor of this type.
fn cast_or_same(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return contiguous(x);
    }
    match cast(x, dtype)? {
        Some(cast) => Ok(cast),
        None => Ok(x.to_dtype(dtype)?.contiguous()?),
    }
}
