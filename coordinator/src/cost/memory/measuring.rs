//! Memory while context rows are measured before any is selected.

use tributary_protocol::{DriftScore, Trace};

use super::{Count, slack};
use crate::machine::MemoryOf;

/// Numbers that a free probe holds at once for each of its rows and each key on the rank: what it reads of its own chunk and of the others,
/// on the way there too, the sum of both, and that of the layers before and with it.
const NUMBERS_A_READING: usize = 6;

impl Count<'_> {
    /// Bytes while drift is measured, beside `stale` keys and values: what is cached of the first layers, from all ranks, what is
    /// compared of one once more in one piece, and what passes through.
    pub(super) fn drift(&self, rank: usize, stale: u64) -> u64 {
        let (plan, order) = (self.plan, self.plan.request_order());
        let Some(drift) = plan.drifts(&order) else { return 0 };
        let layer_bytes = self.shape.layer_kv_bytes();
        let gathered = if self.threads { plan.kept_counts(self.world)[rank] } else { plan.context_rows() } as u64;
        let is_attended = drift.score == DriftScore::Attended;
        let last_bytes = if is_attended { layer_bytes } else { layer_bytes / 2 };
        let cached = gathered * (drift.layers as u64 * layer_bytes + last_bytes);
        let compared = plan.context_rows() as u64 * layer_bytes;
        let rows = plan.candidate_rows(&order).len().div_ceil(self.world);
        stale + cached + compared + self.activations(rows, true) + self.rotated(plan.context_rows())
    }

    /// Bytes in a free probe, beside `stale` keys and values. The worst case: the first one, which has most rows, and what all of them
    /// together leave on the host.
    pub(super) fn free_probe(&self, rank: usize, stale: u64) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        if plan.traces().is_none() || plan.traced_positions() > shape.max_positions {
            return 0;
        }
        let (rows, kept) = (Trace::rows_of_round(plan.budget), plan.kept_counts(self.world)[rank]);
        let warm = plan.warm_counts(self.world)[rank];
        let fresh = (rows as u64).saturating_mul(shape.layer_kv_bytes());
        let queries = self.number_bytes() * (rows * (6 * shape.query_width() + shape.heads)) as u64;
        let on_host = if self.memory == MemoryOf::Host { Trace::rows_of_all(plan.budget) } else { 0 };
        let readings = 4 * ((NUMBERS_A_READING * rows + on_host) as u64).saturating_mul(kept as u64);
        let passing = self.activations(rows.div_ceil(self.world), true) + self.rotated(kept + warm + rows);
        stale + fresh + passing + slack(queries + readings)
    }
}
