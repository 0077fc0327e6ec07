//! Results of a study, a row a point and a row a sample. The CSV files, the terminal's table and
//! the page all show these rows.
//!
//! Fields have the names of the CSV files' columns, in their order: scripts of users read them.
//! Times are in milliseconds.

use serde::Serialize;

use crate::scaling::{full, is_full, strong_of};
use crate::schema::{Cache, Point, RankSample, Sample, Study, interval_kind};

/// A point of the sweep: its design and the summary of its samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PointRow {
    /// The point's name, unique in the study.
    pub id: String,
    /// The method with its options.
    pub method: String,
    /// Whether the method equals full prefill but for rounding.
    pub exact: bool,
    /// Context tokens.
    pub context_tokens: usize,
    /// Number of ranks.
    pub world: usize,
    /// Share of the context that is recomputed.
    pub ratio: Option<f64>,
    /// Exchange between ranks during recompute.
    pub exchange: Option<String>,
    /// State of the chunk cache.
    pub cache: String,
    /// Whether more threads computed than there are cores.
    pub shares_cores: bool,
    /// Number of counted runs.
    pub samples: usize,
    /// Number of runs that failed.
    pub failures: usize,
    /// Median of the time to first token.
    pub median_ttft_ms: Option<f64>,
    /// Lower bound of the median's 95 % confidence interval, or of the samples' range:
    /// [`interval`](Self::interval) says which.
    pub ci95_low_ttft_ms: Option<f64>,
    /// Its upper bound.
    pub ci95_high_ttft_ms: Option<f64>,
    /// Mean.
    pub mean_ttft_ms: Option<f64>,
    /// The least.
    pub min_ttft_ms: Option<f64>,
    /// The largest.
    pub max_ttft_ms: Option<f64>,
    /// 95th percentile; absent where there are too few samples.
    pub p95_ttft_ms: Option<f64>,
    /// 99th percentile, likewise.
    pub p99_ttft_ms: Option<f64>,
    /// Predicted milliseconds; absent without a profile of this number of ranks.
    pub predicted_ttft_ms: Option<f64>,
    /// The least that it may be by the profile.
    pub predicted_low_ttft_ms: Option<f64>,
    /// The most.
    pub predicted_high_ttft_ms: Option<f64>,
    /// Full prefill's median over this one.
    pub speed_up_to_full: Option<f64>,
    /// The median on the fewest ranks over this one; absent for full prefill, which computes on one
    /// rank, for any number of ranks.
    pub speed_up: Option<f64>,
    /// Speed-up over the growth of ranks.
    pub efficiency: Option<f64>,
    /// Serial share by Karp and Flatt; absent on the fewest ranks.
    pub karp_flatt: Option<f64>,
    /// Bytes that all ranks received together, median of the samples (of two in the middle the
    /// lower).
    pub received_bytes: Option<u64>,
    /// Bytes by the formula for all ranks together, likewise.
    pub formula_bytes: Option<u64>,
    /// Bytes received until the first token, as predicted.
    pub predicted_received_bytes: u64,
    /// Memory of a host at the worst moment, as predicted.
    pub predicted_memory_bytes: Option<u64>,
    /// FLOPs of all ranks together, as predicted.
    pub predicted_total_flops: Option<f64>,
    /// FLOPs on the critical path, as predicted.
    pub predicted_critical_flops: Option<f64>,
    /// Largest absolute difference of a first-token logit from full prefill.
    pub max_logit_difference: Option<f64>,
    /// Kullback-Leibler divergence of the first token's distribution, in nats.
    pub kl_nats: Option<f64>,
    /// Whether the likeliest first token is the same.
    pub top1_agrees: Option<bool>,
    /// Kind of the bounds: `ci95`, a 95 % interval, or `range`, of fewer than 6 samples.
    pub interval: Option<String>,
}

impl PointRow {
    /// State of the chunk cache, where it makes a difference to the method.
    pub fn shown_cache(&self) -> Option<&str> {
        (!self.exact || self.cache != Cache::Cold.to_string()).then_some(&self.cache)
    }

    /// The row of a study's point.
    pub fn of(study: &Study, point: &Point) -> Self {
        let mut row = Self::asked(point);
        row.measure(point);
        row.predict(point);
        let full_ms = full(study, point.context_tokens).map(|(_, ms)| ms);
        row.speed_up_to_full = full_ms.zip(row.median_ttft_ms).map(|(full_ms, own_ms)| full_ms / own_ms);
        if let Some(strong) = strong_of(study, point).filter(|_| !is_full(point)) {
            row.speed_up = Some(strong.speed_up);
            row.efficiency = Some(strong.efficiency);
            row.karp_flatt = strong.karp_flatt;
        }
        row
    }

    /// Efficiency, where the point has more ranks than its base.
    pub fn grown_efficiency(&self) -> Option<f64> {
        self.efficiency.filter(|_| self.karp_flatt.is_some())
    }

