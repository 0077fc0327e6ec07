//! Attention sinks: a learned logit of each query head that takes part in the softmax with a value
//! of 0 (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.2).

use candle_core::{DType, Tensor};
use rayon::prelude::*;

use crate::error::{Result, expect};
use crate::{Partial, cuda, merge};

/// Attention to all keys with the sinks `[heads]` added: out · exp(lse − lse'), where lse' =
/// ln(exp(lse) + exp(sink)). A row that saw no key keeps 0. To be called once, after the last
/// merge.
///
/// # Errors
/// Returns an error if there is not one sink a head, or if a candle operation fails.
pub fn with_sinks(all: &Partial, sinks: &[f32]) -> Result<Partial> {
    let (rows, heads, head_dim) = all.out.dims3()?;
    expect("sinks", "sinks", heads, sinks.len())?;
    if all.out.elem_count() == 0 {
        return Ok(all.clone());
    }
    if let Some(out) = at_once(all, sinks)? {
        return Ok(out);
    }
    let (dtype, device) = (all.lse.dtype(), all.lse.device());
    let lse = Tensor::from_vec(sinks.repeat(rows), (rows, heads), &candle_core::Device::Cpu)?;
    let lse = lse.to_dtype(dtype)?.to_device(device)?;
    let out = Tensor::zeros((rows, heads, head_dim), all.out.dtype(), all.out.device())?;
    merge(all, &Partial { out, lse })
}

/// The same for contiguous f32 on a CPU, if no gradient is wanted: each number is read once.
fn at_once(all: &Partial, sinks: &[f32]) -> Result<Option<Partial>> {
    let fits = |x: &Tensor| x.device().is_cpu() && x.dtype() == DType::F32 && x.is_contiguous() && !x.track_op();
    if !fits(&all.out) || !fits(&all.lse) {
        return Ok(None);
    }
    let (dims, head_dim) = (all.out.dims3()?, all.out.dim(2)?);
    let lse = lse_with_sinks(&all.lse, sinks)?;
    let numbers = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    let (sums, with_sink, mut out) = (numbers(&all.lse)?, numbers(&lse)?, numbers(&all.out)?);
    let heads = out.par_chunks_exact_mut(head_dim).zip(&sums).zip(&with_sink);
    heads.for_each(|((head, sum), lse)| {
        let share = (sum - lse).exp();
        head.iter_mut().for_each(|number| *number *= share);
    });
    Ok(Some(Partial { out: Tensor::from_vec(out, dims, all.out.device())?, lse }))
}

/// ln(exp(sum) + exp(sink)), without overflow. A row whose sum is +∞ reads nothing, and keeps that.
fn log_add(sum: f32, sink: f32) -> f32 {
    let (large, small) = (sum.max(sink), sum.min(sink));
    if large.is_finite() { large + (small - large).exp().ln_1p() } else { large }
}

/// The log-sum-exp `[rows, heads]` of rows with the sinks `[heads]` added: what attention to their
/// keys is normalised by.
///
/// # Errors
/// Returns an error if there is not one sink a head, or if a candle operation fails.
pub fn lse_with_sinks(lse: &Tensor, sinks: &[f32]) -> Result<Tensor> {
    let (rows, heads) = lse.dims2()?;
    expect("sinks", "sinks", heads, sinks.len())?;
    let mut sums: Vec<f32> = cuda::download(lse)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = log_add(*sum, sinks[index % heads]);
    }
    let sums = Tensor::from_vec(sums, (rows, heads), &candle_core::Device::Cpu)?;
    Ok(sums.to_dtype(lse.dtype())?.to_device(lse.device())?)
}
