//! Attention of one query row, as in decoding: keys and values are read once, in place and in their
//! stored type, for all heads that share them. Keys that the row does not see are never read. Keys
//! and values in 8 bits are unpacked some rows at a time, and turned to their positions there.

use std::ops::Range;

use candle_core::{DType, Tensor};

use super::inputs::{Elements, Inputs, Matrix};
use super::lanes::{CausalPosition, WIDEST};
use super::level::{Level, dispatch, dispatch_pairs};
use super::many_rows;
use super::merge::merge;
use super::pack::{Aligned, multiplies_pairs};
use super::single_walk::{Heads, MOST_ROWS, Scratch, Walk};
use super::strip::LOG2_E;
use super::tasks;
use super::unpacked::Unpacked;
use crate::error::Result;
use crate::{Keys, PAD, Partial, Query, Rope, Rule};

/// Keys in a task, about, and the most tasks. They follow from sizes alone, so that the bits of a
/// result do not depend on the number of threads.
const TASK_KEYS: usize = 1024;
const MOST_TASKS: usize = 32;
/// Rows that are unpacked at a time: a whole number of tiles, in the first cache.
const UNPACKED_ROWS: usize = 32;

/// Everything that the tasks of a call share.
struct Call<'a> {
    level: Level,
    keys: &'a [Keys],
    /// Keys and values of each block.
    blocks: Vec<(Matrix<'a>, Matrix<'a>)>,
    place: CausalPosition,
    /// Packed query heads, see [`packed`], as pairs where keys are multiplied so.
    q: Aligned,
    paired: bool,
    kv_heads: usize,
    /// Query heads that share a KV head.
    group: usize,
    head_dim: usize,
    /// The rotations of keys that are not turned yet: those in 8 bits.
    rope: Option<&'a Rope>,
    /// Whether those are unpacked to bf16.
    narrow: bool,
}

/// Some of the keys, counted as if all blocks were one, and where their result goes.
struct Task<'a> {
    keys: Range<usize>,
    /// `[heads, head_dim]`.
    out: &'a mut [f32],
    /// `[heads]`.
    lse: &'a mut [f32],
}

/// See [`crate::Kernels::attend`]. `None` where the call is not of this kind: not one row, heads
/// that are not whole vectors, keys and values of two types.
pub(super) fn attend(level: Level, query: &Query<'_>) -> Result<Option<Partial>> {
    let &Query { q, at, keys, scale, rope, dtype } = query;
    let (queries, heads, head_dim) = q.dims3()?;
    let total = query.key_count();
    let whole = head_dim > 0 && head_dim.is_multiple_of(WIDEST);
    let one_type = keys.iter().all(|block| block.k.dtype() == block.v.dtype());
    let causal = at.rule() == Rule::Causal;
    if queries != 1 || heads == 0 || total == 0 || !whole || !one_type || !causal || at.order()[0] == PAD {
        return Ok(None);
    }
    let kv_heads = keys[0].k.dim(1)?;
    let place = CausalPosition::new(at, 0);
    let group = heads / kv_heads;
    let device = q.device();
    if let Some(rope) = rope {
        rope.check(head_dim, at.rope().iter().chain(keys.iter().flat_map(|block| block.at.rope())).copied())?;
    }
    let q = &match rope {
        Some(rope) => rope.apply(&q.to_dtype(DType::F32)?, at)?,
        None => q.clone(),
    };
    let inputs = Inputs::new(q, keys)?;
    let held = inputs.hold();
    let (blocks, mut q) = (held.blocks()?, packed(&held.queries()?, kv_heads, group, head_dim, scale * LOG2_E));
    let paired = multiplies_pairs(level, &blocks, dtype) && head_dim.is_multiple_of(2 * WIDEST);
    if paired {
        q = many_rows::paired(level, q.get());
    }
    let call =
        Call { level, keys, blocks, place, q, paired, kv_heads, group, head_dim, rope, narrow: dtype == DType::BF16 };

    let count = (total / TASK_KEYS).clamp(1, MOST_TASKS);
    let mut out = vec![0.0; count * heads * head_dim];
    let mut lse = vec![f32::NEG_INFINITY; count * heads];
    let parts = out.chunks_exact_mut(heads * head_dim).zip(lse.chunks_exact_mut(heads));
    let task = |(index, (out, lse))| Task { keys: index * total / count..(index + 1) * total / count, out, lse };
    let tasks: Vec<Task<'_>> = parts.enumerate().map(task).collect();
    tasks::run(tasks, || (), |(), task| call.run(task));
    if count > 1 {
        let parts: Vec<_> = out.chunks_exact(heads * head_dim).zip(lse.chunks_exact(heads)).collect();
        (out, lse) = merge(&parts, head_dim);
    }
    let out = Tensor::from_vec(out, (1, heads, head_dim), device)?;
    Ok(Some(Partial { out, lse: Tensor::from_vec(lse, (1, heads), device)? }))
}

/// Bundles of the heads of a group, with the number of heads of each; the last ones are padded with
/// absent heads.
fn bundles(group: usize) -> impl Iterator<Item = (usize, usize)> {
    let width = move |first: usize| match group - first {
        1 => 1,
        2 => 2,
        _ => MOST_ROWS,
    };
    (0..group).step_by(MOST_ROWS).map(move |first| (first, width(first)))
}

/// Heads of a group with those that are not there.
fn padded(group: usize) -> usize {
    bundles(group).map(|(_, width)| width).sum()
}

