//! Blocked attention: tasks of one KV head and a tile of query rows, each walking over the keys
//! with an online softmax.

use std::ops::Range;

use candle_core::Tensor;

use super::amx::{self, Registers};
use super::fresh::{Fresh, written};
use super::inputs::Inputs;
use super::lanes::{CausalPosition, LINE, Lanes, PANEL, STRIP, TILE, TILE_PANELS, WIDEST};
use super::level::{Kernel, Level, dispatch, dispatch_either, dispatch_pairs};
use super::merge::merge;
use super::pack::{Aligned, KeySource, PackKeys, PackValues, PairValues, QuerySource, ROWS_AHEAD, multiplies_pairs};
use super::sight::{KeyList, Rows, Seen, Sight, Span};
use super::strip::{Absorb, LOG2_E, LOWEST, Strip, Tile};
use super::strip_amx::AbsorbInTiles;
use super::tasks;
use crate::error::Result;
use crate::tiles;
use crate::{Partial, Query};

/// Least stacked rows (query rows × heads of a group) of a task: enough to pay for packing its
/// keys.
const TASK_ROWS: usize = 384;
/// Numbers of the queries of a task at most. Packed keys stay in the second cache; queries and
/// results pass by, row after row.
const TASK_NUMBERS: usize = 2048 * 64;
/// Tasks of a thread, if these are not too small or too large: they differ in the keys that they
/// see. No row's bits depend on its task.
const TASKS_A_THREAD: usize = 8;
/// With fewer tasks of least rows than this, the keys are split too. The split depends on sizes
/// alone, so that the bits of a result do not depend on the number of threads.
const ENOUGH_TASKS: usize = 32;
/// Fewest panels in a split.
const SPLIT_PANELS: usize = 8;

/// Sizes of a call.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    queries: usize,
    kv_heads: usize,
    /// Query heads that share a KV head.
    group: usize,
    head_dim: usize,
    /// `head_dim` up to a whole number of the widest vectors.
    padded_dim: usize,
    /// Query rows of a task.
    tile_rows: usize,
    /// Into how many parts the keys are split.
    splits: usize,
}

/// Everything that the tasks of a call share.
struct Call<'a> {
    level: Level,
    sizes: Sizes,
    rows: &'a Rows,
    queries: QuerySource<'a>,
    keys: KeySource<'a>,
}

/// Heads `kv_head · group ..` of some query rows against some keys.
struct Task<'a> {
    kv_head: usize,
    /// In the list of rows.
    rows: Range<usize>,
    panels: Range<usize>,
    /// For each row, `[group, head_dim]` of the output and `[group]` of the lse.
    results: Vec<(&'a mut Fresh, &'a mut [f32])>,
}

/// The working memory of a thread.
struct Scratch {
    q: Aligned,
    out: Aligned,
    keys: KeyTile,
    p: Aligned,
    top: Vec<f32>,
    sum: Vec<f32>,
    places: Vec<CausalPosition>,
    /// Of each strip.
    spans: Vec<Span>,
}

/// Room for a packed tile of keys and values.
struct KeyTile {
    k: Aligned,
    v: Aligned,
    stage: Aligned,
}

