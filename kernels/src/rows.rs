//! Movement of rows: a token is one contiguous row, gathered by index, joined from parts. Works on
//! any device and dtype, and is differentiable; on a GPU each is one launch. Sums of weighted rows
//! are on CPUs alone.

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Tensor};
use rayon::prelude::*;

use crate::cuda;
use crate::device_list::DeviceList;
use crate::error::{Error, Result, expect};

/// Rows that a thread adds at least: fewer are not worth waking another one.
const ROWS_A_THREAD: usize = 64;

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

/// Adds row i of `rows` `[count, width]`, times `weights[i]`, to row `places[i]` of `into`
/// `[.., width]`, in place: every tensor that shares its storage sees it. Both are contiguous f32
/// or f64 on a CPU; places rise. On a GPU [`Pairs::add`](crate::Pairs::add) sums experts' rows.
///
/// # Errors
/// Returns an error if places do not rise or are beyond the rows, if shapes or types do not fit, or
/// if a tensor is on a GPU.
pub fn add_rows(into: &Tensor, rows: &Tensor, places: &[u32], weights: &[f32]) -> Result<()> {
    const OP: &str = "add_rows";
    let (there, width) = into.dims2()?;
    expect(OP, "places", rows.dim(0)?, places.len())?;
    expect(OP, "weights", rows.dim(0)?, weights.len())?;
    expect(OP, "width of the rows", width, rows.dim(1)?)?;
    check(OP, places, there)?;
    if let Some(device) = [into, rows].map(Tensor::device).into_iter().find(|device| !device.is_cpu()) {
        let (expected, found) = ("rows on a CPU".into(), format!("{:?}", device.location()));
        return Err(Error::Shape { op: OP, what: "device", expected, found });
    }
    let known = matches!(into.dtype(), DType::F32 | DType::F64) && rows.dtype() == into.dtype();
    if !known || !into.is_contiguous() || !rows.is_contiguous() || !places.is_sorted_by(|one, next| one < next) {
        let expected = "contiguous rows of f32 or f64 at rising places".into();
        let found = format!("rows of {:?} onto rows of {:?}", rows.dtype(), into.dtype());
        return Err(Error::Shape { op: OP, what: "rows", expected, found });
    }
    if rows.elem_count() > 0 {
        into.inplace_op2(rows, &AddRows { places, weights, width })?;
    }
    Ok(())
}

/// See [`add_rows`], on a CPU.
struct AddRows<'a> {
    places: &'a [u32],
    weights: &'a [f32],
    width: usize,
}

impl AddRows<'_> {
    /// Rows are shared out to the threads of the current rayon pool.
    fn add<T: Copy + Send + Sync + std::ops::Mul<Output = T> + std::ops::AddAssign + From<f32>>(
        &self,
        mut into: &mut [T],
        rows: &[T],
    ) {
        let mut taken = Vec::with_capacity(self.places.len());
        let mut first = 0;
        for (&place, &weight) in self.places.iter().zip(self.weights) {
            let (_, rest) = into.split_at_mut((place as usize - first) * self.width);
            let (row, rest) = rest.split_at_mut(self.width);
            taken.push((row, T::from(weight)));
            (into, first) = (rest, place as usize + 1);
        }
        taken.into_par_iter().zip(rows.par_chunks(self.width)).with_min_len(ROWS_A_THREAD).for_each(
            |((into, weight), row)| {
                for (sum, &x) in into.iter_mut().zip(row) {
                    *sum += weight * x;
                }
            },
        );
    }
}

impl InplaceOp2 for AddRows<'_> {
    fn name(&self) -> &'static str {
        "add_rows"
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        into_layout: &Layout,
        rows: &CpuStorage,
        rows_layout: &Layout,
    ) -> std::result::Result<(), candle_core::Error> {
        let of = |layout: &Layout| layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
        let (to, from) = (of(into_layout), of(rows_layout));
        match (into, rows) {
            (CpuStorage::F32(into), CpuStorage::F32(rows)) => self.add(&mut into[to], &rows[from]),
            (CpuStorage::F64(into), CpuStorage::F64(rows)) => self.add(&mut into[to], &rows[from]),
            _ => candle_core::bail!("add_rows: rows of another type"),
        }
        Ok(())
    }
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
