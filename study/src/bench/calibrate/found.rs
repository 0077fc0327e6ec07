//! Results of a calibration's seconds: rates, and their spread from round to round.

use std::collections::BTreeMap;

use tributary_charts::statistics::median;
use tributary_model::Model;
use tributary_planner::forecast::{Curve, LEFT_OUT, Spread};

use super::work::{RUN_ROWS, What, before, elementwise_numbers, in_run, layers, memory_bytes};
use crate::error::Result;

/// Seconds of everything that was measured: one entry a round, in it one a rank.
pub type Seconds = BTreeMap<What, Vec<Vec<f64>>>;

/// Least error of a rate: values between the measured sizes are interpolated.
const LEAST_SPREAD: f64 = 0.03;

/// Of a pass's time, products have at least this share.
const LEAST_PRODUCTS: f64 = 0.5;

/// Rounds that are looked at together: a request takes longer than one run of a round, and short
/// fluctuations within it do not show.
const BLOCK: usize = 3;

/// The share of rounds that are left out at either end.
const TRIMMED: f64 = 0.1;

/// Standard deviations on either side of the mean that hold 95 % of a normal distribution.
const WIDTH: f64 = 1.96;

/// Rates of one rank while some of them work.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    pub gemm_by_rows: Curve,
    pub attention_by_keys: Curve,
    pub probe_flops_per_s: f64,
    pub memory_bytes_per_s: f64,
    pub elementwise_bytes_per_s: f64,
    pub merge_bytes_per_s: f64,
    pub layer_s: f64,
    pub request_s: f64,
}

/// Results.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// While all ranks work.
    pub together: Rates,
    /// While one does, if there are several.
    pub alone: Option<Rates>,
    pub latency_s: f64,
    pub link_by_bytes: Curve,
    pub spread: Spread,
    pub rounds: usize,
}

impl Found {
    /// Results from seconds with all of `world` ranks working and, if there are any, with one at
    /// work.
    ///
    /// # Errors
    /// Returns an error if the model fails.
    pub fn new(model: &dyn Model, world: usize, together: &Seconds, alone: Option<&Seconds>) -> Result<Self> {
        let sizes = Sizes::of(model)?;
        let (latency_s, link_by_bytes) = sizes.link(world, together);
        let mut spread = spread(together);
        if let Some(alone) = alone.map(self::spread) {
            spread = wider(spread, alone);
        }
        let alone = alone.map(|seconds| sizes.rates(seconds));
        Ok(Self { together: sizes.rates(together), alone, latency_s, link_by_bytes, spread, rounds: rounds(together) })
    }
}

/// Numbers derived from the model's sizes.
struct Sizes {
    /// FLOPs of a row's products in one layer, and of a row and a key in its attention.
    row_flops: f64,
    pair_flops: f64,
    /// Numbers that a row reads and writes in one layer, apart from its products and its attention.
    row_elementwise: f64,
    /// Numbers of the elementwise run, and of the merging run.
    elementwise: f64,
    merged: f64,
    /// Bytes of one of the numbers that are calculated.
    number_bytes: f64,
    on_host: bool,
    /// Layers of a pass.
    layers: f64,
}

