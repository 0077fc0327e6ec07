//! The matrix products of linear layers on the current rayon pool: candle's own would take all
//! threads of the machine, beyond the rank's share. Few rows stream the weight ([`few_rows`]), many
//! rows have it packed ([`many_rows`]). Where the machine multiplies pairs of bf16, a weight in
//! that type has products of its own: inputs are rounded to bf16, sums are f32.

use std::ops::{Deref, Range};

use candle_core::{CpuStorage, Storage, Tensor};
use half::bf16;

use super::level::Level;
use super::many_rows::{self, Weight};
use super::multiply::Added;
use super::stored::Stored;
use super::{few_rows, packed_integers, packed_pairs, packed_rows};
use crate::error::Result;
use crate::gate::Gate;
use crate::{Packed, WeightRef};

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
    let outputs = weight.dim(0)?;
    let Some((storage, numbers)) = contiguous(weight) else { return Ok(None) };
    match &*storage {
        Storage::Cpu(CpuStorage::F32(weight)) => with(x, outputs, [bias, onto], |call| call.with(&weight[numbers])),
        Storage::Cpu(CpuStorage::BF16(weight)) => {
            with(x, outputs, [bias, onto], |call| call.with_bf16(&weight[numbers]))
        }
        Storage::Cpu(CpuStorage::F16(weight)) => with(x, outputs, [bias, onto], |call| call.with(&weight[numbers])),
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

/// The gated activation of the products of `x` with two weights, biases added, as of [`product`].
/// `None` too where there are few rows, or where the weights are not stored alike.
pub(crate) fn gated_product(
    x: &Tensor,
    weights: [WeightRef<'_>; 2],
    biases: [Option<&Tensor>; 2],
    by: Gate,
) -> Result<Option<Tensor>> {
    let ((rows, inputs), [outputs, _]) = (x.dims2()?, weights[0].dims()?);
    if rows <= FEW_ROWS {
        return Ok(None);
    }
    let (Some(values), [Some(gate_bias), Some(up_bias)]) = (numbers(x), biases.map(optional)) else {
        return Ok(None);
    };
    let (level, plain) = (Level::best(), weights.map(|weight| weight.plain().and_then(contiguous)));
    let weight = |index: usize| match weights[index] {
        WeightRef::Packed(packed) => packed.on_gpu().is_none().then(|| of_packed(level, packed)),
        WeightRef::Plain(_) => {
            let (storage, numbers) = plain[index].as_ref()?;
            match &**storage {
                Storage::Cpu(CpuStorage::F32(weight)) => Some(Weight::of(level, &weight[numbers.clone()], inputs)),
                Storage::Cpu(CpuStorage::BF16(weight)) => Some(of_bf16(level, &weight[numbers.clone()], inputs)),
                Storage::Cpu(CpuStorage::F16(weight)) => Some(Weight::of(level, &weight[numbers.clone()], inputs)),
                _ => None,
            }
        }
    };
    let (Some(gate), Some(up)) = (weight(0), weight(1)) else { return Ok(None) };
    let biases = [&gate_bias, &up_bias].map(|bias| bias.as_ref().map(Numbers::get));
    let out = many_rows::gated(values.get(), [&gate, &up], biases, by);
    Ok(out.map(|out| Tensor::from_vec(out, (rows, outputs), x.device())).transpose()?)
}

/// A weight in bf16, in pairs if they are multiplied.
fn of_bf16(level: Level, weight: &[bf16], inputs: usize) -> Weight<'_> {
    match level.has_pairs() && inputs.is_multiple_of(2) {
        true => Weight::of_pairs(level, weight.as_chunks::<2>().0, inputs / 2),
        false => Weight::of(level, weight, inputs),
    }
}

fn of_packed(level: Level, weight: &Packed) -> Weight<'_> {
    Weight::of_packed(level, weight, in_pairs(level, weight))
}

/// Whether a packed weight is multiplied in pairs.
fn in_pairs(level: Level, weight: &Packed) -> bool {
    weight.is_multiplied_in_bf16() && level.has_pairs()
}