    fn asked(point: &Point) -> Self {
        Self {
            id: point.id.clone(),
            method: point.method.clone(),
            exact: point.exact,
            context_tokens: point.context_tokens,
            world: point.world,
            ratio: point.ratio,
            exchange: point.exchange.clone(),
            cache: point.cache.to_string(),
            shares_cores: point.shares_cores,
            samples: point.samples.len(),
            failures: point.failures.len(),
            ..Self::default()
        }
    }

    fn measure(&mut self, point: &Point) {
        if let Some(summary) = &point.summary {
            self.median_ttft_ms = Some(summary.median_ttft_ms);
            self.ci95_low_ttft_ms = Some(summary.ci95_ttft_ms.0);
            self.ci95_high_ttft_ms = Some(summary.ci95_ttft_ms.1);
            self.interval = Some(interval_kind(summary.count).to_owned());
            self.mean_ttft_ms = Some(summary.mean_ttft_ms);
            self.min_ttft_ms = Some(summary.min_ttft_ms);
            self.max_ttft_ms = Some(summary.max_ttft_ms);
            self.p95_ttft_ms = summary.p95_ttft_ms;
            self.p99_ttft_ms = summary.p99_ttft_ms;
        }
        self.received_bytes = received_bytes(point);
        self.formula_bytes = formula_bytes(point);
        if let Some(accuracy) = &point.accuracy {
            self.max_logit_difference = Some(accuracy.max_logit_difference);
            self.kl_nats = Some(accuracy.kl_nats);
            self.top1_agrees = Some(accuracy.top1_agrees);
        }
    }

    fn predict(&mut self, point: &Point) {
        let predicted = &point.predicted;
        let known = |value: f64| Some(value).filter(|&value| value > 0.0);
        self.predicted_ttft_ms = known(predicted.ttft_ms);
        self.predicted_high_ttft_ms = known(predicted.ttft_high_ms);
        self.predicted_low_ttft_ms = self.predicted_high_ttft_ms.map(|_| predicted.ttft_low_ms);
        self.predicted_received_bytes = predicted.received_bytes;
        self.predicted_memory_bytes = Some(predicted.memory_bytes).filter(|&bytes| bytes > 0);
        self.predicted_total_flops = known(predicted.total_flops);
        self.predicted_critical_flops = known(predicted.critical_flops);
    }
}

/// Name of a study's bounds of medians, for a reader: the range of few samples is no 95 % interval.
pub fn interval_name(study: &Study) -> &'static str {
    let kinds = || study.points.iter().filter_map(|point| Some(interval_kind(point.summary.as_ref()?.count)));
    match (kinds().any(|kind| kind == "range"), kinds().any(|kind| kind == "ci95")) {
        (true, false) => "range",
        (true, true) => "range or 95 %",
        (false, _) => "95 % interval",
    }
}

/// The rows of a study, in the order of its points.
pub fn point_rows(study: &Study) -> Vec<PointRow> {
    study.points.iter().map(|point| PointRow::of(study, point)).collect()
}

/// A counted run. Its phases are columns of their own ([`phases`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SampleRow {
    /// Number of the run in the whole study.
    pub run: usize,
    /// The point's name.
    pub id: String,
    /// The method with its options.
    pub method: String,
    /// Context tokens.
    pub context_tokens: usize,
    /// Number of ranks.
    pub world: usize,
    /// Share of the context that is recomputed.
    pub ratio: Option<f64>,
    /// Exchange between ranks during recompute.
    pub exchange: Option<String>,
    /// State of the chunk cache.
    pub cache: String,
    /// Whether more threads computed than there are cores.
    pub shares_cores: bool,
    /// Time to first token.
    pub ttft_ms: f64,
    /// The same without query pass and first token, estimated.
    pub paper_clock_ms: f64,
    /// Rest of the time to first token outside the phases.
    pub unaccounted_ms: f64,
    /// Wait for others of the rank that waited longest.
    pub longest_wait_ms: f64,
    /// Bytes that all ranks received together.
    pub received_bytes: u64,
    /// Bytes by the formula.
    pub formula_bytes: u64,
    /// Chunks taken from the chunk cache.
    pub cache_hits: usize,
    /// Largest resident memory of rank 0's process so far.
    pub peak_memory_bytes: u64,
    /// Time of the run with everything that it started.
    pub wall_ms: Option<f64>,
    /// Time of processors that the study's processes took meanwhile.
    pub cpu_ms: Option<f64>,
    /// Share of the processors that others took meanwhile.
    pub others_share: Option<f64>,
}