/// The query's heads `[kv_heads, padded group, head_dim]`, times the scale; 0 where a head is not
/// there.
fn packed(q: &Matrix<'_>, kv_heads: usize, group: usize, head_dim: usize, scale: f32) -> Aligned {
    let mut all = Aligned::new(kv_heads * padded(group) * head_dim);
    for (kv_head, packed) in all.get_mut().chunks_exact_mut(padded(group) * head_dim).enumerate() {
        for (head, packed) in packed.chunks_exact_mut(head_dim).take(group).enumerate() {
            q.widen(0, kv_head * group + head, packed);
            packed.iter_mut().for_each(|value| *value *= scale);
        }
    }
    all
}

impl Call<'_> {
    /// The bundles of all heads, before they have seen a key.
    fn heads(&self) -> Vec<Heads> {
        let padded = padded(self.group);
        let of_kv_head =
            |kv_head| bundles(self.group).map(move |(first, rows)| Heads::new(kv_head, kv_head * padded + first, rows));
        (0..self.kv_heads).flat_map(of_kv_head).collect()
    }

    fn run(&self, task: Task<'_>) {
        let mut heads = self.heads();
        let mut scratch = Scratch::new(self.kv_heads * padded(self.group) * self.head_dim);
        let mut start = 0; // of the block, among all keys
        for (block, matrices) in self.keys.iter().zip(&self.blocks) {
            let count = block.at.len();
            let rows = task.keys.start.max(start)..task.keys.end.min(start + count);
            if rows.start < rows.end {
                let rows = rows.start - start..rows.end - start;
                self.walk(block, matrices, rows, &mut heads, &mut scratch);
            }
            start += count;
        }
        self.finish(&heads, &scratch, task);
    }

    /// Takes some rows of a block into the result.
    fn walk(
        &self,
        block: &Keys,
        (k, v): &(Matrix<'_>, Matrix<'_>),
        rows: Range<usize>,
        heads: &mut [Heads],
        scratch: &mut Scratch,
    ) {
        let (place, head_dim, q) = (self.place, self.head_dim, self.q.get());
        let at = [block.at.order(), block.at.segment(), block.at.rope()].map(|list| &list[rows.clone()]);
        let first = rows.start;
        macro_rules! walk {
            ($k:expr, $v:expr) => {
                Walk { k: ($k, *k), v: ($v, *v), first, at, place, head_dim, q, heads, scratch }
            };
        }
        match (k.elements(), v.elements()) {
            (Elements::F32(k), Elements::F32(v)) => dispatch(self.level, walk!(k, v)),
            (Elements::Bf16(k), Elements::Bf16(v)) if self.paired => dispatch_pairs(self.level, walk!(k, v)),
            (Elements::Bf16(k), Elements::Bf16(v)) => dispatch(self.level, walk!(k, v)),
            (Elements::F16(k), Elements::F16(v)) => dispatch(self.level, walk!(k, v)),
            (Elements::Eight(_), Elements::Eight(_)) => self.unpacking(at, (k, v), first, (heads, scratch)),
            _ => unreachable!("checked by attend: keys and values of one type"),
        }
    }

    /// As [`walk`](Self::walk), of rows in 8 bits: those of a tile are unpacked, unless the query
    /// sees none of them.
    fn unpacking(
        &self,
        at: [&[u32]; 3],
        (k, v): (&Matrix<'_>, &Matrix<'_>),
        first: usize,
        (heads, scratch): (&mut [Heads], &mut Scratch),
    ) {
        let (place, q, head_dim) = (self.place, self.q.get(), self.head_dim);
        let mut room = [(); 2].map(|()| Unpacked::new([UNPACKED_ROWS, self.kv_heads, head_dim], self.narrow));
        for from in (0..at[0].len()).step_by(UNPACKED_ROWS) {
            let at = at.map(|list| &list[from..list.len().min(from + UNPACKED_ROWS)]);
            let sees = |i: usize| place.sees(at[0][i], at[1][i], at[2][i]);
            if !(0..at[0].len()).any(sees) {
                continue;
            }
            let rows = first + from..first + from + at[0].len();
            let [to_k, to_v] = &mut room;
            to_k.unpack(self.level, k, rows.clone(), self.rope.map(|rope| (rope, at[2])));
            to_v.unpack(self.level, v, rows, None);
            let matrices = (to_k.matrix(), to_v.matrix());
            macro_rules! walk {
                ($k:expr, $v:expr) => {
                    Walk { k: ($k, matrices.0), v: ($v, matrices.1), first: 0, at, place, head_dim, q, heads, scratch }
                };
            }
            match (to_k.elements(), to_v.elements()) {
                (Elements::Bf16(k), Elements::Bf16(v)) if self.paired => dispatch_pairs(self.level, walk!(k, v)),
                (Elements::Bf16(k), Elements::Bf16(v)) => dispatch(self.level, walk!(k, v)),
                (Elements::F32(k), Elements::F32(v)) => dispatch(self.level, walk!(k, v)),
                _ => unreachable!("rows are unpacked to one of two types"),
            }
        }
    }

    /// Divides by the sums and writes the task's result.
    fn finish(&self, heads: &[Heads], scratch: &Scratch, task: Task<'_>) {
        let (group, head_dim, padded) = (self.group, self.head_dim, padded(self.group));
        for bundle in heads {
            let first = bundle.first - bundle.kv_head * padded; // in the group
            for row in 0..bundle.rows.min(group - first) {
                let (sum, head) = (bundle.sum_of(row), bundle.kv_head * group + first + row);
                if sum == 0.0 {
                    continue; // no key was seen: (0, −∞) stands there already
                }
                let from = &scratch.out.get()[(bundle.first + row) * head_dim..][..head_dim];
                let to = &mut task.out[head * head_dim..][..head_dim];
                to.iter_mut().zip(from).for_each(|(to, value)| *to = value / sum);
                task.lse[head] = (bundle.top_of(row) + sum.log2()) / LOG2_E;
            }
        }
    }
}
