//! Memory while context rows are measured before any is selected.

use tributary_protocol::{Activations, DriftScore, TYPICAL_ROWS, Trace};

use super::Count;
use super::activations::Pass;
use crate::machine::MemoryOf;

/// Numbers that a free probe holds at once for each of its rows and each key on the rank: its
/// readings of its own chunk and of the others, also in transit, the sum of both, and that of the
/// layers before and with it.
const NUMBERS_A_READING: usize = 6;

/// Maximum number of scores in a tile of rows while the sharpest heads are found.
const PEAK_SCORES: u64 = 1 << 24;

/// A pass of rows whose queries go to all ranks.
fn measured_pass(rows: usize) -> Pass {
    Pass::of(rows, Activations::Results).merging(3)
}

impl Count<'_> {
    /// Bytes while drift is measured, in addition to `stale` keys and values: the cached state of
    /// the first layers, from all ranks, the compared part of one layer once more in one piece, and
    /// activations.
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
        stale + cached + compared + self.activations(Pass::in_whole_layers(rows)) + self.rotated(plan.context_rows())
    }

    /// Bytes in a probe of anchors, in addition to `stale` keys and values: those of the anchors in
    /// the layers that it passes, joined, a layer of them once more, and activations of the query's
    /// rows, or of those of the model's mean query.
    pub(super) fn anchored(&self, rank: usize, stale: u64) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        if !plan.probes() || plan.method.anchors().is_none() {
            return 0;
        }
        let anchors = plan.anchor_counts(self.world)[rank];
        let layers = plan.probed_layers(shape.layers).end as u64 + 1;
        let passing = self.activations(measured_pass(plan.query_tokens().max(TYPICAL_ROWS)));
        let read = self.rotated(plan.kept_counts(self.world)[rank]);
        stale + layers * anchors as u64 * shape.layer_kv_bytes() + passing + read
    }

    /// Bytes in ideal's full prefill, in addition to `stale` keys and values.
    /// These are its share of the rows, the queries of all of them, and a layer's fresh keys and
    /// values, as they arrive and in one piece. The compared data and the query's attention to the
    /// cache in every layer are added.
    pub(super) fn oracle(&self, rank: usize, stale: u64) -> u64 {
        let (plan, shape) = (self.plan, self.shape);
        if !plan.asks_oracle() {
            return 0;
        }
        let (rows, query, kept) = (plan.context_rows(), plan.query_tokens(), plan.kept_counts(self.world)[rank]);
        let share = rows.div_ceil(self.world) + if rank == plan.owner { query } else { 0 };
        let queries = self.number_bytes() * ((rows + query) * (4 * shape.query_width() + shape.heads)) as u64;
        let fresh = 2 * kept as u64 * shape.layer_kv_bytes();
        let compared = kept * shape.kv_width() * (4 * 4 + 2 * shape.dtype_bytes);
        let paid = 4 * kept * (shape.layers + 4);
        let passing = self.activations(measured_pass(share)) + self.rotated(kept + query);
        stale + fresh + passing + self.slack(queries + (compared + paid) as u64)
    }

    /// Bytes of a probe for peaks: keys and values in f32, the turned keys, a tile's scores,
    /// masked, and their exponentials; and the peaks of all ranks.
    fn peaks(&self, rows: usize, kept: usize) -> u64 {
        let (shape, keys) = (self.shape, (kept + rows) as u64);
        let wide = 4 * 6 * keys * shape.kv_width() as u64;
        let row = (shape.heads as u64).saturating_mul(keys);
        let tile = row.saturating_mul(rows as u64).min(PEAK_SCORES.max(row));
        let found = (shape.layers * shape.heads * (self.world + 2)) as u64 * rows as u64;
        wide + 4 * 5 * tile + rows as u64 * keys + 4 * found
    }

    /// Bytes in a free probe, in addition to `stale` keys and values. The worst case: the first
    /// one, which has most rows, and the results of all of them on the host.
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
        let passing = self.activations(measured_pass(rows.div_ceil(self.world))) + self.rotated(kept + warm + rows);
        let peaks = match plan.traces().and_then(|trace| trace.heads.count(1)) {
            Some(_) => self.peaks(rows, kept),
            None => 0,
        };
        stale + fresh + passing + self.slack(queries + readings.max(peaks))
    }
}
