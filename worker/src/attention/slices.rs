//! Attention of a slice of a pass's queries. The positions of the slice and the keys in its sight
//! are found in the first layer and used again in the others: a device keeps its lists as long as
//! positions stay.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::{Keys, PAD, Partial, Positions, merge, write_rows};
use tributary_model::{Filling, in_parts, slice_count, slice_of};

use crate::error::{Error, Result};
use crate::layer_math::LayerMath;
use crate::sight::runs_in_sight;

/// A block of keys is cut to the rows in sight if they are less than one in this number: lists of
/// positions take memory, and a kernel leaves out keys that no query sees.
const CUT_BELOW: usize = 8;

/// The slices of a pass.
#[derive(Default)]
pub(super) struct Slices {
    found: Vec<Slice>,
}

/// A slice and its sight.
struct Slice {
    /// Positions of all queries, and the slice of them.
    of: Positions,
    rows: Range<usize>,
    /// Positions of the blocks of keys.
    keys: Vec<Positions>,
    /// Positions of the slice.
    at: Positions,
    sight: Vec<Sight>,
}

/// Keys that a slice sees.
enum Sight {
    /// A block.
    Whole(usize),
    /// A run of a block, and its positions.
    Run(usize, Range<usize>, Positions),
}

impl Slice {
    fn new(of: &Positions, rows: Range<usize>, keys: &[Keys]) -> Self {
        let places: Vec<u32> = (rows.start as u32..rows.end as u32).collect();
        let (at, mut sight) = (of.select(&places), Vec::new());
        for (index, block) in keys.iter().enumerate() {
            let runs = runs_in_sight(&at, &block.at).unwrap_or_default();
            let seen: usize = runs.iter().map(Range::len).sum();
            if runs.is_empty() || CUT_BELOW * seen >= block.at.len() {
                sight.push(Sight::Whole(index));
                continue;
            }
            for run in runs {
                let places: Vec<u32> = (run.start as u32..run.end as u32).collect();
                sight.push(Sight::Run(index, run, block.at.select(&places)));
            }
        }
        Self { of: of.clone(), rows, keys: keys.iter().map(|block| block.at.clone()).collect(), at, sight }
    }

    fn is_of(&self, of: &Positions, rows: &Range<usize>, keys: &[Keys]) -> bool {
        let are_same = || self.keys.iter().zip(keys).all(|(at, block)| *at == block.at);
        self.rows == *rows && self.keys.len() == keys.len() && self.of == *of && are_same()
    }

    fn keys(&self, keys: &[Keys]) -> Result<Vec<Keys>> {
        let seen = |sight: &Sight| match sight {
            Sight::Whole(block) => Ok(keys[*block].clone()),
            Sight::Run(block, run, at) => {
                let of = |x: &Tensor| x.narrow(0, run.start, run.len());
                Ok(Keys { k: of(&keys[*block].k)?, v: of(&keys[*block].v)?, at: at.clone() })
            }
        };
        self.sight.iter().map(seen).collect()
    }
}

/// Runs of about the same work in the rows at these positions, as many as `parts`, one after the
/// other. A row sees the keys before it, and its products take as long as `row_keys` keys more.
/// Ranks whose rows lie elsewhere come to the ends of their parts together.
pub(super) fn even_parts(row_keys: usize, at: &Positions, parts: usize) -> Vec<Range<usize>> {
    let keys = |order: u32| if order == PAD { 0 } else { order as usize };
    let total: usize = at.order().iter().map(|&order| row_keys + keys(order)).sum();
    let (mut done, mut row, mut runs) = (0, 0, Vec::with_capacity(parts));
    for part in 1..=parts {
        let start = row;
        while row < at.len() && (part == parts || done * parts < part * total) {
            done += row_keys + keys(at.order()[row]);
            row += 1;
        }
        runs.push(start..row);
    }
    runs
}

