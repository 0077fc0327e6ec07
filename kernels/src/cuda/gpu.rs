//! The backend of NVIDIA GPUs: which calls of attention the kernels take.

use candle_core::Tensor;

use super::{attend, scores};
use crate::backend::Backend;
use crate::error::Result;
use crate::{Partial, Query, Readings, Reduce};

/// For tensors on a GPU of which no gradient is wanted.
pub(crate) struct Gpu;

impl Backend for Gpu {
    fn attend(&self, query: &Query<'_>) -> Result<Option<Partial>> {
        if query.tracks() { Ok(None) } else { attend::attend(query) }
    }

    fn column_scores(&self, query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Option<Tensor>> {
        if query.tracks() || lse.track_op() { Ok(None) } else { scores::column_scores(query, lse, reduce) }
    }

    fn readings(&self, query: &Query<'_>, lse: &Tensor, by: Readings) -> Result<Option<Tensor>> {
        let is_ours = by == Readings::PerRow && !query.tracks() && !lse.track_op();
        if is_ours { scores::row_readings(query, lse) } else { Ok(None) }
    }
}
