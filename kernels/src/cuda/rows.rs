//! Movement of rows. A row of any type is a number of bytes; the kernels move the widest words that
//! its length and place allow.

use candle_core::Tensor;

use super::call::{Call, Input, Output, ours};
use super::memory::nothing;
use crate::DeviceList;
use crate::error::Result;

/// Parts that one launch joins: `MOST_PARTS` in rows.cu.
const MOST_PARTS: usize = 32;

/// Blocks that a grid can have along y; the kernels' blocks take further rows in turn.
const MOST_BLOCKS_Y: usize = 65535;

/// The numbers from one row (all dimensions but the last are rows) to the next, where that is the
/// same for all and a row's numbers follow one another.
pub(super) fn row_stride(x: &Tensor) -> Option<usize> {
    let (dims, strides) = (x.dims(), x.stride());
    let last = dims.len().checked_sub(1)?;
    if dims[last] > 1 && strides[last] != 1 {
        return None;
    }
    let mut stride = None;
    for i in (0..last).rev().filter(|&i| dims[i] > 1) {
        match stride {
            None => stride = Some((strides[i], strides[i] * dims[i])),
            Some((row, next)) if strides[i] == next => stride = Some((row, next * dims[i])),
            Some(_) => return None,
        }
    }
    Some(stride.map_or(dims[last], |(row, _)| row))
}

/// Grid and block for `rows` rows of `words` words.
fn grid(rows: usize, words: usize) -> ((u32, u32, u32), u32) {
    let threads = words.next_multiple_of(32).clamp(32, 256);
    ((words.div_ceil(threads) as u32, rows.min(MOST_BLOCKS_Y) as u32, 1), threads as u32)
}

/// Bytes of all dimensions of a row (the first dimension counts rows).
fn row_bytes(x: &Tensor) -> usize {
    x.dims().iter().skip(1).product::<usize>() * x.dtype().size_in_bytes()
}

/// The tensor itself where it is contiguous, else a copy. (On a GPU in one launch, where the
/// dimensions before some place have one stride and those after it are contiguous, as in a range of
/// rows, heads or columns.)
pub fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() || !ours(&[x]) || x.elem_count() == 0 {
        return Ok(x.contiguous()?);
    }
    let Some((rows, run, stride)) = runs(x) else { return Ok(x.contiguous()?) };
    let Some(from) = Input::new(x) else { return Ok(x.contiguous()?) };
    let device = from.device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, x.dtype(), x.shape())?);
    let size = x.dtype().size_in_bytes();
    let to = Destination { byte: 0, stride_bytes: run * size };
    copy(&stream, (&mut out, to), &from, Source { stride_bytes: stride * size, rows, bytes: run * size })?;
    Ok(out.tensor())
}

/// A tensor as `rows` runs of numbers that begin `stride` apart: (rows, run, stride). `None` where
/// it is not like that.
fn runs(x: &Tensor) -> Option<(usize, usize, usize)> {
    let (dims, strides) = (x.dims(), x.stride());
    let (mut run, mut at) = (1, dims.len());
    while at > 0 && (dims[at - 1] == 1 || strides[at - 1] == run) {
        run *= dims[at - 1];
        at -= 1;
    }
    let mut rows = 1;
    let mut stride = run;
    for i in (0..at).rev().filter(|&i| dims[i] > 1) {
        match rows {
            1 => stride = strides[i],
            _ if strides[i] == stride * rows => {}
            _ => return None,
        }
        rows *= dims[i];
    }
    Some((rows, run, stride))
}

/// Place of rows in an output.
struct Destination {
    byte: usize,
    stride_bytes: usize,
}

type Stream = std::sync::Arc<cudarc::driver::CudaStream>;

/// Rows of an input, of `bytes` bytes each.
struct Source {
    stride_bytes: usize,
    rows: usize,
    bytes: usize,
}

fn copy(
    stream: &Stream,
    (out, destination): (&mut Output, Destination),
    from: &Input<'_>,
    source: Source,
) -> Result<()> {
    let Source { stride_bytes, rows, bytes } = source;
    let (to, to_guard) = out.address(stream);
    let (at, at_guard) = from.address(stream);
    let to = to + destination.byte as u64;
    let all = to | at | (destination.stride_bytes | stride_bytes | bytes) as u64;
    let word = 1usize << all.trailing_zeros().min(4);
    let mut call = Call::new(from.device(), stream, &format!("copy_rows_{word}"))?;
    call.word(to)
        .word(at)
        .count(destination.stride_bytes / word)
        .count(stride_bytes / word)
        .count(rows)
        .count(bytes / word);
    let (grid, threads) = grid(rows, bytes / word);
    // SAFETY: the arguments of copy_rows; every row is within the tensors that the addresses and
    // strides were made from.
    unsafe { call.launch(grid, threads, 0) }?;
    drop((to_guard, at_guard));
    Ok(())
}

