//! The attention that each key receives from all query rows: tasks of one panel of keys, each
//! walking over all rows and heads. The probabilities of a panel and a tile of rows are added up
//! over the heads and reduced at once, so `[queries, keys]` never exists.

use candle_core::{DType, Tensor};

use super::inputs::Inputs;
use super::lanes::{CausalPosition, Lanes, PANEL, STRIP, WIDEST};
use super::level::{EitherKernel, Level, dispatch_either};
use super::micro::{Mask, Operands, Room, scores};
use super::pack::{Aligned, KeySource, PackKeys, QuerySource, multiplies_pairs};
use super::sight::{KeyList, Rows, Sight, Span};
use super::stored::Factor;
use super::strip::{LOG2_E, LOWEST};
use super::tasks;
use crate::error::Result;
use crate::tiles;
use crate::{Query, Reduce};

/// Query rows whose probabilities a thread holds at a time.
const TILE_ROWS: usize = 32;

/// A call, and the log-sum-exp that normalises its probabilities.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) query: &'a Query<'a>,
    /// `[queries, heads]`.
    pub(super) lse: &'a Tensor,
}

/// Everything that the tasks of a call share.
pub(super) struct Call<'a> {
    level: Level,
    pub(super) keys: KeySource<'a>,
    kv_heads: usize,
    /// Query heads that share a KV head.
    group: usize,
    pub(super) tiles: Vec<RowTile>,
}

/// Some query rows, packed for every KV head. Stacked rows are (query row, head of the group).
pub(super) struct RowTile {
    /// `[kv_heads]`, see [`QuerySource::pack`].
    q: Vec<Aligned>,
    /// The causal position of each stacked row.
    places: Vec<CausalPosition>,
    /// `[kv_heads, stacked rows]`, in units of log₂; +∞ where a row saw nothing, which makes its
    /// probabilities 0.
    lse: Vec<f32>,
    /// Row of the query tensor, of each query row.
    pub(super) index: Vec<u32>,
    pub(super) span: Span,
}

/// The working memory of a thread.
pub(super) struct Scratch {
    /// `[kv_heads, padded_dim, PANEL]`.
    k: Aligned,
    stage: Aligned,
    /// `[STRIP, PANEL]`.
    p: Aligned,
    /// `[TILE_ROWS, PANEL]`.
    sums: Aligned,
}

/// See [`crate::Kernels::column_scores`].
pub(super) fn column_scores(level: Level, asked: Asked<'_>, reduce: Reduce<'_>) -> Result<Vec<f32>> {
    let mut all = vec![0.0; asked.query.key_count()];
    asked.walk(level, |call, numbers| {
        let mut columns = vec![0.0; call.keys.list.panels.len() * PANEL];
        let panels = columns.chunks_exact_mut(PANEL).enumerate().collect();
        tasks::run(panels, || call.scratch(), |scratch, (panel, column)| call.reduce(scratch, panel, reduce, column));
        numbers.iter().zip(columns).for_each(|(&number, column)| all[number] = column);
    })?;
    Ok(all)
}

impl Asked<'_> {
    /// Prepares the call and hands it to `work`, with the number among all keys of each key of its
    /// list; not where no query sees a key.
    ///
    /// # Errors
    /// Returns an error if a position is beyond the tables, or if a candle operation fails.
    pub(super) fn walk(&self, level: Level, work: impl FnOnce(&Call<'_>, &[usize])) -> Result<()> {
        let &Self { query: &Query { q, at, keys, rope, scale, dtype }, lse } = self;
        let (_, heads, head_dim) = q.dims3()?;
        let rows = Rows::new(at);
        let list = KeyList::new(&rows, keys);
        if let Some(rope) = rope {
            rope.check(head_dim, rows.rope.iter().chain(&list.rope).copied())?;
        }
        if list.row.is_empty() || q.elem_count() == 0 {
            return Ok(());
        }
        let counts = keys.iter().map(|block| block.at.len());
        let starts: Vec<usize> = counts.scan(0, |sum, count| Some(std::mem::replace(sum, *sum + count))).collect();
        let kv_heads = keys[list.block[0] as usize].k.dim(1)?;
        let group = heads / kv_heads;
        let inputs = Inputs::new(q, keys)?;
        let held = inputs.hold();
        let blocks = held.blocks()?;
        let padded_dim = head_dim.next_multiple_of(WIDEST);
        let paired = multiplies_pairs(level, &blocks, dtype);
        let keys = KeySource { list: &list, blocks: &blocks, rope, head_dim, padded_dim, paired };
        let queries =
            QuerySource { level, q: held.queries()?, rows: &rows, rope, scale: scale * LOG2_E, group, paired };
        let lse = lse.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let starts_of_tiles = (0..rows.len()).step_by(TILE_ROWS);
        let tiles = starts_of_tiles.map(|first| RowTile::new(&queries, first, keys.depth(), kv_heads, &lse)).collect();
        let number = |(&block, &row): (&u32, &u32)| starts[block as usize] + row as usize;
        let numbers: Vec<usize> = list.block.iter().zip(&list.row).map(number).collect();
        work(&Call { level, keys, kv_heads, group, tiles }, &numbers);
        Ok(())
    }
}

