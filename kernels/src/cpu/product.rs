//! The matrix products of linear layers on the current rayon pool: candle's own would take all
//! threads of the machine, beyond the rank's share. Few rows stream the weight ([`few_rows`]), many
//! rows have it packed ([`many_rows`]). Where the machine multiplies pairs of bf16, a weight in
//! that type has products of its own: inputs are rounded to bf16, sums are f32.

use candle_core::{CpuStorage, Storage, Tensor};
use half::bf16;
use rayon::prelude::*;

use super::level::Level;
use super::many_rows::{self, Target};
use super::stored::Stored;
use super::{few_rows, packed_pairs, packed_rows};
use crate::Packed;
use crate::error::Result;

/// Number of rows up to which the product of few rows is used: at more, packing the weight is worth
/// its time.
const FEW_ROWS: usize = 32;

/// `onto + x · weightᵀ + bias`: `x` f32 `[rows, inputs]`, `weight` f32, bf16 or f16
/// `[outputs, inputs]`, `onto` f32 `[rows, outputs]` or nothing, `bias` f32 `[outputs]` or nothing.
/// `None` where a tensor is not contiguous, not of such a type or not on the CPU.
pub(crate) fn product(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    onto: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    let (inputs, outputs) = (x.dim(1)?, weight.dim(0)?);
    if !weight.is_contiguous() {
        return Ok(None);
    }
    let held = weight.storage_and_layout();
    let (from, count) = (held.1.start_offset(), outputs * inputs);
    match &*held.0 {
        Storage::Cpu(CpuStorage::F32(weight)) => {
            with(x, outputs, [bias, onto], |call| call.with(&weight[from..from + count]))
        }
        Storage::Cpu(CpuStorage::BF16(weight)) => {
            with(x, outputs, [bias, onto], |call| call.with_bf16(&weight[from..from + count]))
        }
        Storage::Cpu(CpuStorage::F16(weight)) => {
            with(x, outputs, [bias, onto], |call| call.with(&weight[from..from + count]))
        }
        _ => Ok(None),
    }
}

/// The same with a packed weight; `None` too where that is not on the host.
pub(crate) fn product_of_packed(
    x: &Tensor,
    weight: &Packed,
    bias: Option<&Tensor>,
    onto: Option<&Tensor>,
) -> Result<Option<Tensor>> {
    if weight.on_gpu().is_some() {
        return Ok(None);
    }
    with(x, weight.dims()[0], [bias, onto], |call| call.with_packed(weight))
}

/// What `multiply` makes of a product's inputs, if they are where they can be read.
fn with(
    x: &Tensor,
    outputs: usize,
    [bias, onto]: [Option<&Tensor>; 2],
    multiply: impl FnOnce(Call<'_>) -> Vec<f32>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    if ![Some(x), bias, onto].into_iter().flatten().all(Tensor::is_contiguous) {
        return Ok(None);
    }
    let x_held = x.storage_and_layout();
    let Some(x_values) = f32_values(&x_held.0, x_held.1.start_offset(), rows * inputs) else { return Ok(None) };
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
    let call = Call { level: Level::best(), x: x_values, inputs, outputs, added: Added { onto, bias } };
    Ok(Some(Tensor::from_vec(multiply(call), (rows, outputs), x.device())?))
}

/// A product without its weight.
struct Call<'a> {
    level: Level,
    /// `[rows, inputs]`.
    x: &'a [f32],
    inputs: usize,
    outputs: usize,
    added: Added,
}

impl Call<'_> {
    fn with<T: Stored>(self, weight: &[T]) -> Vec<f32> {
        let Self { level, x, inputs, .. } = self;
        let few = || few_rows::product(level, x, weight, inputs);
        self.sum(few, |target| many_rows::product(level, x, weight, inputs, target))
    }

    fn with_bf16(self, weight: &[bf16]) -> Vec<f32> {
        if !self.level.has_pairs() || !self.inputs.is_multiple_of(2) {
            return self.with(weight);
        }
        let (level, (weight, _), pairs) = (self.level, weight.as_chunks::<2>(), self.inputs / 2);
        let x = self.x;
        let few = || few_rows::product_of_pairs(level, many_rows::paired(level, x).get(), weight, pairs);
        self.sum(few, |target| many_rows::product_of_pairs(level, x, weight, pairs, target))
    }

    fn with_packed(self, weight: &Packed) -> Vec<f32> {
        let Self { level, x, .. } = self;
        let in_pairs = weight.is_multiplied_in_bf16() && level.has_pairs();
        let of_pairs = || if in_pairs { packed_pairs::product(level, x, weight) } else { None };
        let few = || of_pairs().unwrap_or_else(|| packed_rows::product(level, x, weight));
        self.sum(few, |target| many_rows::product_of_packed(level, x, weight, in_pairs, target))
    }

    /// A product and what is added to it: `few` gives it where it has few rows, `many` writes it
    /// where it has many.
    fn sum(mut self, few: impl FnOnce() -> Vec<f32>, many: impl FnOnce(Target<'_>)) -> Vec<f32> {
        let (added, rows) = (&mut self.added, self.x.len() / self.inputs);
        if rows <= FEW_ROWS {
            let mut out = few();
            if let Some(onto) = &added.onto {
                out.iter_mut().zip(onto).for_each(|(value, onto)| *value += onto);
            }
            added.add_bias(&mut out);
            return out;
        }
        let accumulate = added.onto.is_some() || added.bias.is_some();
        let mut out = added.onto.take().unwrap_or_else(|| vec![0.0; rows * self.outputs]);
        added.add_bias(&mut out);
        many(Target { out: &mut out, accumulate });
        out
    }
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