/// See [`crate::Kernels::attend`].
pub(super) fn attend(level: Level, query: &Query<'_>) -> Result<Partial> {
    let &Query { q, at, keys, rope, scale, dtype } = query;
    let (queries, heads, head_dim) = q.dims3()?;
    let rows = Rows::new(at);
    let list = KeyList::new(&rows, keys);
    if let Some(rope) = rope {
        rope.check(head_dim, rows.rope.iter().chain(&list.rope).copied())?;
    }
    let (results, numbers) = (queries * heads, queries * heads * head_dim);
    let (mut out, mut lse) = (Vec::new(), vec![f32::NEG_INFINITY; results]);
    if list.row.is_empty() || numbers == 0 {
        out.resize(numbers, 0.0);
    } else {
        let kv_heads = keys[list.block[0] as usize].k.dim(1)?;
        let heads = Heads { kv_heads, group: heads / kv_heads, head_dim };
        let sizes = Sizes::new(queries, heads, &rows, list.panels.len());
        let inputs = Inputs::new(q, keys)?;
        let held = inputs.hold();
        let blocks = held.blocks()?;
        let (paired, padded_dim, group) = (multiplies_pairs(level, &blocks, dtype), sizes.padded_dim, sizes.group);
        let keys = KeySource { list: &list, blocks: &blocks, rope, head_dim, padded_dim, paired };
        let source = QuerySource { level, q: held.queries()?, rows: &rows, rope, scale: scale * LOG2_E, group, paired };
        let call = Call { level, sizes, rows: &rows, queries: source, keys };
        lse.resize(sizes.splits * results, f32::NEG_INFINITY);
        let write = |out: &mut Fresh| {
            if rows.len() < queries {
                out.iter_mut().for_each(|value| _ = value.write(0.0)); // no task has the rows that are padding
            }
            tasks::run(call.tasks(out, &mut lse), || Scratch::new(sizes), |scratch, task| call.run(scratch, task))
        };
        // SAFETY: each task writes all numbers of its rows, and in each split every row that is no
        // padding has a task.
        out = unsafe { written(sizes.splits * numbers, write) };
        if sizes.splits > 1 {
            let parts: Vec<_> = out.chunks_exact(numbers).zip(lse.chunks_exact(results)).collect();
            (out, lse) = merge(&parts, head_dim);
        }
    }
    let out = Tensor::from_vec(out, (queries, heads, head_dim), q.device())?;
    let lse = Tensor::from_vec(lse, (queries, heads), q.device())?;
    Ok(Partial { out, lse })
}

/// The sum of the parts of a row's sum, by halves.
#[inline(always)]
fn sum_of(mut parts: [f32; WIDEST]) -> f32 {
    let mut width = WIDEST / 2;
    while width > 0 {
        for i in 0..width {
            parts[i] += parts[i + width];
        }
        width /= 2;
    }
    parts[0]
}

/// The heads of a call.
struct Heads {
    kv_heads: usize,
    /// Query heads that share a KV head.
    group: usize,
    head_dim: usize,
}

impl Sizes {
    fn new(queries: usize, Heads { kv_heads, group, head_dim }: Heads, rows: &Rows, panels: usize) -> Self {
        let padded_dim = head_dim.next_multiple_of(WIDEST);
        let (count, threads) = (rows.len(), rayon::current_num_threads());
        let least = (TASK_ROWS / group).clamp(1, count);
        let splits = ENOUGH_TASKS.div_ceil(kv_heads * count.div_ceil(least)).min(panels / SPLIT_PANELS).max(1);
        // Beyond its window a task has little to gain: few of its keys are seen by all of its rows.
        let most = rows.window().unwrap_or(usize::MAX).min(TASK_NUMBERS / padded_dim / group);
        let tile_rows = (splits * kv_heads * count / (TASKS_A_THREAD * threads)).min(most).clamp(least, count);
        Self { queries, kv_heads, group, head_dim, padded_dim, tile_rows, splits }
    }
}

impl Scratch {
    fn new(sizes: Sizes) -> Self {
        let Sizes { padded_dim, tile_rows, group, .. } = sizes;
        let rows = tile_rows * group;
        let whole = rows.next_multiple_of(amx::BLOCK);
        Self {
            q: Aligned::new(whole * padded_dim),
            out: Aligned::new(whole * padded_dim),
            keys: KeyTile {
                k: Aligned::new(TILE * padded_dim),
                v: Aligned::new(TILE * padded_dim),
                stage: KeySource::stage(padded_dim),
            },
            p: Aligned::new(amx::BLOCK * TILE),
            top: vec![0.0; rows],
            sum: vec![0.0; rows * WIDEST],
            places: Vec::with_capacity(rows),
            spans: Vec::new(),
        }
    }
}

