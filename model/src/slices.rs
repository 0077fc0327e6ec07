//! A layer in slices of its rows, so that of everything but the residual stream, keys and values
//! only one slice is alive. Where sequences decode beside the pass, all ranks cut a layer into the
//! same number of parts and pass a control point after each ([`Progress::sliced`]); a part may have
//! several slices. Numbers of a row depend on its slice by rounding only.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::{Partial, contiguous, write_rows};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{Attention, Model, Qkv, Rows, SlicedAttention};

/// The `index`-th of `count` runs of almost equal lengths.
fn run_of(range: &Range<usize>, index: usize, count: usize) -> Range<usize> {
    range.start + index * range.len() / count..range.start + (index + 1) * range.len() / count
}

/// Number of slices of at most `most` rows of a layer with `rows` rows.
pub fn slice_count(rows: usize, most: usize) -> usize {
    rows.div_ceil(most.max(1))
}

/// The rows of a slice of a part of `rows` rows; a slice and a part are given by index and number.
pub fn slice_of_part(rows: usize, (part, parts): (usize, usize), (slice, slices): (usize, usize)) -> Range<usize> {
    run_of(&slice_of(rows, part, parts), slice, slices)
}

/// The rows of the slice with this index among `count` slices of `rows` rows.
pub fn slice_of(rows: usize, index: usize, count: usize) -> Range<usize> {
    run_of(&(0..rows), index, count)
}

/// Runs `run` on each part of `rows` rows, and passes the control point after each; the results of
/// parts with rows, in order. There is at least one result: that of no rows, if there are none.
///
/// # Errors
/// Returns an error of `run`, and fails as a control point does.
pub fn in_parts<T, E: From<Error>>(
    rows: usize,
    progress: &Progress,
    mut run: impl FnMut(Range<usize>) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let parts = progress.slices();
    let mut results = Vec::with_capacity(parts);
    for part in 0..parts {
        let range = slice_of(rows, part, parts);
        if !range.is_empty() || (results.is_empty() && part + 1 == parts) {
            results.push(run(range)?);
        }
        progress.between_slices()?;
    }
    Ok(results)
}

/// Rows of a tensor that come slice by slice.
#[derive(Default)]
pub struct Filling {
    whole: Option<Tensor>,
    filled: usize,
}

impl Filling {
    /// Adds the next rows of `rows`.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn push(&mut self, part: Tensor, rows: usize) -> Result<()> {
        let count = part.dim(0)?;
        if count == rows {
            self.whole = Some(part);
        } else if count > 0 {
            let whole = match self.whole.take() {
                Some(whole) => whole,
                None => Tensor::zeros([&[rows], &part.dims()[1..]].concat(), part.dtype(), part.device())?,
            };
            write_rows(&whole, &contiguous(&part)?, self.filled)?;
            self.whole = Some(whole);
        }
        self.filled += count;
        Ok(())
    }

    /// The whole tensor.
    ///
    /// # Panics
    /// If no rows have come: only a bug can cause that.
    pub fn into_whole(self) -> Tensor {
        self.whole.expect("at least one slice has come")
    }
}

/// Whether these rows stay together where a pass has no parts: there are few of them, or gradients
/// flow through them, which do not flow through memory that is written in place.
fn stay_together(model: &dyn Model, rows: &Rows) -> bool {
    rows.len() <= model.slice_rows() || rows.adapted.is_some() || rows.hidden.track_op()
}

/// One layer, of whose rows the last `asked` have an output.
pub(super) fn layer<E: From<Error>>(
    model: &dyn Model,
    index: usize,
    rows: Rows,
    asked: usize,
    attention: &mut dyn Attention<Error = E>,
) -> Result<Rows, E> {
    let progress = attention.progress().clone();
    let together = progress.slices() == 1 && stay_together(model, &rows);
    if let Some(sliced) = attention.in_slices() {
        let is_cut = match sliced.common_rows() {
            Some(most) => progress.slices() > 1 || most > model.slice_rows(),
            None => !together && (progress.slices() > 1 || asked > model.slice_rows()),
        };
        if is_cut {
            return by_slices(model, index, (rows, asked), sliced, &progress);
        }
    }
    let qkv = qkv_of_last(model, index, &rows, asked, &progress)?;
    let attended = attention.attend(index, qkv)?;
    Ok(finish(model, index, (last_of(rows, asked)?, attended), &progress)?)
}

/// An attention that takes queries in slices, for all queries of a layer at once, if it needs none
/// [ahead](SlicedAttention::ahead).
///
/// # Errors
/// As the attention.
pub fn attend_whole<E>(attention: &mut dyn SlicedAttention<Error = E>, layer: usize, qkv: Qkv) -> Result<Partial, E>
where
    E: From<candle_core::Error>,
{
    let Qkv { q, k, v } = qkv;
    attention.take(layer, k, v)?;
    let rows = 0..q.dim(0)?;
    let out = attention.slice(layer, q, rows)?;
    attention.end(layer)?;
    Ok(out)
}