/// A contiguous tensor's storage while it is read, and the place of its numbers.
fn contiguous(tensor: &Tensor) -> Option<(impl Deref<Target = Storage>, Range<usize>)> {
    let (storage, layout) = tensor.storage_and_layout();
    let (from, to) = layout.contiguous_offsets()?;
    Some((storage, from..to))
}

/// The numbers of a contiguous f32 tensor on the CPU while they are read.
struct Numbers<S>(S, Range<usize>);

impl<S: Deref<Target = Storage>> Numbers<S> {
    fn get(&self) -> &[f32] {
        match &*self.0 {
            Storage::Cpu(CpuStorage::F32(numbers)) => &numbers[self.1.clone()],
            _ => unreachable!("their type was seen before"),
        }
    }
}

fn numbers(tensor: &Tensor) -> Option<Numbers<impl Deref<Target = Storage>>> {
    let (storage, numbers) = contiguous(tensor)?;
    matches!(&*storage, Storage::Cpu(CpuStorage::F32(_))).then(|| Numbers(storage, numbers))
}

/// Those of a tensor that need not be there.
fn optional(tensor: Option<&Tensor>) -> Option<Option<Numbers<impl Deref<Target = Storage>>>> {
    match tensor {
        None => Some(None),
        Some(tensor) => numbers(tensor).map(Some),
    }
}

/// What `multiply` makes of a product's inputs, if they are where they can be read.
fn with(
    x: &Tensor,
    outputs: usize,
    added: [Option<&Tensor>; 2],
    multiply: impl FnOnce(Call<'_>) -> Vec<f32>,
) -> Result<Option<Tensor>> {
    let (rows, inputs) = x.dims2()?;
    let (Some(values), [Some(bias), Some(onto)]) = (numbers(x), added.map(optional)) else {
        return Ok(None);
    };
    let added = Added { onto: onto.as_ref().map(Numbers::get), bias: bias.as_ref().map(Numbers::get) };
    let call = Call { level: Level::best(), x: values.get(), inputs, added };
    Ok(Some(Tensor::from_vec(multiply(call), (rows, outputs), x.device())?))
}

/// A product without its weight.
struct Call<'a> {
    level: Level,
    /// `[rows, inputs]`.
    x: &'a [f32],
    inputs: usize,
    added: Added<'a>,
}

impl Call<'_> {
    fn with<T: Stored>(self, weight: &[T]) -> Vec<f32> {
        let Self { level, x, inputs, .. } = self;
        self.sum(|| few_rows::product(level, x, weight, inputs), || Weight::of(level, weight, inputs))
    }

    fn with_bf16(self, weight: &[bf16]) -> Vec<f32> {
        if !self.level.has_pairs() || !self.inputs.is_multiple_of(2) {
            return self.with(weight);
        }
        let Self { level, x, inputs, .. } = self;
        let few = || {
            let x = many_rows::paired(level, x);
            few_rows::product_of_pairs(level, x.get(), weight.as_chunks::<2>().0, inputs / 2)
        };
        self.sum(few, || of_bf16(level, weight, inputs))
    }

    fn with_packed(self, weight: &Packed) -> Vec<f32> {
        let Self { level, x, .. } = self;
        let integers = weight.is_multiplied_in_bf16() && level.has_integers();
        let of_integers = || integers.then(|| packed_integers::product(level, x, weight)).flatten();
        let of_pairs = || in_pairs(level, weight).then(|| packed_pairs::product(level, x, weight)).flatten();
        let few = || of_integers().or_else(of_pairs).unwrap_or_else(|| packed_rows::product(level, x, weight));
        self.sum(few, || of_packed(level, weight))
    }

    /// A product and what is added to it: `few` gives the product where it has few rows.
    fn sum<'w>(self, few: impl FnOnce() -> Vec<f32>, weight: impl FnOnce() -> Weight<'w>) -> Vec<f32> {
        let Added { onto, bias } = self.added;
        if self.x.len() / self.inputs > FEW_ROWS {
            return weight().product(self.x, self.added);
        }
        let mut out = few();
        if let Some(onto) = onto {
            out.iter_mut().zip(onto).for_each(|(value, onto)| *value += onto);
        }
        if let Some(bias) = bias {
            let rows = out.chunks_mut(bias.len());
            rows.for_each(|row| row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias));
        }
        out
    }
}