impl KeyTile {
    /// Packs some panels.
    fn fill<'a>(&'a mut self, level: Level, source: KeySource<'a>, kv_head: usize, panels: &[usize]) -> Tile<'a> {
        let (list, padded_dim) = (source.list, source.padded_dim);
        let mut tile = Tile {
            k: &[],
            v: &[],
            of_keys: [[&[]; 3]; TILE_PANELS],
            keys: [0; TILE_PANELS],
            depth: source.depth(),
            padded_dim,
            finite: true,
        };
        let room = self.k.get_mut().chunks_exact_mut(PANEL * padded_dim);
        for (i, (&panel, k)) in panels.iter().zip(room).enumerate() {
            dispatch_either(level, source.paired, PackKeys { source, panel, kv_head, stage: self.stage.get_mut(), k });
            tile.of_keys[i] = list.of_panel(panel);
            tile.keys[i] = list.keys_of(panel).len();
        }
        let rows = if source.paired { PANEL / 2 } else { PANEL };
        for (i, &panel) in panels.iter().enumerate() {
            // Pairs take half of the room that they are made in: the next panel's begins there.
            let v = &mut self.v.get_mut()[i * rows * padded_dim..][..PANEL * padded_dim];
            let finite = &mut tile.finite;
            match source.paired {
                true => dispatch_pairs(level, PairValues { source, panel, kv_head, v, finite }),
                false => dispatch(level, PackValues { source, panel, kv_head, v, finite }),
            }
        }
        (tile.k, tile.v) = (self.k.get(), self.v.get());
        tile
    }
}

impl<'a> Call<'a> {
    /// All tasks with their parts of `out` and `lse`, the longest first.
    fn tasks<'b>(&self, out: &'b mut Fresh, lse: &'b mut [f32]) -> Vec<Task<'b>> {
        let Sizes { queries, kv_heads, group, head_dim, tile_rows, splits, .. } = self.sizes;
        let (rows, panels) = (self.rows.len(), self.keys.list.panels.len());
        let tiles = rows.div_ceil(tile_rows);
        let mut tasks = Vec::with_capacity(splits * tiles * kv_heads);
        for split in 0..splits {
            for tile in 0..tiles {
                for kv_head in 0..kv_heads {
                    let rows = tile * tile_rows..rows.min((tile + 1) * tile_rows);
                    let panels = split * panels / splits..(split + 1) * panels / splits;
                    let results = Vec::with_capacity(rows.len());
                    tasks.push(Task { kv_head, rows, panels, results });
                }
            }
        }
        let mut place_of = vec![None; queries]; // in the list of rows
        for (place, &row) in self.rows.index.iter().enumerate() {
            place_of[row as usize] = Some(place);
        }
        let pieces = out.chunks_exact_mut(group * head_dim).zip(lse.chunks_exact_mut(group));
        for (i, piece) in pieces.enumerate() {
            let (split, query, kv_head) = (i / (queries * kv_heads), i / kv_heads % queries, i % kv_heads);
            if let Some(place) = place_of[query] {
                tasks[(split * tiles + place / tile_rows) * kv_heads + kv_head].results.push(piece);
            }
        }
        tasks.sort_by_cached_key(|task| {
            let rows = Span::of_rows(&self.rows.place[task.rows.clone()]);
            std::cmp::Reverse(self.visible(&rows, task.panels.clone()).count() * task.rows.len())
        });
        tasks
    }

    /// The panels with keys that these rows see.
    fn visible(&self, rows: &Span, panels: Range<usize>) -> impl Iterator<Item = usize> {
        panels.filter(move |&panel| rows.sees(&self.keys.list.panels[panel]) != Sight::Nothing)
    }

    fn run(&self, scratch: &mut Scratch, task: Task<'_>) {
        let group = self.sizes.group;
        scratch.places.clear();
        for place in &self.rows.place[task.rows.clone()] {
            scratch.places.extend(std::iter::repeat_n(*place, group));
        }
        let stacked = scratch.places.len();
        scratch.top[..stacked].fill(LOWEST);
        scratch.sum[..stacked * WIDEST].fill(0.0);
        scratch.out.get_mut()[..stacked * self.sizes.padded_dim].fill(0.0);
        let in_tiles = self.keys.paired && self.keys.depth().is_multiple_of(amx::SIDE);
        // SAFETY: nothing that a task of attention calls has registers.
        let registers = in_tiles.then(|| unsafe { self.level.registers() }).flatten();
        let packed = &mut scratch.q.get_mut()[..stacked * self.keys.depth()];
        self.queries.pack(task.rows.clone(), task.kv_head, packed);
        let height = if registers.is_some() { amx::BLOCK } else { STRIP };
        scratch.spans.clear();
        scratch.spans.extend(scratch.places.chunks(height).map(Span::of_rows));
        let rows = Span::of_rows(&scratch.places);
        let mut panels = self.visible(&rows, task.panels.clone()).peekable();
        loop {
            let mut tile = [0; TILE_PANELS];
            let mut count = 0;
            while let Some(panel) = panels.next_if(|panel| count == 0 || panel / TILE_PANELS == tile[0] / TILE_PANELS) {
                tile[count] = panel;
                count += 1;
            }
            if count == 0 {
                break;
            }
            self.absorb(scratch, registers.as_ref(), task.kv_head, &tile[..count]);
            if !tiles::done() {
                break;
            }
        }
        dispatch(self.level, Finish { sizes: self.sizes, scratch, results: task.results });
    }