impl SampleRow {
    /// The row of a point's sample.
    pub fn of(point: &Point, sample: &Sample) -> Self {
        Self {
            run: sample.run,
            id: point.id.clone(),
            method: point.method.clone(),
            context_tokens: point.context_tokens,
            world: point.world,
            ratio: point.ratio,
            exchange: point.exchange.clone(),
            cache: point.cache.to_string(),
            shares_cores: point.shares_cores,
            ttft_ms: sample.ttft_ms,
            paper_clock_ms: sample.paper_clock_ms,
            unaccounted_ms: sample.unaccounted_ms,
            longest_wait_ms: sample.ranks.iter().map(|rank| rank.waited_ms).fold(0.0, f64::max),
            received_bytes: all_ranks(sample, |rank| rank.received_bytes),
            formula_bytes: all_ranks(sample, |rank| rank.formula_bytes),
            cache_hits: sample.cache_hits,
            peak_memory_bytes: sample.peak_memory_bytes,
            wall_ms: sample.wall_ms,
            cpu_ms: sample.cpu_ms,
            others_share: sample.others_share,
        }
    }
}

fn all_ranks(sample: &Sample, of: fn(&RankSample) -> u64) -> u64 {
    sample.ranks.iter().map(of).sum()
}

/// Bytes that all ranks received together, median of the samples (of two in the middle the lower);
/// none without samples.
pub fn received_bytes(point: &Point) -> Option<u64> {
    median_bytes(point, |rank| rank.received_bytes)
}

/// Bytes by the formula for all ranks together, median of the samples as above.
pub fn formula_bytes(point: &Point) -> Option<u64> {
    median_bytes(point, |rank| rank.formula_bytes)
}

fn median_bytes(point: &Point, of: fn(&RankSample) -> u64) -> Option<u64> {
    let mut sums: Vec<u64> = point.samples.iter().map(|sample| all_ranks(sample, of)).collect();
    sums.sort_unstable();
    sums.get(sums.len().saturating_sub(1) / 2).copied()
}

/// Whether any rank of any sample received other than the formula gives.
pub fn bytes_differ(point: &Point) -> bool {
    let mut ranks = point.samples.iter().flat_map(|sample| &sample.ranks);
    ranks.any(|rank| rank.received_bytes != rank.formula_bytes)
}

/// The phases that occur, in the order of the first sample that has them.
pub fn phases(study: &Study) -> Vec<String> {
    // In every request phases come in one order; a sample that has more of them gives the places of
    // those.
    let mut longest: Vec<String> = Vec::new();
    for sample in study.points.iter().flat_map(|point| &point.samples) {
        let mut place = 0;
        for time in &sample.phases {
            match longest.iter().position(|name| *name == time.phase) {
                Some(found) => place = found + 1,
                None => {
                    longest.insert(place, time.phase.clone());
                    place += 1;
                }
            }
        }
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{measured, study};
    use crate::schema::PhaseTime;

    #[test]
    fn full_prefill_computes_on_one_rank_and_has_no_speed_up() {
        let of = |world: usize| measured("full:logits", 512, world, None, 30.0);
        let study =
            study(vec![of(1), of(2), measured("ring", 512, 1, None, 20.0), measured("ring", 512, 2, None, 15.0)]);
        let rows = point_rows(&study);
        let scaled = |row: &PointRow| (row.speed_up, row.efficiency, row.karp_flatt);
        assert_eq!([scaled(&rows[0]), scaled(&rows[1])], [(None, None, None); 2]);
        assert_eq!(scaled(&rows[2]), (Some(1.0), Some(1.0), None));
        assert_eq!(rows[2].grown_efficiency(), None, "it is its own base");
        assert_eq!((rows[3].grown_efficiency(), rows[3].speed_up_to_full), (rows[3].efficiency, Some(2.0)));
        assert!(rows[3].efficiency.is_some_and(|efficiency| (efficiency - 2.0 / 3.0).abs() < 1e-12), "{:?}", rows[3]);
    }

    #[test]
    fn the_range_of_few_samples_is_no_interval() {
        let five = measured("ring", 512, 1, None, 20.0);
        let mut six = measured("full", 512, 1, None, 20.0);
        six.summary = crate::schema::summary(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let names = |points: &[&Point]| interval_name(&study(points.iter().map(|point| (*point).clone()).collect()));
        assert_eq!(
            [names(&[&five]), names(&[&six]), names(&[&five, &six])],
            ["range", "95 % interval", "range or 95 %"]
        );
        let rows = point_rows(&study(vec![five.clone(), six.clone()]));
        assert_eq!((rows[0].interval.as_deref(), rows[1].interval.as_deref()), (Some("range"), Some("ci95")));
        assert_eq!(five.summary.unwrap().interval, "range");
        assert_eq!(six.summary.unwrap().interval, "ci95");
    }

    #[test]
    fn phases_stand_in_their_order() {
        let (mut ring, mut infoflow) = (measured("ring", 1, 1, None, 9.0), measured("infoflow", 1, 1, Some(0.1), 9.0));
        let times =
            |names: [&str; 3]| names.map(|phase| PhaseTime { phase: phase.into(), ms: 1.0, waited_ms: 0.0 }).to_vec();
        ring.samples[0].phases = times(["tokenize", "chunk_prefill", "first_token"]);
        infoflow.samples[0].phases = times(["chunk_prefill", "probe", "first_token"]);
        assert_eq!(phases(&study(vec![ring, infoflow])), ["tokenize", "chunk_prefill", "probe", "first_token"]);
    }
}
