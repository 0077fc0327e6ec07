//! Slices of a layer: how many rows are computed between two control points, so that sequences in
//! decoding do not wait long for a layer of a long prompt.

use std::time::Duration;

use tributary_protocol::{Phase, Plan, RankReport, Slices};

use crate::ModelShape;
use crate::cost::{RankWork, work};

/// Least number of rows in a slice that the planner chooses: products of fewer rows are slow.
const LEAST_ROWS: f64 = 256.0;

/// Share of the gap that a slice is planned to take: rates are those of many rows, and the steps of
/// decoding take their time too.
const SHARE: f64 = 0.5;

/// Prefills with fewer FLOPs say little of a machine's rate.
const LEAST_FLOPS: f64 = 1e8;

/// Part of a lower rate that is believed at once: another program may have been at work.
const BELIEVED: f64 = 0.1;

/// Largest factor of a rise at once: a single time may be wrong.
const MOST_RISE: f64 = 2.0;

/// How layers of long prompts are cut.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Slicing {
    /// They are not.
    #[default]
    Whole,
    /// A slice has at most this number of rows.
    Rows(u32),
    /// A slice takes at most this time, by the machine's rates.
    Within(Duration),
}

impl Slicing {
    /// The slices of a plan's layers on a rank with these FLOPs a second.
    pub(crate) fn slices(self, plan: &Plan, shape: &ModelShape, flops_per_s: f64) -> Slices {
        match self {
            Slicing::Whole => Slices::default(),
            Slicing::Rows(rows) => Slices::of(rows),
            Slicing::Within(gap) => {
                let before = shape.layer_kv_flops() + shape.layer_query_flops();
                let products = before.max(shape.layer_finish_flops());
                let rows = |keys: usize| {
                    // The largest of the three places of a layer that are cut. Two of them may have
                    // their points together: a slice then takes up to twice its share.
                    let attention = shape.pair_flops() / shape.layers.max(1) as f64 * keys as f64;
                    let rows = SHARE * gap.as_secs_f64() * flops_per_s / attention.max(products);
                    rows.clamp(LEAST_ROWS, u32::MAX.into()) as u32
                };
                let longest = plan.chunks.iter().map(|chunk| chunk.rows()).max().unwrap_or(0);
                Slices { chunk_rows: rows(plan.prefix_tokens() + longest), context_rows: rows(plan.total_rows()) }
            }
        }
    }
}

/// The rate at which ranks have prefilled.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MeasuredRate {
    /// FLOPs that a rank does in a second.
    pub(crate) flops_per_s: Option<f64>,
}

impl MeasuredRate {
    /// Takes the reports of a prefill.
    pub(crate) fn learn(&mut self, plan: &Plan, reports: &[RankReport], shape: &ModelShape) {
        let of_ranks = |phase: Phase| {
            let spans = reports.iter().flat_map(|report| &report.spans).filter(move |span| span.phase == phase);
            spans.map(|span| span.seconds - span.waited_s).sum::<f64>()
        };
        let work = work(plan, reports.len(), shape);
        let phase = |phase| Some((work.phase(phase)?.ranks.iter().map(RankWork::flops).sum::<f64>(), of_ranks(phase)));
        let phases = [Phase::ChunkPrefill, Phase::Recompute].into_iter().filter_map(phase);
        let (flops, seconds) = phases.fold((0.0, 0.0), |(flops, seconds), (f, s)| (flops + f, seconds + s));
        if flops < LEAST_FLOPS || seconds <= 0.0 {
            return;
        }
        let now = flops / seconds;
        self.flops_per_s = Some(match self.flops_per_s {
            None => now,
            Some(before) => now.min(MOST_RISE * before).max(before + BELIEVED * (now - before)),
        });
    }
}