impl Slices {
    /// Attention of the queries `q` of the rows `rows` among those at `at`.
    ///
    /// # Errors
    /// Returns an error if a kernel fails.
    pub fn attend(
        &mut self,
        math: LayerMath<'_>,
        (q, rows): (&Tensor, Range<usize>),
        at: &Positions,
        keys: &[Keys],
    ) -> Result<Partial> {
        if rows.len() == at.len() {
            return math.attend(q, at, keys);
        }
        let at = &math.of.seen_from(at);
        let found = self.found.iter().position(|slice| slice.is_of(at, &rows, keys));
        let found = found.unwrap_or_else(|| {
            self.found.push(Slice::new(at, rows, keys));
            self.found.len() - 1
        });
        let slice = &self.found[found];
        math.attend(q, &slice.at, &slice.keys(keys)?)
    }

    /// Attention of all queries `q`, merged with `sum`, which is over other keys: slice by slice,
    /// in place, with a control point after each part of the pass. Every rank calls it at the
    /// same places.
    ///
    /// # Errors
    /// Returns an error if a kernel fails, and fails as a control point does.
    pub fn attend_onto(
        &mut self,
        math: LayerMath<'_>,
        sum: Option<Partial>,
        (q, at): (&Tensor, &Positions),
        keys: &[Keys],
    ) -> Result<Partial> {
        let count = q.dim(0)?;
        if math.math.progress.slices() == 1 && count <= math.math.slice_rows {
            let part = math.attend(q, at, keys)?;
            return sum.map_or(Ok(part.clone()), |sum| Ok(merge(&sum, &part)?));
        }
        let (mut out, mut lse) = (Filling::default(), Filling::default());
        in_parts(count, &math.math.progress, |part| {
            // No rows are a slice too.
            let slices = slice_count(part.len(), math.math.slice_rows).max(1);
            for index in 0..slices {
                let run = slice_of(part.len(), index, slices);
                let rows = part.start + run.start..part.start + run.end;
                let q = q.narrow(0, rows.start, rows.len())?;
                let found = self.attend(math, (&q, rows.clone()), at, keys)?;
                match &sum {
                    None => {
                        out.push(found.out, count)?;
                        lse.push(found.lse, count)?;
                    }
                    // A merge of nothing is the sum itself.
                    Some(_) if rows.is_empty() => {}
                    Some(sum) => {
                        let merged = merge(&sum.rows(rows.start, rows.len())?, &found)?;
                        write_rows(&sum.out, &merged.out, rows.start)?;
                        write_rows(&sum.lse, &merged.lse, rows.start)?;
                    }
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok(sum.unwrap_or_else(|| Partial { out: out.into_whole(), lse: lse.into_whole() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_early_and_of_late_rows_have_equal_work() {
        const ROW_KEYS: usize = 100;
        // About as much work: many early rows, few late ones, and a row that sees nothing.
        let early = Positions::run(0, 1000);
        let late = Positions::run(1000, 400);
        let padded = Positions::in_sequence(vec![7, 0, 9], vec![7, PAD, 9]);
        for (at, most_rows) in [(&early, 1000), (&late, 400), (&padded, 3), (&early.select(&[]), 0)] {
            let work = |rows: &Range<usize>| {
                let order = &at.order()[rows.clone()];
                order.iter().map(|&order| ROW_KEYS + if order == PAD { 0 } else { order as usize }).sum::<usize>()
            };
            let (total, largest) = (work(&(0..at.len())), ROW_KEYS + 1400);
            for parts in [1, 2, 7, 400] {
                let runs = even_parts(ROW_KEYS, at, parts);
                assert_eq!((runs.len(), runs[parts - 1].end), (parts, most_rows));
                assert!(runs[0].start == 0 && runs.windows(2).all(|pair| pair[0].end == pair[1].start));
                for (part, run) in runs.iter().enumerate() {
                    let due = (part + 1) * total / parts;
                    let done = work(&(0..run.end));
                    assert!(done.abs_diff(due) <= largest, "{done} of {due} after part {part} of {parts}");
                }
            }
        }
    }
}