/// See [`crate::gather`]; the indices are known to be rows.
pub fn gather(x: &Tensor, indices: &DeviceList) -> Result<Option<Tensor>> {
    if !ours(&[x]) || x.rank() == 0 || indices.is_empty() || row_bytes(x) == 0 {
        return Ok(None);
    }
    gather_by(x, &indices.on(x.device())?)
}

/// The rows of `x` at the places in `list` `[count]`, which is u32 on its device; they are known to
/// be rows, and one at least.
pub fn gather_by(x: &Tensor, list: &Tensor) -> Result<Option<Tensor>> {
    if !ours(&[x, list]) || x.rank() == 0 || row_bytes(x) == 0 {
        return Ok(None);
    }
    let (x, count) = (contiguous(x)?, list.dims1()?);
    let mut dims = x.dims().to_vec();
    dims[0] = count;
    let (Some(from), Some(list)) = (Input::new(&x), Input::new(list)) else { return Ok(None) };
    let device = from.device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, x.dtype(), dims)?);
    let bytes = row_bytes(&x);
    let word = 1usize << (from.address(&stream).0 | bytes as u64).trailing_zeros().min(4);
    let mut call = Call::new(&device, &stream, &format!("gather_rows_{word}"))?;
    call.output(&mut out).input(&from).input(&list).count(count).count(bytes / word);
    let (grid, threads) = grid(count, bytes / word);
    // SAFETY: the arguments of gather_rows; the caller has checked that every index is a row.
    unsafe { call.launch(grid, threads, 0) }?;
    Ok(Some(out.tensor()))
}

/// See [`crate::join`]; the shapes are known to fit.
pub fn join(parts: &[&Tensor], dim: usize) -> Result<Option<Tensor>> {
    let dtype = parts[0].dtype();
    if !ours(parts) || dim > 1 || parts.iter().any(|part| part.dtype() != dtype) {
        return Ok(None);
    }
    let mut dims = parts[0].dims().to_vec();
    dims[dim] = parts.iter().map(|part| part.dims()[dim]).sum();
    if dims.contains(&0) {
        return Ok(Some(nothing(dims, dtype, parts[0].device())?));
    }
    let filled = parts.iter().filter(|part| part.elem_count() > 0);
    let parts: Vec<Tensor> = filled.map(|part| contiguous(part)).collect::<Result<_>>()?;
    let inputs: Option<Vec<Input<'_>>> = parts.iter().map(Input::new).collect();
    let Some(inputs) = inputs else { return Ok(None) };
    let device = inputs[0].device().clone();
    let (stream, mut out) = (device.cuda_stream(), Output::new(&device, dtype, dims.as_slice())?);
    if dim == 0 && parts.len() <= MOST_PARTS {
        join_at_once(&stream, &mut out, &parts, &inputs)?;
        return Ok(Some(out.tensor()));
    }
    // One launch a part: rows of the part's own bytes, at the answer's stride.
    let stride_bytes = dims[dim..].iter().product::<usize>() * dtype.size_in_bytes();
    let mut byte = 0;
    for (part, from) in parts.iter().zip(&inputs) {
        let rows: usize = part.dims()[..dim].iter().product();
        let bytes = part.elem_count() / rows * dtype.size_in_bytes();
        let to = Destination { byte, stride_bytes };
        copy(&stream, (&mut out, to), from, Source { stride_bytes: bytes, rows, bytes })?;
        byte += bytes;
    }
    Ok(Some(out.tensor()))
}

/// Up to `MOST_PARTS` parts, rows after rows, in one launch.
fn join_at_once(stream: &Stream, out: &mut Output, parts: &[Tensor], inputs: &[Input<'_>]) -> Result<()> {
    let (device, bytes) = (inputs[0].device().clone(), row_bytes(&parts[0]));
    let mut first = vec![0u32];
    for part in parts {
        first.push(first[first.len() - 1] + part.dim(0)? as u32);
    }
    let rows = first[parts.len()] as usize;
    first.resize(MOST_PARTS + 1, u32::MAX);
    first.push(parts.len() as u32);
    let guards: Vec<_> = inputs.iter().map(|input| input.address(stream)).collect();
    let mut block: Vec<u64> = guards.iter().map(|(address, _)| *address).collect();
    let all = block.iter().fold(bytes as u64, |all, address| all | address);
    let word = 1usize << all.trailing_zeros().min(4);
    block.resize(MOST_PARTS, 0);
    block.extend(first.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32));
    let mut call = Call::new(&device, stream, &format!("join_rows_{word}"))?;
    call.output(out).block(block).count(rows).count(bytes / word);
    let (grid, threads) = grid(rows, bytes / word);
    // SAFETY: the arguments of join_rows; part p has the rows first[p] to first[p + 1], and the
    // output all of them.
    unsafe { call.launch(grid, threads, 0) }?;
    drop(guards);
    Ok(())
}
