//! The matrix products of linear layers on the current rayon pool: candle's own would take all
//! threads of the machine, beyond the rank's share. Many rows go to the `gemm` crate, few to a
//! product of our own ([`few_rows`]).

use candle_core::{CpuStorage, Storage, Tensor};
use gemm::{Parallelism, gemm};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::few_rows;
use super::level::Level;
use super::stored::Stored;
use crate::error::Result;
use crate::tiles;

/// Number of rows up to which the product of few rows is used. On one thread with AVX-512 and
/// weights of 512 inputs it took two thirds of the other's time at 32 rows and at 64, and a third
/// more at 128.
const FEW_ROWS: usize = 32;

/// Approximate number of multiplications in a tile of rows, and the number of rows that divides a
/// tile's: a tile takes a tenth of a second on a slow core, and is long enough to share out.
const TILE_PRODUCTS: usize = 1 << 32;
const TILE_ROWS: usize = 512;

/// Output columns whose weight, if it is stored narrow, is widened at a time.
const TILE_COLUMNS: usize = 256;

/// `onto + x · weightᵀ + bias`: `x` f32 `[rows, inputs]`, `weight` f32, bf16 or f16
/// `[outputs, inputs]`, `onto` f32 `[rows, outputs]` or nothing, `bias` f32 `[outputs]` or nothing.
/// `None` where a tensor is not contiguous, not of such a type or not on the CPU.
pub(crate) fn product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    onto: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let outputs = weight.dim(0)?;
    if ![Some(x), Some(weight), bias, onto].into_iter().flatten().all(Tensor::is_contiguous) {
        return Ok(None);
    }
    let (x_held, weight_held) = (x.storage_and_layout(), weight.storage_and_layout());
    let Some(x_values) = f32_values(&x_held.0, x_held.1.start_offset(), rows * inputs) else { return Ok(None) };
    let shape = Shape { rows, inputs, outputs };
    let onto = match onto.map(|onto| values(onto, rows * outputs)) {
        None => None,
        Some(None) => return Ok(None),
        onto => onto.flatten(),
    };
    let bias = match bias.map(|bias| values(bias, outputs)) {
        None => None,
        Some(None) => return Ok(None),
        bias => bias.flatten(),
    };
    let added = Added { onto, bias };
    let (from, count) = (weight_held.1.start_offset(), outputs * inputs);
    let out = match &*weight_held.0 {
        Storage::Cpu(CpuStorage::F32(weight)) => {
            let weight = &weight[from..from + count];
            of_type(shape, x_values, weight, added, |out, accumulate| {
                columns(shape, x_values, weight, Target { out, first: 0, accumulate });
            })
        }
        Storage::Cpu(CpuStorage::BF16(weight)) => {
            let weight = &weight[from..from + count];
            of_type(shape, x_values, weight, added, |out, add| narrow(shape, x_values, weight, out, add))
        }
        Storage::Cpu(CpuStorage::F16(weight)) => {
            let weight = &weight[from..from + count];
            of_type(shape, x_values, weight, added, |out, add| narrow(shape, x_values, weight, out, add))
        }
        _ => return Ok(None),
    };
    Ok(Some(Tensor::from_vec(out, (rows, outputs), x.device())?))
}

/// The terms that are added to a product.
struct Added {
    /// `[rows, outputs]`.
    onto: Option<Vec<f32>>,
    /// `[outputs]`.
    bias: Option<Vec<f32>>,
}

impl Added {
    /// Adds the bias to every existing row.
    fn add_bias(&self, out: &mut [f32]) {
        let Some(bias) = &self.bias else { return };
        let add = |row: &mut [f32]| row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        out.par_chunks_mut(bias.len()).for_each(add);
    }
}

