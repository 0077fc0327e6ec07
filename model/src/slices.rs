//! A layer in slices of its rows: after each slice of its products, and of its attention where that
//! is cut alike on all ranks, follows a control point ([`Progress::sliced`]). Numbers
//! of a row depend on its slice by rounding only.

use std::ops::Range;

use candle_core::Tensor;
use tributary_kernels::join;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::{Model, Qkv, Rows};

/// Runs `run` on each slice of `rows` rows, and passes the control point after each; the results of
/// slices with rows, in order. There is at least one result: that of no rows, if there are none.
///
/// # Errors
/// Returns an error of `run`, and fails as a control point does.
pub fn in_slices<T, E: From<Error>>(
    rows: usize,
    progress: &Progress,
    mut run: impl FnMut(Range<usize>) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let slices = progress.slices();
    let mut results = Vec::with_capacity(slices);
    for slice in 0..slices {
        let range = slice * rows / slices..(slice + 1) * rows / slices;
        if !range.is_empty() || (results.is_empty() && slice + 1 == slices) {
            results.push(run(range)?);
        }
        progress.between_slices()?;
    }
    Ok(results)
}

/// First half of a layer, in slices.
pub(super) fn qkv(model: &dyn Model, layer: usize, rows: &Rows, progress: &Progress) -> Result<Qkv> {
    if progress.slices() == 1 {
        return model.qkv(layer, rows);
    }
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    in_slices(rows.len(), progress, |range| {
        let part = model.qkv(layer, &rows.run(range.start, range.len())?)?;
        q.push(part.q);
        k.push(part.k);
        v.push(part.v);
        Ok::<_, Error>(())
    })?;
    // One after the other, so that only one of them is there twice.
    let joined = |parts: Vec<Tensor>| join(&parts.iter().collect::<Vec<_>>(), 0);
    Ok(Qkv { q: joined(q)?, k: joined(k)?, v: joined(v)? })
}

/// Second half of a layer, in slices. The control point after the last of them is the layer's own.
pub(super) fn finish(
    model: &dyn Model,
    layer: usize,
    (rows, attended): (Rows, Tensor),
    progress: &Progress,
) -> Result<Rows> {
    let slices = progress.slices();
    if slices == 1 {
        return model.finish(layer, rows, attended);
    }
    let (count, mut parts) = (rows.len(), Vec::with_capacity(slices));
    for slice in 0..slices {
        let (from, until) = (slice * count / slices, (slice + 1) * count / slices);
        if from < until {
            let attended = attended.narrow(0, from, until - from)?;
            parts.push(model.finish(layer, rows.run(from, until - from)?, attended)?.hidden);
        }
        if slice + 1 < slices {
            progress.between_slices()?;
        }
    }
    if parts.is_empty() {
        return model.finish(layer, rows, attended);
    }
    Ok(rows.with(join(&parts.iter().collect::<Vec<_>>(), 0)?))
}
