//! The exact merge of partial results over disjoint keys, in one launch.

use candle_core::{DType, Tensor};

use super::call::{Call, Input, Output, blocks, ours, suffix};
use super::rows::contiguous;
use crate::Partial;
use crate::error::Result;

/// Parts that one launch merges: `MOST_PARTS` in merge.cu.
const MOST_PARTS: usize = 16;

const THREADS: u32 = 256;

/// Attention over the keys of all parts (one and more, all of one shape and type). `None` where a
/// GPU does not hold them all.
pub fn merge(parts: &[&Partial]) -> Result<Option<Partial>> {
    if parts.len() > MOST_PARTS {
        let Some(first) = merge(&parts[..MOST_PARTS])? else { return Ok(None) };
        let rest: Vec<&Partial> = std::iter::once(&first).chain(parts[MOST_PARTS..].iter().copied()).collect();
        return merge(&rest);
    }
    let dtype = parts[0].out.dtype();
    let known =
        |part: &&Partial| ours(&[&part.out, &part.lse]) && part.out.dtype() == dtype && part.lse.dtype() == DType::F32;
    let Some(suffix) = suffix(dtype).filter(|_| parts.iter().all(known)) else { return Ok(None) };
    let (rows, heads, head_dim) = parts[0].out.dims3()?;
    let outs: Vec<Tensor> = parts.iter().map(|part| contiguous(&part.out)).collect::<Result<_>>()?;
    let lses: Vec<Tensor> = parts.iter().map(|part| contiguous(&part.lse)).collect::<Result<_>>()?;
    let out_inputs: Vec<Input<'_>> = outs.iter().filter_map(Input::new).collect();
    let lse_inputs: Vec<Input<'_>> = lses.iter().filter_map(Input::new).collect();
    assert_eq!(out_inputs.len(), parts.len(), "outputs that are on a GPU");
    assert_eq!(lse_inputs.len(), parts.len(), "log-sum-exps that are on a GPU");
    let device = out_inputs[0].device().clone();
    let stream = device.cuda_stream();
    let mut out = Output::new(&device, dtype, (rows, heads, head_dim))?;
    let mut lse = Output::new(&device, DType::F32, (rows, heads))?;
    let mut call = Call::new(&device, &stream, &format!("merge_{suffix}"))?;
    call.output(&mut out).output(&mut lse);
    let mut block: Vec<u64> = out_inputs.iter().map(|input| call.address_of(input)).collect();
    // A lse needs no more than its own alignment, so only the outputs decide.
    let aligned = call.alignment(&[head_dim * dtype.size_in_bytes()]) >= 16;
    block.resize(MOST_PARTS, 0);
    block.extend(lse_inputs.iter().map(|input| call.address_of(input)));
    block.resize(2 * MOST_PARTS, 0);
    block.push(parts.len() as u64);
    call.block(block).count(rows * heads).count(head_dim).word(u64::from(aligned));
    // SAFETY: the arguments of merge; all parts and the answer have `rows · heads` rows of
    // `head_dim`.
    unsafe { call.launch(blocks(rows * heads * head_dim.div_ceil(8), THREADS)?, THREADS, 0) }?;
    Ok(Some(Partial { out: out.tensor(), lse: lse.tensor() }))
}