    /// Packs a tile of keys and takes it into every strip that sees some of it.
    fn absorb(&self, scratch: &mut Scratch, registers: Option<&Registers>, kv_head: usize, panels: &[usize]) {
        let (source, depth, padded_dim) = (self.keys, self.keys.depth(), self.keys.padded_dim);
        let tile = &scratch.keys.fill(self.level, source, kv_head, panels);
        let (stacked, height) = (scratch.places.len(), if registers.is_some() { amx::BLOCK } else { STRIP });
        for first in (0..stacked).step_by(height) {
            let rows = first..stacked.min(first + height);
            let places = &scratch.places[rows.clone()];
            let span = &scratch.spans[first / height];
            let mut seen = [Seen::NOTHING; TILE_PANELS];
            for (seen, &panel) in seen.iter_mut().zip(panels) {
                *seen = source.list.seen(span, panel);
            }
            if seen.iter().all(|seen| seen.sight == Sight::Nothing) {
                continue;
            }
            let there = first..if registers.is_some() { first + height } else { rows.end };
            let strip = Strip {
                q: &scratch.q.get()[there.start * depth..there.end * depth],
                places,
                top: &mut scratch.top[rows.clone()],
                sum: &mut scratch.sum[first * WIDEST..rows.end * WIDEST],
                out: &mut scratch.out.get_mut()[there.start * padded_dim..there.end * padded_dim],
            };
            let p = scratch.p.get_mut();
            match registers {
                Some(registers) => {
                    let sight = seen.map(|seen| seen.sight);
                    dispatch_pairs(self.level, AbsorbInTiles { registers, strip, tile, sight, p });
                }
                None => {
                    let p = &mut p[..STRIP * TILE + PANEL];
                    dispatch_either(self.level, source.paired, Absorb { strip, tile, seen, p });
                }
            }
        }
    }
}

/// Divides by the sums and writes a task's results.
struct Finish<'a> {
    sizes: Sizes,
    scratch: &'a Scratch,
    /// As of the task.
    results: Vec<(&'a mut Fresh, &'a mut [f32])>,
}

impl Kernel for Finish<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let Self { sizes: Sizes { group, head_dim, padded_dim, .. }, scratch, results } = self;
        let (sums, _) = scratch.sum.as_chunks::<WIDEST>();
        let places: Vec<_> = results.iter().map(|(out, _)| out.as_ptr()).collect();
        for (i, (out, lse)) in results.into_iter().enumerate() {
            if let Some(later) = places.get(i + ROWS_AHEAD) {
                (0..out.len()).step_by(LINE).for_each(|line| V::prefetch(later.wrapping_add(line)));
            }
            for (head, (out, lse)) in out.chunks_exact_mut(head_dim).zip(lse).enumerate() {
                let stack = i * group + head;
                let sum = sum_of(sums[stack]);
                if sum == 0.0 {
                    out.iter_mut().for_each(|value| _ = value.write(0.0));
                    continue; // no key was seen, and −∞ stands there already
                }
                let factor = sum.recip();
                for (out, value) in out.iter_mut().zip(&scratch.out.get()[stack * padded_dim..]) {
                    out.write(value * factor);
                }
                *lse = (scratch.top[stack] + sum.log2()) / LOG2_E;
            }
        }
    }
}