impl RowTile {
    /// Rows `first ..` of the list of rows; `lse` `[queries · heads]`.
    fn new(source: &QuerySource<'_>, first: usize, depth: usize, kv_heads: usize, lse: &[f32]) -> Self {
        let (rows, group) = (source.rows, source.group);
        let range = first..rows.len().min(first + TILE_ROWS);
        let stacked = range.len() * group;
        let q = (0..kv_heads).map(|kv_head| {
            let mut packed = Aligned::new(stacked * depth);
            source.pack(range.clone(), kv_head, packed.get_mut());
            packed
        });
        let index = rows.index[range.clone()].to_vec();
        let lse_of = |kv_head: usize, stack: usize| {
            let row = index[stack / group] as usize;
            let lse = lse[(row * kv_heads + kv_head) * group + stack % group];
            if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse * LOG2_E }
        };
        let lse = (0..kv_heads).flat_map(|kv_head| (0..stacked).map(move |stack| (kv_head, stack)));
        let places = &rows.place[range.clone()];
        Self {
            q: q.collect(),
            lse: lse.map(|(kv_head, stack)| lse_of(kv_head, stack)).collect(),
            span: Span::of_rows(places),
            places: places.iter().flat_map(|place| std::iter::repeat_n(*place, group)).collect(),
            index,
        }
    }
}

impl Call<'_> {
    pub(super) fn scratch(&self) -> Scratch {
        let padded_dim = self.keys.padded_dim;
        Scratch {
            k: Aligned::new(self.kv_heads * padded_dim * PANEL),
            stage: KeySource::stage(padded_dim),
            p: Aligned::new(STRIP * PANEL),
            sums: Aligned::new(TILE_ROWS * PANEL),
        }
    }

    /// Query heads.
    pub(super) fn heads(&self) -> usize {
        self.kv_heads * self.group
    }

    /// Packs one panel's keys.
    pub(super) fn pack(&self, scratch: &mut Scratch, panel: usize) {
        let source = self.keys;
        for (kv_head, k) in scratch.k.get_mut().chunks_exact_mut(source.padded_dim * PANEL).enumerate() {
            let pack = PackKeys { source, panel, kv_head, stage: scratch.stage.get_mut(), k };
            dispatch_either(self.level, source.paired, pack);
        }
    }

    /// Whether a row of the tile sees a key of the panel.
    pub(super) fn sees(&self, tile: &RowTile, panel: usize) -> bool {
        tile.span.sees(&self.keys.list.panels[panel]) != Sight::Nothing
    }

    /// Each row's attention to the keys of the packed panel, summed over the heads:
    /// `[rows of the tile, PANEL]`.
    pub(super) fn sums<'s>(&self, scratch: &'s mut Scratch, tile: &RowTile, panel: usize) -> &'s [f32] {
        scratch.sums.get_mut().fill(0.0);
        for kv_head in 0..self.kv_heads {
            self.add_head(scratch, tile, panel, kv_head);
        }
        &scratch.sums.get()[..tile.index.len() * PANEL]
    }

    /// The scores of one panel's keys, to `column` `[PANEL]`.
    fn reduce(&self, scratch: &mut Scratch, panel: usize, reduce: Reduce<'_>, column: &mut [f32]) {
        self.pack(scratch, panel);
        for tile in self.tiles.iter().filter(|tile| self.sees(tile, panel)) {
            let sums = self.sums(scratch, tile, panel);
            if !tiles::done() {
                break;
            }
            for (row, sums) in tile.index.iter().zip(sums.chunks_exact(PANEL)) {
                let pairs = column.iter_mut().zip(sums);
                match reduce {
                    Reduce::Norm => pairs.for_each(|(column, sum)| *column += sum * sum),
                    Reduce::Mass => pairs.for_each(|(column, sum)| *column += sum),
                    Reduce::Weighted(weights) => {
                        let weight = weights[*row as usize];
                        pairs.for_each(|(column, sum)| *column += weight * sum);
                    }
                }
            }
        }
        let heads = self.heads() as f32;
        for value in column {
            let is_norm = matches!(reduce, Reduce::Norm);
            *value = if is_norm { value.sqrt() / heads } else { *value / heads };
        }
    }

    /// Adds the probabilities of one KV head's group to the tile's sums.
    fn add_head(&self, scratch: &mut Scratch, tile: &RowTile, panel: usize, kv_head: usize) {
        let KeySource { list, padded_dim, paired, .. } = self.keys;
        let (depth, stacked) = (self.keys.depth(), tile.places.len());
        for first in (0..stacked).step_by(STRIP) {
            let rows = first..stacked.min(first + STRIP);
            let places = &tile.places[rows.clone()];
            let mask = match Span::of_rows(places).sees(&list.panels[panel]) {
                Sight::Nothing => continue,
                Sight::All => None,
                Sight::Some => Some(Mask::new(list.of_panel(panel), places, !0)),
            };
            let work = AddProbabilities {
                q: &tile.q[kv_head].get()[first * depth..rows.end * depth],
                k: &scratch.k.get()[kv_head * padded_dim * PANEL..][..padded_dim * PANEL],
                lse: &tile.lse[kv_head * stacked + first..kv_head * stacked + rows.end],
                mask,
                depth,
                first,
                group: self.group,
                p: scratch.p.get_mut(),
                sums: scratch.sums.get_mut(),
            };
            dispatch_either(self.level, paired, work);
        }
    }
}

