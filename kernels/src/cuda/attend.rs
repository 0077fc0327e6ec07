//! Attention on CUDA: the choice of the kernel, its arguments and its results.
//!
//! Many query rows on Hopper: keys and values are packed once (`kernels/cu/pack_sm90.cu`), then
//! read by `kernels/cu/attend_sm90.cu`. Otherwise `kernels/cu/attend.cu` reads them in place.

use candle_core::{CudaDevice, DType, Device, Tensor};

use super::arguments::{NO_TURN, blocks, pair, pair_real, turn};
use super::attention_launch::AttentionLaunch;
use super::call::{Call, Output, suffix};
use super::inputs::{input, inputs, joined, tables};
use super::occupancy::{multiprocessors, multiprocessors_to_keep, resident_blocks};
use super::pack::{Packed, WIDE_TILE, tile_bytes};
use super::prepared::prepared;
use super::rising::rising_parts;
use super::rows::contiguous;
use super::shape::{Shape, row_bytes, shape};
use super::sight::{KeyOrder, QueryOrder, Tiling};
use super::{capability, memory};
use crate::error::{Error, Result};
use crate::{Keys, Partial, Positions, Query, Rope, merge_all};

/// Rows of queries and heads from which packing the keys pays (a model, not measured: docs/gpu.md).
/// Below, they are read hardly more than once.
const WIDE_ROWS: usize = 256;
/// Number of rows from which on rotating the keys first pays, where there is no packing.
const TURNED_ROWS: usize = 512;

/// Rows and keys of a tile of the kernel that reads keys in place.
const TILE: usize = 64;

/// Barriers and tasks in the packed kernel's shared memory: four rings of two, four words of 8
/// bytes each, and two tasks of nine words.
const RING_BYTES: usize = 4 * 32 + 2 * 36;

/// Shared memory of a block of the packed kernel: two tiles each of queries, keys and values.
fn wide_shared_bytes(head_dim: usize) -> usize {
    let (k_bytes, v_bytes) = tile_bytes(head_dim);
    2 * (head_dim.div_ceil(64) * WIDE_TILE * 128 + k_bytes + v_bytes) + RING_BYTES
}

/// Shared memory of a block of the other kernel: a tile of queries, and of two steps keys, values
/// and positions (`STEP` in attend.cu).
fn shared_bytes(head_dim: usize) -> usize {
    let step = if head_dim <= 128 { TILE } else { TILE / 2 };
    (TILE + 4 * step) * row_bytes(head_dim) + 2 * step * size_of::<u32>()
}

/// Which kernel takes a call, and in which tiles.
struct Route {
    /// Whether the kernel of many rows runs, which takes packed keys.
    wide: bool,
    /// Whether the keys are turned in a pass of their own before.
    turned: bool,
    tiling: Tiling,
}

impl Route {
    fn of(shape: Shape, device: &CudaDevice) -> Result<Self> {
        let all = shape.queries * shape.group();
        let wide = all >= WIDE_ROWS && capability(device)?.0 == 9 && matches!(shape.head_dim, 64..=128);
        // Two blocks of the second kernel fit the registers (`KERNEL` in attend.cu).
        let (rows, resident) = match wide {
            true => (WIDE_TILE, multiprocessors_to_keep(device)?),
            false => (TILE, multiprocessors(device)? * resident_blocks(device, shared_bytes(shape.head_dim), 2)?),
        };
        let tiling = Tiling { rows, keys: rows, group: shape.group(), kv_heads: shape.kv_heads, resident };
        Ok(Self { wide, turned: all >= TURNED_ROWS && !wide, tiling })
    }
}

/// The share of pairs that see each other, among the pairs of a query row and a key that attention
/// works out. The others are masked: pairs of tiles that are seen in part, and of rows beyond the
/// last. `None` for calls that the kernels are not made for.
///
/// # Errors
/// Returns an error if the CUDA driver fails.
pub fn visible_share(q: &Tensor, at: &Positions, keys: &[Keys]) -> Result<Option<f64>> {
    let (Some(shape), Device::Cuda(device)) = (shape(q, keys, None)?, q.device()) else { return Ok(None) };
    let tiling = Route::of(shape, device)?.tiling;
    let blocks: Vec<&Positions> = keys.iter().map(|block| &block.at).collect();
    Ok(Some(QueryOrder::new(at, &KeyOrder::new(&blocks)).visible_share(tiling)))
}

