//! Scores of keys on CUDA: `kernels/cu/scores.cu`.

use candle_core::{DType, Tensor};

use super::arguments::{NO_TURN, blocks, pair, pair_real, turn};
use super::call::{Call, Output, suffix};
use super::inputs::{input, inputs, joined, tables};
use super::memory;
use super::prepared::prepared;
use super::rising::rising_parts;
use super::rows::contiguous;
use super::shape::{Shape, row_bytes, shape};
use super::sight::Tiling;
use crate::error::Result;
use crate::{Query, Reduce, join};

/// Rows and keys of a tile.
const TILE: usize = 64;

/// Reading in one walk over queries and keys.
#[derive(Clone, Copy)]
enum Read<'a> {
    /// One number a key: `[keys]`.
    Reduced(Reduce<'a>),
    /// For each query row, the mean over all heads: `[queries, keys]`.
    Rows,
}

impl Read<'_> {
    /// Numbers of each key, for `queries` queries.
    fn lists(self, queries: usize) -> usize {
        match self {
            Read::Reduced(_) => 1,
            Read::Rows => queries,
        }
    }
}

/// See [`crate::Kernels::column_scores`]; `None` for calls that the kernel is not made for.
///
/// # Errors
/// Returns an error if a position is beyond the tables, or if the driver fails.
pub(super) fn column_scores(query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Option<Tensor>> {
    read(query, lse, Read::Reduced(reduce))
}

/// See [`crate::Kernels::readings`], by query row; `None` for calls that the kernel is not made
/// for.
///
/// # Errors
/// Fails as [`column_scores`] does.
pub(super) fn row_readings(query: &Query<'_>, lse: &Tensor) -> Result<Option<Tensor>> {
    read(query, lse, Read::Rows)
}

fn read(query: &Query<'_>, lse: &Tensor, by: Read<'_>) -> Result<Option<Tensor>> {
    let &Query { q, at, keys, rope, .. } = query;
    let Some(shape) = shape(q, keys, rope)? else { return Ok(None) };
    let count = query.key_count();
    if let (Read::Rows, 0) = (by, count * shape.queries) {
        return memory::nothing((shape.queries, count), DType::F32, q.device()).map(Some);
    }
    if count == 0 {
        return memory::nothing(0, DType::F32, q.device()).map(Some);
    }
    if shape.queries == 0 {
        return Ok(Some(Tensor::zeros(count, DType::F32, q.device())?));
    }
    let q = match rope {
        Some(rope) => {
            rope.check(shape.head_dim, keys.iter().flat_map(|block| block.at.rope()).copied())?;
            contiguous(&rope.apply(q, at)?)?
        }
        None => contiguous(q)?,
    };
    match launch(&Query { q: &q, ..*query }, &contiguous(lse)?, shape, by)? {
        Some(found) => Ok(Some(found)),
        None => in_parts(query, lse, by),
    }
}

/// Reads keys of which a row with a window sees more than two runs, part by part.
fn in_parts(query: &Query<'_>, lse: &Tensor, by: Read<'_>) -> Result<Option<Tensor>> {
    let mut found = Vec::new();
    for part in rising_parts(query.keys, query.at.rule())? {
        let Some(of_part) = read(&Query { keys: std::slice::from_ref(&part), ..*query }, lse, by)? else {
            return Ok(None);
        };
        found.push(of_part);
    }
    let keys = if let Read::Rows = by { 1 } else { 0 };
    join(&found.iter().collect::<Vec<_>>(), keys).map(Some)
}

/// Reads with queries that have their positions and lie in one piece. `None` where a row sees more
/// than two runs of keys.
fn launch(query: &Query<'_>, lse: &Tensor, shape: Shape, read: Read<'_>) -> Result<Option<Tensor>> {
    let &Query { q, at, keys, rope, scale, .. } = query;
    let device = q.device().as_cuda_device()?;
    let stream = device.cuda_stream();
    let Shape { queries, kv_heads, head_dim, .. } = shape;
    // Rows are counted without their heads here, and there is no list of work: one block of threads
    // for each key tile.
    let tiling = Tiling { rows: TILE, keys: TILE, group: 1, kv_heads, resident: 1 };
    let ready = prepared(device, at, keys, tiling, false)?;
    if !ready.are_runs {
        return Ok(None);
    }
    let count = query.key_count();
    let mut out = Output::zeros_f32(device, count * read.lists(queries))?;
    let shaped = |out: Tensor| match read {
        Read::Rows => Ok(Some(out.reshape((queries, count))?)),
        Read::Reduced(_) => Ok(Some(out)),
    };
    if ready.keys == 0 {
        return shaped(out.tensor());
    }
    let (kind, weights) = match read {
        Read::Reduced(Reduce::Norm) => (0, Tensor::new(&[0f32], q.device())?),
        Read::Reduced(Reduce::Mass) => (1, Tensor::new(&[0f32], q.device())?),
        Read::Reduced(Reduce::Weighted(weights)) => (2, Tensor::new(weights, q.device())?),
        Read::Rows => (3, Tensor::new(&[0f32], q.device())?),
    };
    let (blocks_of, tables) = (joined(keys)?, tables(rope, device)?);
    let (q_input, lse, weights) = (input(q)?, input(lse)?, input(&weights)?);
    let ([lists, places], held) = (ready.inputs()?, inputs(&blocks_of)?);
    let suffix = suffix(q.dtype()).expect("checked by shape: bf16 or f16");
    let mut call = Call::new(device, &stream, &format!("scores_{suffix}_{head_dim}"))?;
    let lists = ready.addresses(call.address_of(&lists), call.address_of(&places));
    let mut words = vec![call.address_of(&q_input), call.address_of(&lse), call.address_of(&weights), lists.rows];
    words.extend([lists.sight, lists.tile_sight, lists.key_source, lists.key_rope, lists.key_number]);
    words.push(call.address_of_output(&mut out));
    words.extend(match (rope, &tables) {
        (Some(rope), Some(tables)) => turn(&mut call, rope, tables),
        _ => NO_TURN,
    });
    words.extend([pair(queries, ready.keys), pair(kv_heads, shape.group())]);
    words.extend([pair_real(kind, scale * std::f32::consts::LOG2_E), pair(count, 0)]);
    let table = blocks(&mut call, &held);
    call.block(words).block(table);
    let shared_bytes = (3 * TILE * row_bytes(head_dim) + 7 * TILE * size_of::<f32>()) as u32;
    // SAFETY: ScoreArguments and Blocks. It writes the numbers of the keys that the lists name,
    // once or once a row; the others stay 0.
    unsafe { call.launch((ready.keys.div_ceil(TILE) as u32, 1, 1), 128, shared_bytes) }?;
    shaped(out.tensor())
}
