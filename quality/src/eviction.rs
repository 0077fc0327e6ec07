//! Results of evictions on the requests of a point.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::median;
use tributary_coordinator::report::EvictionFormula;

use crate::answers::{Answer, Reply, score};
use crate::decoding::Evicted;
use crate::design::Arm;
use crate::statistics::{Mean, difference};

/// Result of an eviction on the requests of a point.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct EvictionPoint {
    /// The method of eviction.
    pub evict: String,
    /// Size that each KV head of a layer keeps: rows, or a percentage of the prompt's.
    pub keep: String,
    /// The method without it: its prefill is the same, and decoding keeps everything.
    pub behind: String,
    /// Mean of this point's scores less those of the method without eviction on the same requests,
    /// and its interval; absent where that was not asked.
    pub difference: Option<Mean>,
    /// Rows of the prompt before, mean.
    pub rows: f64,
    /// Median bytes of keys and values of the prompt before.
    pub median_bytes_before: u64,
    /// Median bytes of them that are left.
    pub median_bytes_kept: u64,
    /// Median time between the first token and the second that it takes.
    pub median_ms: f64,
    /// That time over the median time to first token.
    pub share_of_ttft: f64,
    /// Median bytes that moved between ranks for it.
    pub median_received_bytes: u64,
    /// The share of the rows that answers attend to most that is kept, mean over requests, layers
    /// and KV heads; absent where the `ideal` eviction of as many rows was not asked.
    pub recall: Option<f64>,
    /// The planner's formulas for the request with the longest prompt.
    pub formula: EvictionFormula,
}

impl EvictionPoint {
    /// Of a method that evicts, from its answers and those of the method without it; nothing where
    /// none evicted anything.
    pub fn new(arm: &Arm, own: &[Option<Answer>], behind: Option<&[Option<Answer>]>, seed: u64) -> Option<Self> {
        let wish = arm.run_config.settings.eviction;
        let replies: Vec<&Reply> = own.iter().flatten().filter_map(Answer::reply).collect();
        let evicted: Vec<&Evicted> =
            replies.iter().filter_map(|reply| reply.decoding.as_ref()?.evicted.as_ref()).collect();
        let longest = evicted.iter().max_by(|one, other| one.rows.total_cmp(&other.rows))?;
        let middle = |of: fn(&Evicted) -> f64| median(&evicted.iter().map(|part| of(part)).collect::<Vec<_>>());
        let median_ms = middle(|part| part.ms);
        let scores =
            |answers: &[Option<Answer>]| answers.iter().map(|answer| score(answer.as_ref())).collect::<Vec<f64>>();
        Some(Self {
            evict: wish.method?.descriptor().name.to_owned(),
            keep: wish.keep?.to_string(),
            behind: arm.behind.clone(),
            difference: behind.and_then(|behind| difference(&scores(own), &scores(behind), seed)),
            rows: evicted.iter().map(|part| part.rows).sum::<f64>() / evicted.len() as f64,
            median_bytes_before: middle(|part| part.bytes_before as f64) as u64,
            median_bytes_kept: middle(|part| part.bytes_kept as f64) as u64,
            median_ms,
            share_of_ttft: median_ms / median(&replies.iter().map(|reply| reply.ttft_ms).collect::<Vec<_>>()),
            median_received_bytes: middle(|part| part.received_bytes as f64) as u64,
            recall: mean(evicted.iter().filter_map(|part| part.recall)),
            formula: longest.formula,
        })
    }
}

/// The mean of some numbers; nothing where there is none.
fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = numbers.fold((0, 0.0), |(count, sum), number| (count + 1, sum + number));
    (count > 0).then(|| sum / f64::from(count))
}
