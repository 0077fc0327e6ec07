//! Attention of a slice of a pass's queries. The positions of the slice and the keys in its sight
//! are found in the first layer and used again in the others: a device keeps its lists as long as
//! positions stay.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::{Keys, Partial, Positions, merge, write_rows};
use tributary_model::{Filling, in_parts, slice_count, slice_of};

use crate::context::Math;
use crate::error::{Error, Result};
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

impl Slices {
    /// Attention of the queries `q` of the rows `rows` among those at `at`.
    ///
    /// # Errors
    /// Returns an error if a kernel fails.
    pub fn attend(
        &mut self,
        math: &Math,
        (q, rows): (&Tensor, Range<usize>),
        at: &Positions,
        keys: &[Keys],
    ) -> Result<Partial> {
        if rows.len() == at.len() {
            return math.attend(q, at, keys);
        }
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
        math: &Math,
        sum: Option<Partial>,
        (q, at): (&Tensor, &Positions),
        keys: &[Keys],
    ) -> Result<Partial> {
        let count = q.dim(0)?;
        if math.progress.slices() == 1 && count <= math.slice_rows {
            let part = math.attend(q, at, keys)?;
            return sum.map_or(Ok(part.clone()), |sum| Ok(merge(&sum, &part)?));
        }
        let (mut out, mut lse) = (Filling::default(), Filling::default());
        in_parts(count, &math.progress, |part| {
            // No rows are a slice too.
            let slices = slice_count(part.len(), math.slice_rows).max(1);
            for index in 0..slices {
                let run = slice_of(part.len(), index, slices);
                let rows = part.start + run.start..part.start + run.end;
                let of = |x: &Tensor| x.narrow(0, rows.start, rows.len());
                let found = self.attend(math, (&of(q)?, rows.clone()), at, keys)?;
                match &sum {
                    None => {
                        out.push(found.out, count)?;
                        lse.push(found.lse, count)?;
                    }
                    // A merge of nothing is the sum itself.
                    Some(_) if rows.is_empty() => {}
                    Some(sum) => {
                        let merged = merge(&Partial { out: of(&sum.out)?, lse: of(&sum.lse)? }, &found)?;
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