/// Adds a strip's probabilities to its query rows.
struct AddProbabilities<'a> {
    /// `[rows, depth]`.
    q: &'a [f32],
    /// `[depth, PANEL]`, in room for `[padded_dim, PANEL]`.
    k: &'a [f32],
    /// `[rows]`.
    lse: &'a [f32],
    mask: Option<Mask<'a>>,
    /// Numbers of a head, or pairs of them.
    depth: usize,
    /// Stacked row of the strip's first.
    first: usize,
    group: usize,
    /// `[STRIP, PANEL]` of scratch.
    p: &'a mut [f32],
    /// `[TILE_ROWS, PANEL]`.
    sums: &'a mut [f32],
}

impl EitherKernel for AddProbabilities<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes, F: Factor<V>>(mut self) {
        // SAFETY: the caller promises the instructions, and `add` checks every length against ROWS.
        unsafe {
            match self.lse.len() {
                1 => add::<V, F, 1>(&mut self),
                2 => add::<V, F, 2>(&mut self),
                3 => add::<V, F, 3>(&mut self),
                4 => add::<V, F, 4>(&mut self),
                5 => add::<V, F, 5>(&mut self),
                rows => {
                    assert_eq!(rows, STRIP, "rows of a strip");
                    add::<V, F, STRIP>(&mut self);
                }
            }
        }
    }
}

/// # Safety
/// The machine has the instructions of `V`.
#[inline(always)]
unsafe fn add<V: Lanes, F: Factor<V>, const ROWS: usize>(work: &mut AddProbabilities<'_>) {
    assert_eq!(work.q.len(), work.depth * ROWS, "packed queries");
    assert!(work.k.len() >= work.depth * PANEL, "packed keys");
    assert_eq!(work.p.len(), STRIP * PANEL, "room for the scores");
    assert_eq!(work.sums.len(), TILE_ROWS * PANEL, "room for the sums");
    // SAFETY: the caller promises the instructions; lengths were checked above, those of the mask
    // when it was made.
    unsafe {
        let mut top = [V::splat(LOWEST); ROWS];
        let p = work.p.as_mut_ptr();
        let (q, k) = (work.q.as_ptr(), work.k.as_ptr());
        let operands = Operands { q, k, depth: work.depth, mask: work.mask };
        scores::<V, F, ROWS>(operands, None, Room { at: p, step: PANEL }, &mut top);
        for r in 0..ROWS {
            let lse = V::splat(work.lse[r]);
            let row = (work.first + r) / work.group;
            let sums = work.sums[row * PANEL..][..PANEL].as_mut_ptr();
            for column in (0..PANEL).step_by(V::N) {
                let value = V::load(p.add(r * PANEL + column)).sub(lse).exp2();
                V::load(sums.add(column)).add(value).store(sums.add(column));
            }
        }
    }
}