/// See [`crate::Kernels::attend`]; `None` for calls that the kernels are not made for.
///
/// # Errors
/// Returns an error if a position is beyond the tables, or if the driver fails.
pub(super) fn attend(query: &Query<'_>) -> Result<Option<Partial>> {
    let &Query { q, at, keys, rope, scale, .. } = query;
    let Some(shape) = shape(q, keys, rope)? else { return Ok(None) };
    let Device::Cuda(device) = q.device() else { return Ok(None) };
    if let Some(rope) = rope {
        let positions = keys.iter().flat_map(|block| block.at.rope()).chain(at.rope()).copied();
        rope.check(shape.head_dim, positions)?;
    }
    if shape.queries == 0 {
        let out = memory::nothing((0, shape.heads, shape.head_dim), q.dtype(), q.device())?;
        return Ok(Some(Partial { out, lse: memory::nothing((0, shape.heads), DType::F32, q.device())? }));
    }
    let route = Route::of(shape, device)?;
    let ready = prepared(device, at, keys, route.tiling, !route.wide)?;
    if !ready.are_runs {
        return in_parts(query);
    }
    // Without a packing pass, many query tiles would turn every key again: a pass before turns each
    // once.
    let turned = match rope.filter(|_| route.turned) {
        Some(rope) => Some(turned(keys, rope)?),
        None => None,
    };
    let launch = AttentionLaunch {
        device,
        stream: device.cuda_stream(),
        shape,
        q: contiguous(q)?,
        keys: joined(turned.as_deref().unwrap_or(keys))?,
        ready,
        rope,
        key_rope: if turned.is_some() { None } else { rope },
        rows: route.tiling.rows,
        scale,
        resident: route.tiling.resident,
    };
    launch.run(route.wide).map(Some)
}

/// Attention to keys of which a row with a window sees more than two runs, part by part.
fn in_parts(query: &Query<'_>) -> Result<Option<Partial>> {
    let mut found = Vec::new();
    for part in rising_parts(query.keys, query.at.rule())? {
        let Some(partial) = attend(&Query { keys: std::slice::from_ref(&part), ..*query })? else { return Ok(None) };
        found.push(partial);
    }
    merge_all(&found.iter().collect::<Vec<_>>())
}

/// The blocks with their keys turned.
fn turned(keys: &[Keys], rope: &Rope) -> Result<Vec<Keys>> {
    let turn =
        |block: &Keys| Ok(Keys { k: rope.apply(&block.k, &block.at)?, v: block.v.clone(), at: block.at.clone() });
    keys.iter().map(turn).collect()
}

/// The results of a launch: `[queries, heads, head_dim]`, `[queries, heads]`, and the same of every
/// slot.
struct Results {
    out: Output,
    lse: Output,
    part_out: Output,
    part_lse: Output,
}

