//! The critical path: the parts of the time to first token.
//!
//! It is the coordinator's tokenisation and the wait for the request's turn, then the timeline of
//! the rank that drew the first token. If rank 0's last phase ends later than that, the token was
//! in transit to it: that counts as first token too. The rest is unaccounted: gaps between phases,
//! the plan's way to rank 0 and the token's way from it. Ranks' timelines begin when the plan
//! reaches them; the small differences between those moments are part of the unaccounted time.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_protocol::{Phase, RankReport, Span};

use super::rows::ms;
use crate::dispatch::Answer;

/// One phase of a request. Compute time excludes waiting.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PhaseRow {
    /// The phase.
    pub phase: &'static str,
    /// Its part of the time to first token.
    pub critical_path_ms: f64,
    /// The rank that computed longest; absent for the coordinator's phase.
    pub slowest_rank: Option<usize>,
    /// That rank's compute time.
    pub slowest_ms: f64,
    /// Mean compute time over the ranks.
    pub mean_ms: f64,
    /// Slowest over mean; 1 is even.
    pub imbalance: f64,
    /// The part of the critical path spent waiting for other ranks.
    pub waited_ms: f64,
    /// Share of the time to first token, from 0 to 1.
    pub share: f64,
}

pub(super) struct CriticalPath {
    pub(super) phases: Vec<PhaseRow>,
    pub(super) unaccounted_ms: f64,
}

/// The phases of the request, in their order.
pub(super) fn critical_path(answer: &Answer) -> CriticalPath {
    let ttft_ms = ms(answer.ttft.as_secs_f64());
    let tokenize_ms = ms(answer.tokenize.as_secs_f64());
    let queued_ms = ms(answer.queued.as_secs_f64());
    let drew = answer.reports.iter().find(|report| report.drew_first_token);
    let drew = drew.or(answer.reports.first());
    let way_ms = drew.map_or(0.0, |drew| way_ms(drew, &answer.reports, ttft_ms - tokenize_ms - queued_ms));
    let mut phases = Vec::new();
    for phase in Phase::TO_FIRST_TOKEN {
        let (extra_ms, is_coordinators) = match phase {
            Phase::Tokenize => (tokenize_ms, true),
            Phase::Queue => (queued_ms, false),
            Phase::FirstToken => (way_ms, false),
            _ => (0.0, false),
        };
        let happened = answer.reports.iter().any(|report| spans(report, phase).next().is_some());
        if happened || is_coordinators || extra_ms > 0.0 {
            let own = drew.map_or((0.0, 0.0), |drew| (seconds(drew, phase), waited_s(drew, phase)));
            let critical_path_ms = extra_ms + ms(own.0);
            let row = row(phase, critical_path_ms, ms(own.1), &answer.reports);
            phases.push(PhaseRow { share: critical_path_ms / ttft_ms, ..row });
        }
    }
    let accounted_ms: f64 = phases.iter().map(|row| row.critical_path_ms).sum();
    CriticalPath { phases, unaccounted_ms: ttft_ms - accounted_ms }
}

/// Minimum share of the time to first token, and minimum time, of a straggler that gets a note.
const STRAGGLER_SHARE: f64 = 0.2;
const STRAGGLER_MS: f64 = 50.0;

/// Phases in which one rank computed more than three times as long as the others on average, and
/// long enough to matter. The first token has one rank's work only.
pub(super) fn stragglers(answer: &Answer) -> Vec<String> {
    let least_ms = (STRAGGLER_SHARE * ms(answer.ttft.as_secs_f64())).max(STRAGGLER_MS);
    let shared = Phase::TO_FIRST_TOKEN.into_iter().filter(|&phase| phase != Phase::FirstToken);
    let note = |phase: Phase| {
        let row = row(phase, 0.0, 0.0, &answer.reports);
        let (rank, others) = (row.slowest_rank?, answer.reports.len() as f64 - 1.0);
        let others_ms = (row.mean_ms * (others + 1.0) - row.slowest_ms) / others.max(1.0);
        let excess_ms = row.slowest_ms - others_ms;
        let name = row.phase;
        (others > 0.0 && row.slowest_ms > 3.0 * others_ms && excess_ms > least_ms)
            .then(|| format!("straggler: rank {rank} in {name}, {excess_ms:.0} ms more than the others on average"))
    };
    shared.filter_map(note).collect()
}

/// Time of the first token from the rank that drew it to rank 0, limited by the clock.
fn way_ms(drew: &RankReport, reports: &[RankReport], on_ranks_ms: f64) -> f64 {
    let end_ms = |report: &RankReport| {
        let to_first_token = report.spans.iter().filter(|span| is_counted(span));
        ms(to_first_token.map(|span| span.start_s + span.seconds).fold(0.0, f64::max))
    };
    let drew_ms = end_ms(drew);
    let first_ms = reports.first().map_or(0.0, end_ms);
    (first_ms - drew_ms).min(on_ranks_ms - drew_ms).max(0.0)
}

fn row(phase: Phase, critical_path_ms: f64, waited_ms: f64, reports: &[RankReport]) -> PhaseRow {
    let computed_ms =
        reports.iter().map(|report| (report.rank, ms(seconds(report, phase) - waited_s(report, phase)).max(0.0)));
    let times: Vec<(usize, f64)> = computed_ms.collect();
    let total_ms: f64 = times.iter().map(|(_, time)| time).sum();
    let slowest = times.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
    let slowest = slowest.filter(|_| !matches!(phase, Phase::Tokenize | Phase::Queue));
    let (slowest_ms, mean_ms) = match slowest {
        Some((_, time)) => (time, total_ms / times.len() as f64),
        None => (critical_path_ms, critical_path_ms),
    };
    PhaseRow {
        phase: phase.name(),
        critical_path_ms,
        slowest_rank: slowest.map(|(rank, _)| rank),
        slowest_ms,
        mean_ms,
        imbalance: if mean_ms > 0.0 { slowest_ms / mean_ms } else { 1.0 },
        waited_ms,
        share: 0.0,
    }
}

fn is_counted(span: &Span) -> bool {
    Phase::TO_FIRST_TOKEN.contains(&span.phase)
}

fn spans(report: &RankReport, phase: Phase) -> impl Iterator<Item = &Span> {
    report.spans.iter().filter(move |span| span.phase == phase)
}

fn seconds(report: &RankReport, phase: Phase) -> f64 {
    spans(report, phase).fold(0.0, |sum, span| sum + span.seconds)
}

fn waited_s(report: &RankReport, phase: Phase) -> f64 {
    spans(report, phase).fold(0.0, |sum, span| sum + span.waited_s)
}