/// The product with a weight of one type; `many` writes it where it has many rows, added to
/// existing values if that is wanted.
fn of_type<T: Stored>(
    shape: Shape,
    x: &[f32],
    weight: &[T],
    mut added: Added,
    many: impl FnOnce(&mut [f32], bool),
) -> Vec<f32> {
    if shape.rows <= FEW_ROWS {
        let mut out = few_rows::product(Level::best(), x, weight, shape.inputs);
        if let Some(onto) = &added.onto {
            out.iter_mut().zip(onto).for_each(|(value, onto)| *value += onto);
        }
        added.add_bias(&mut out);
        return out;
    }
    let accumulate = added.onto.is_some() || added.bias.is_some();
    let mut out = added.onto.take().unwrap_or_else(|| vec![0.0; shape.rows * shape.outputs]);
    added.add_bias(&mut out);
    many(&mut out, accumulate);
    out
}

#[derive(Clone, Copy)]
struct Shape {
    rows: usize,
    inputs: usize,
    outputs: usize,
}

fn f32_values(storage: &Storage, from: usize, count: usize) -> Option<&[f32]> {
    match storage {
        Storage::Cpu(CpuStorage::F32(values)) => Some(&values[from..from + count]),
        _ => None,
    }
}

/// A copy of a contiguous f32 tensor's values.
fn values(tensor: &Tensor, count: usize) -> Option<Vec<f32>> {
    let held = tensor.storage_and_layout();
    f32_values(&held.0, held.1.start_offset(), count).map(<[f32]>::to_vec)
}

/// A narrow weight, widened a tile of output columns at a time.
fn narrow<T>(shape: Shape, x: &[f32], weight: &[T], out: &mut [f32], accumulate: bool)
where
    [T]: HalfFloatSliceExt,
{
    let mut wide = vec![0.0; TILE_COLUMNS.min(shape.outputs) * shape.inputs];
    for (index, tile) in weight.chunks(TILE_COLUMNS * shape.inputs).enumerate() {
        let wide = &mut wide[..tile.len()];
        tile.convert_to_f32_slice(wide);
        if !columns(shape, x, wide, Target { out, first: index * TILE_COLUMNS, accumulate }) {
            return;
        }
    }
}

/// The output, and how products are written into it.
struct Target<'a> {
    out: &'a mut [f32],
    /// The first of the columns that are written.
    first: usize,
    /// Whether products are added to existing values.
    accumulate: bool,
}

/// The target's columns, as many as `weight` has rows; some rows of `x` at a time, so that a long
/// product reports progress. Returns whether the rest of the product is wanted.
fn columns(shape: Shape, x: &[f32], weight: &[f32], target: Target<'_>) -> bool {
    let Target { out, first, accumulate } = target;
    let rows = (TILE_PRODUCTS / weight.len().max(1)).next_multiple_of(TILE_ROWS);
    for (x, out) in x.chunks(rows * shape.inputs).zip(out.chunks_mut(rows * shape.outputs)) {
        let shape = Shape { rows: x.len() / shape.inputs, ..shape };
        columns_of_rows(shape, x, weight, Target { out, first, accumulate });
        if !tiles::done() {
            return false;
        }
    }
    true
}

fn columns_of_rows(shape: Shape, x: &[f32], weight: &[f32], target: Target<'_>) {
    let Shape { rows, inputs, outputs } = shape;
    let Target { out, first, accumulate } = target;
    let count = weight.len() / inputs;
    assert_eq!(x.len(), rows * inputs, "x");
    assert_eq!(out.len(), rows * outputs, "out");
    assert!(first + count <= outputs, "columns {first}..{} of {outputs}", first + count);
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let (row_step, inputs_step) = (outputs as isize, inputs as isize);
    // SAFETY: x is [rows, inputs] and weight [count, inputs], both row by row, as the lengths
    // checked above say; out is [rows, outputs] row by row, of which columns first..first + count
    // are written, and it is borrowed exclusively.
    unsafe {
        gemm(
            rows,
            count,
            inputs,
            out.as_mut_ptr().add(first),
            1,
            row_step,
            accumulate,
            x.as_ptr(),
            1,
            inputs_step,
            weight.as_ptr(),
            inputs_step,
            1,
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