/// A layer whose attention takes queries slice by slice.
fn by_slices<E: From<Error>>(
    model: &dyn Model,
    index: usize,
    (rows, asked): (Rows, usize),
    attention: &mut dyn SlicedAttention<Error = E>,
    progress: &Progress,
) -> Result<Rows, E> {
    let Qkv { k, v, .. } = qkv_of_last(model, index, &rows, 0, progress)?;
    attention.take(index, k, v)?;
    for range in attention.ahead() {
        let q = model.queries(index, &rows.run(range.start, range.len())?)?;
        attention.take_ahead(index, q)?;
    }
    let (hidden, parts) = (InPlace::of(last_of(rows, asked)?)?, progress.slices());
    let runs = attention.parts(asked, parts);
    assert!(runs.len() == parts && runs[parts - 1].end == asked, "{parts} parts of {asked} rows");
    for (part, of_part) in runs.into_iter().enumerate() {
        let most = attention.common_rows().map_or(of_part.len(), |most| most.div_ceil(parts));
        let slices = slice_count(most, model.slice_rows());
        for slice in 0..slices {
            let range = run_of(&of_part, slice, slices);
            let rows = hidden.rows.run(range.start, range.len())?;
            let attended = attention.slice(index, model.queries(index, &rows)?, range.clone())?;
            hidden.write(model.finish(index, rows, attended)?, range.start)?;
        }
        // The points of attention and of what follows it come together: ranks have parts of equal
        // work, of which attention is more on one rank than on another. The second point after the
        // last part is the layer's own.
        progress.between_slices()?;
        if part + 1 < parts {
            progress.between_slices()?;
        }
    }
    attention.end(index)?;
    Ok(hidden.into_rows())
}

/// First half of a layer, in slices: keys and values of all rows, queries of the last `queries`.
pub(super) fn qkv_of_last(
    model: &dyn Model,
    layer: usize,
    rows: &Rows,
    queries: usize,
    progress: &Progress,
) -> Result<Qkv> {
    if progress.slices() == 1 && stay_together(model, rows) {
        return model.qkv_of_last(layer, rows, queries);
    }
    let count = rows.len();
    let first = count.checked_sub(queries).ok_or_else(|| Error::Input(format!("{queries} queries of {count} rows")))?;
    let (mut q, mut k, mut v) = (Filling::default(), Filling::default(), Filling::default());
    in_parts(count, progress, |part| {
        // No rows are a slice too.
        let slices = slice_count(part.len(), model.slice_rows()).max(1);
        for range in (0..slices).map(|slice| run_of(&part, slice, slices)) {
            let asking = range.end.saturating_sub(first.max(range.start));
            let found = model.qkv_of_last(layer, &rows.run(range.start, range.len())?, asking)?;
            q.push(found.q, queries)?;
            k.push(found.k, count)?;
            v.push(found.v, count)?;
        }
        Ok::<_, Error>(())
    })?;
    Ok(Qkv { q: q.into_whole(), k: k.into_whole(), v: v.into_whole() })
}

/// The last `count` rows; all of them as they are, so that they may be written in place.
fn last_of(rows: Rows, count: usize) -> Result<Rows> {
    if count == rows.len() { Ok(rows) } else { rows.last(count) }
}

/// Second half of a layer, in slices. The control point after the last part is the layer's own.
pub(super) fn finish(
    model: &dyn Model,
    layer: usize,
    (rows, attended): (Rows, Partial),
    progress: &Progress,
) -> Result<Rows> {
    let (count, parts) = (rows.len(), progress.slices());
    if parts == 1 && (stay_together(model, &rows) || attended.out.track_op()) {
        return model.finish(layer, rows, attended);
    }
    let hidden = InPlace::of(rows)?;
    for part in 0..parts {
        let part_rows = slice_of(count, part, parts);
        let slices = slice_count(part_rows.len(), model.slice_rows());
        for range in (0..slices).map(|slice| run_of(&part_rows, slice, slices)) {
            let (from, length) = (range.start, range.len());
            let rows = hidden.rows.run(from, length)?;
            let attended = attended.rows(from, length)?;
            hidden.write(model.finish(layer, rows, attended)?, from)?;
        }
        if part + 1 < parts {
            progress.between_slices()?;
        }
    }
    Ok(hidden.into_rows())
}

/// Rows whose numbers are replaced slice by slice.
struct InPlace {
    rows: Rows,
}

impl InPlace {
    /// These rows, or a copy of them if others share their numbers.
    fn of(rows: Rows) -> Result<Self> {
        let hidden = if rows.are_own() { rows.hidden.clone() } else { rows.hidden.copy()? };
        Ok(Self { rows: rows.computed(hidden) })
    }

    fn write(&self, slice: Rows, from: usize) -> Result<()> {
        if slice.is_empty() {
            return Ok(());
        }
        Ok(write_rows(&self.rows.hidden, &contiguous(&slice.hidden)?, from)?)
    }

    fn into_rows(self) -> Rows {
        self.rows
    }
}