impl Sizes {
    fn of(model: &dyn Model) -> Result<Self> {
        let config = model.config();
        let (query, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let parameters = 2 * (query + kv) * config.hidden + 3 * config.hidden * config.mlp_width();
        let row_elementwise = 10 * config.hidden + 2 * (query + kv) + 3 * config.mlp_width();
        let (elementwise, merged) = elementwise_numbers(model);
        Ok(Self {
            row_flops: 2.0 * parameters as f64,
            pair_flops: 4.0 * query as f64,
            row_elementwise: row_elementwise as f64,
            elementwise,
            merged,
            number_bytes: model.embed(&[0])?.hidden.dtype().size_in_bytes() as f64,
            on_host: model.device().is_cpu(),
            layers: layers(model) as f64,
        })
    }

    fn rates(&self, seconds: &Seconds) -> Rates {
        let of = |what: What| seconds.get(&what).map_or(f64::NAN, |rounds| typical(rounds));
        let elementwise_bytes_per_s = self.number_bytes * self.elementwise / of(What::Elementwise);
        let attention = |what: What, pairs: f64| self.pair_flops * pairs / of(what);
        let by_keys = seconds.keys().filter_map(|&what| match what {
            What::Runs { rows, run } => Some((in_run(run), attention(what, rows as f64 * in_run(run)))),
            What::Attention { queries, keys } if what != What::PROBE && queries > 1 => {
                Some((before(queries, keys), attention(what, queries as f64 * before(queries, keys))))
            }
            _ => None,
        });
        let mut by_keys: Vec<(f64, f64)> = by_keys.collect();
        by_keys.sort_unstable_by(|a, b| f64::total_cmp(&a.0, &b.0));
        let attention_by_keys = Curve(by_keys);
        let gemm = |rows: usize| {
            let (all_s, count, keys) = (of(What::Pass(rows)) / self.layers, rows as f64, in_run(rows.min(RUN_ROWS)));
            let elementwise_s = count * self.number_bytes * self.row_elementwise / elementwise_bytes_per_s;
            let attention_s = self.pair_flops * count * keys / attention_by_keys.at(keys).unwrap_or(f64::INFINITY);
            (count, count * self.row_flops / (all_s - elementwise_s - attention_s).max(LEAST_PRODUCTS * all_s))
        };
        let passes = seconds.keys().filter_map(|what| if let What::Pass(rows) = what { Some(*rows) } else { None });
        let gemm_by_rows = Curve(passes.map(gemm).collect());
        let probe_pairs = match What::PROBE {
            What::Attention { queries, keys } => queries as f64 * before(queries, keys),
            _ => f64::NAN,
        };
        Rates {
            gemm_by_rows,
            attention_by_keys,
            probe_flops_per_s: attention(What::PROBE, probe_pairs),
            memory_bytes_per_s: memory_bytes(self.on_host) / of(What::Memory),
            elementwise_bytes_per_s,
            merge_bytes_per_s: self.number_bytes * self.merged / of(What::Merge),
            // Least time of a layer's attention.
            layer_s: of(What::Attention { queries: 1, keys: 1 }),
            request_s: of(What::Request),
        }
    }

    /// The latency of a group of messages, and the rate by the bytes that a rank receives in one.
    fn link(&self, world: usize, seconds: &Seconds) -> (f64, Curve) {
        let mut gathers = seconds.iter().filter_map(|(what, seconds)| match what {
            What::Gather(values) => Some((4 * values * (world - 1), typical(seconds))),
            _ => None,
        });
        let latency_s = gathers.next().map_or(0.0, |(_, seconds)| seconds);
        // A prediction adds the latency again.
        let rate =
            |(bytes, seconds): (usize, f64)| (bytes as f64, bytes as f64 / (seconds - latency_s).max(0.1 * seconds));
        (latency_s, if world > 1 { Curve(gathers.map(rate).collect()) } else { Curve::default() })
    }
}

fn rounds(seconds: &Seconds) -> usize {
    seconds.values().map(Vec::len).min().unwrap_or(0)
}

/// Typical time of a run: the slowest rank's mean over its rounds without the quickest and the
/// slowest.
fn typical(rounds: &[Vec<f64>]) -> f64 {
    let ranks = rounds.iter().map(Vec::len).min().unwrap_or(0);
    let of_rank = |rank: usize| middle_mean(rounds.iter().map(|ranks| ranks[rank]).collect());
    (0..ranks).map(of_rank).fold(f64::NAN, f64::max)
}

/// The mean without the tenth at either end, and at least one, if there are three.
fn middle_mean(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let out = ((TRIMMED * values.len() as f64).ceil() as usize).min(values.len().saturating_sub(1) / 2);
    let middle = &values[out..values.len() - out];
    middle.iter().sum::<f64>() / middle.len() as f64
}

/// Possible errors of rates. The pace of all computation changes from block to block of rounds, and
/// a later request meets any of them: its spread is half of an interval that holds 95 % of the
/// blocks. The further noise of each kind averages out within a request: its spread is half of a 95
/// % interval of its mean. A link has its own pace.
fn spread(seconds: &Seconds) -> Spread {
    let rounds = rounds(seconds);
    let series = |kinds: &dyn Fn(&What) -> bool| -> Vec<f64> {
        let log = |rounds: &Vec<Vec<f64>>| {
            let means: Vec<f64> = rounds.iter().map(|ranks| ranks.iter().sum::<f64>() / ranks.len() as f64).collect();
            let middle = median(&means);
            means.into_iter().map(move |seconds| (seconds / middle).ln()).collect::<Vec<f64>>()
        };
        let chosen: Vec<Vec<f64>> =
            seconds.iter().filter(|(what, _)| kinds(what)).map(|(_, rounds)| log(rounds)).collect();
        let at = |round: usize| chosen.iter().map(|series| series[round]).sum::<f64>() / chosen.len().max(1) as f64;
        (0..rounds).map(at).collect()
    };
    let pace = series(&|what| matches!(what, What::Pass(_) | What::Runs { .. } | What::Elementwise));
    let width = |half: f64| half.clamp(LEAST_SPREAD, 0.9);
    let of_blocks = |series: &[f64]| width(WIDTH * deviation(&series.chunks(BLOCK).map(median).collect::<Vec<_>>()));
    let beside = |kinds: &dyn Fn(&What) -> bool| {
        let own: Vec<f64> = series(kinds).iter().zip(&pace).map(|(own, pace)| own - pace).collect();
        width(WIDTH * deviation(&own) / (rounds as f64).sqrt())
    };
    Spread {
        pace: of_blocks(&pace),
        gemm: beside(&|what| matches!(what, What::Pass(rows) if *rows >= RUN_ROWS)),
        attention: beside(&|what| matches!(what, What::Runs { .. })),
        memory: beside(&|what| {
            *what == What::PROBE || matches!(what, What::Memory | What::Elementwise | What::Pass(1))
        }),
        link: of_blocks(&series(&|what| matches!(what, What::Gather(_)))),
        store: LEAST_SPREAD,
        left_out: LEFT_OUT,
    }
}

fn wider(a: Spread, b: Spread) -> Spread {
    Spread {
        pace: a.pace.max(b.pace),
        gemm: a.gemm.max(b.gemm),
        attention: a.attention.max(b.attention),
        memory: a.memory.max(b.memory),
        ..a
    }
}

/// The standard deviation of a sample.
fn deviation(series: &[f64]) -> f64 {
    let count = series.len() as f64;
    let mean = series.iter().sum::<f64>() / count.max(1.0);
    (series.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: What = What::Pass(1024);
    const RUNS: What = What::Runs { rows: 2048, run: 512 };

    /// Nine rounds of two ranks, with a pace of the machine and noise of this kind.
    fn of(what: What, base: f64, pace: [f64; 3], noise: [f64; 3]) -> (What, Vec<Vec<f64>>) {
        let round = |index: usize| vec![base * pace[index / 3] * noise[index % 3]; 2];
        (what, (0..9).map(round).collect())
    }

    #[test]
    fn a_machine_that_slows_down_evenly_has_a_pace_and_nothing_else() {
        let (slow, even) = ([1.0, 1.15, 0.85], [1.0; 3]);
        let others = [of(What::Memory, 1.0, slow, even), of(What::Elementwise, 1.0, slow, even)];
        let seconds = Seconds::from([of(PASS, 3.0, slow, even), of(RUNS, 2.0, slow, even)]);
        let found = spread(&seconds.into_iter().chain(others.clone()).collect());
        assert!(found.pace > 0.25, "{found:?}");
        assert_eq!((found.gemm, found.attention), (LEAST_SPREAD, LEAST_SPREAD), "{found:?}");
        let noisy = Seconds::from([of(PASS, 3.0, even, even), of(RUNS, 2.0, even, [1.0, 1.4, 0.7])]);
        let found = spread(&noisy.into_iter().chain(others).collect());
        assert!(found.attention > 0.1, "{found:?}");
    }

    #[test]
    fn what_comes_and_goes_within_a_block_is_no_pace() {
        let (even, noise) = ([1.0; 3], [1.0, 1.3, 0.8]);
        let found = spread(&Seconds::from([of(PASS, 3.0, even, noise), of(RUNS, 2.0, even, noise)]));
        assert_eq!(found.pace, LEAST_SPREAD);
    }

    #[test]
    fn the_slowest_rank_counts_and_one_bad_round_does_not() {
        let mut rounds = vec![vec![1.0, 2.0]; 21];
        rounds[18] = vec![90.0, 90.0];
        for count in [5, 21] {
            assert!((typical(&rounds[21 - count..]) - 2.0).abs() < 1e-12, "{count} rounds");
        }
    }
}
