//! A backend of the kernels of attention, by the calls that [`Kernels`](crate::Kernels) makes.

use candle_core::Tensor;

use crate::error::Result;
use crate::{Partial, Query, Readings, Reduce};

/// One implementation of attention and of its readings. `None` says that a call is not one of its
/// own: the next backend is asked. Calls have been checked, and no key has positions per KV head.
pub(crate) trait Backend: Sync {
    /// Whether keys and values may be in 8 bits; otherwise they come unpacked.
    fn reads_eight_bits(&self) -> bool {
        false
    }

    /// See [`Kernels::attend`](crate::Kernels::attend).
    fn attend(&self, query: &Query<'_>) -> Result<Option<Partial>>;

    /// See [`Kernels::column_scores`](crate::Kernels::column_scores).
    fn column_scores(&self, _query: &Query<'_>, _lse: &Tensor, _reduce: Reduce<'_>) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// See [`Kernels::readings`](crate::Kernels::readings).
    fn readings(&self, _query: &Query<'_>, _lse: &Tensor, _by: Readings) -> Result<Option<Tensor>> {
        Ok(None)
    }
}