impl AttentionLaunch<'_> {
    fn run(&self, wide: bool) -> Result<Partial> {
        let Shape { queries, heads, kv_heads, head_dim } = self.shape;
        let parts = (self.ready.slots * kv_heads * self.rows).max(1);
        let new = |dtype: DType, dims: &[usize]| Output::new(self.device, dtype, dims);
        let mut results = Results {
            out: new(self.q.dtype(), &[queries, heads, head_dim])?,
            lse: new(DType::F32, &[queries, heads])?,
            part_out: new(DType::F32, &[parts, head_dim])?,
            part_lse: new(DType::F32, &[parts])?,
        };
        let packed = if wide { Some(self.pack()?) } else { None };
        self.attend(packed.as_ref(), &mut results)?;
        let Results { out, lse, part_out, part_lse } = results;
        if self.ready.splits == 0 {
            return Ok(Partial { out: out.tensor(), lse: lse.tensor() });
        }
        self.combine(out, lse, &part_out.tensor(), &part_lse.tensor())
    }

    fn attend(&self, packed: Option<&Packed>, results: &mut Results) -> Result<()> {
        let head_dim = self.shape.head_dim;
        let (kernel, threads, shared_bytes) = match packed {
            Some(_) => ("attend_sm90", 384, wide_shared_bytes(head_dim)),
            None => ("attend", 128, shared_bytes(head_dim)),
        };
        let tables = tables(self.rope, self.device)?;
        let (q, [lists, keys], held) = (input(&self.q)?, self.ready.inputs()?, inputs(&self.keys)?);
        let packed = packed.map(|packed| Ok::<_, Error>((input(&packed.k)?, input(&packed.v)?))).transpose()?;
        // A block of the packed kernel takes one item after the other; of the other one, a block
        // has one item and one KV head.
        let work = self.ready.items * self.shape.kv_heads;
        let (grid, mut taken) = match packed {
            Some(_) => ((work.min(self.resident) as u32, 1, 1), Some(Output::zeros_f32(self.device, 1)?)),
            None => ((self.ready.items as u32, self.shape.kv_heads as u32, 1), None),
        };
        let mut call = Call::new(self.device, &self.stream, &self.name(kernel))?;
        let lists = self.ready.addresses(call.address_of(&lists), call.address_of(&keys));
        let mut words = vec![call.address_of(&q), lists.rows, lists.rope, lists.sight, lists.masked, lists.items];
        words.extend([lists.key_source, lists.key_rope, lists.tail_source, lists.tail_rope]);
        words.extend(match &packed {
            Some((k, v)) => [call.address_of(k), call.address_of(v)],
            None => [0, 0],
        });
        words.extend([call.address_of_output(&mut results.out), call.address_of_output(&mut results.lse)]);
        words.extend([call.address_of_output(&mut results.part_out), call.address_of_output(&mut results.part_lse)]);
        words.push(taken.as_mut().map_or(0, |taken| call.address_of_output(taken)));
        let turn = match (self.rope, &tables) {
            (Some(rope), Some(tables)) => turn(&mut call, rope, tables),
            _ => NO_TURN,
        };
        words.extend(turn);
        words.extend(if self.key_rope.is_some() { turn } else { NO_TURN });
        words.push(pair(self.shape.queries, self.ready.keys));
        words.push(pair(self.shape.kv_heads, self.shape.group()));
        words.push(pair_real(self.ready.keys.div_ceil(WIDE_TILE), self.scale * std::f32::consts::LOG2_E));
        words.push(pair(self.ready.items, self.ready.split));
        call.block(words);
        if packed.is_none() {
            let table = blocks(&mut call, &held);
            call.block(table);
        }
        // SAFETY: AttendArguments, and Blocks where keys are not packed. Lists name rows of q and
        // keys that exist; every query tile has an item, which writes its rows or its slot; `taken`
        // is 0.
        unsafe { call.launch(grid, threads, shared_bytes as u32) }
    }

    fn combine(&self, mut out: Output, mut lse: Output, part_out: &Tensor, part_lse: &Tensor) -> Result<Partial> {
        let Shape { queries, kv_heads, head_dim, .. } = self.shape;
        let (part_out, part_lse, [lists, keys]) = (input(part_out)?, input(part_lse)?, self.ready.inputs()?);
        let suffix = suffix(self.q.dtype()).expect("checked by shape: bf16 or f16");
        let mut call = Call::new(self.device, &self.stream, &format!("attend_combine_{suffix}"))?;
        let lists = self.ready.addresses(call.address_of(&lists), call.address_of(&keys));
        let mut words = vec![call.address_of(&part_out), call.address_of(&part_lse), lists.splits, lists.rows];
        words.extend([call.address_of_output(&mut out), call.address_of_output(&mut lse)]);
        words.extend([pair(queries, kv_heads), pair(self.shape.group(), self.rows), pair(head_dim, 0)]);
        call.block(words);
        let grid = (self.ready.splits as u32, self.rows as u32, kv_heads as u32);
        // SAFETY: CombineArguments. Every slot of a split has been written by the launch before.
        unsafe { call.launch(grid, head_dim.min(128) as u32, 0) }?;
        Ok(Partial { out: out.tensor(), lse: lse.tensor() })
    }
}
