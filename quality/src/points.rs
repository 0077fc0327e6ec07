//! Results of a method on a task, and on all: pure functions of answers.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::median;

use crate::answers::{Answer, Answers, Reply, score};
use crate::decoding::Decoding;
use crate::design::Arm;
use crate::eviction::EvictionPoint;
use crate::score::Metric;
use crate::statistics::{self, Mean, Share, difference, holm, mcnemar, mean, share};
use crate::suite::Cell;

/// Name for all tasks.
pub const ALL: &str = "all";

/// One method with one ratio on one task, at a length and a depth where there are such, or on all
/// of them.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Point {
    /// The method and its options, as asked for.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// Family of the method: `exact`, `blocks`, `reuse`, `position`, `query`, `drift`, `auxiliary`
    /// or `control`.
    pub family: &'static str,
    /// Whether it equals full prefill but for rounding.
    pub exact: bool,
    /// The task, or `all`.
    pub task: String,
    /// Maximum tokens of prompt and answer; absent for all lengths, and where no length is set.
    pub length: Option<usize>,
    /// Place of the needed fact, in per cent of the context; absent for all depths, and where no
    /// depth is set.
    pub depth: Option<usize>,
    /// Maximum tokens of a chunk, or of a document of `hops`; absent for all sizes, and where there
    /// is one size only.
    pub chunk_tokens: Option<usize>,
    /// Requests.
    pub requests: usize,
    /// Those that failed: their score is 0.
    pub failures: usize,
    /// Mean score of all requests, from 0 to 1, and its 95 % interval: Wilson's where all scores
    /// are 0 or 1, else the bootstrap's.
    pub score: Mean,
    /// The mean score over full prefill's; absent where that is 0.
    pub share_of_full: Option<f64>,
    /// Mean F1 of the words of the answer and of the reference that suits it best, whatever the
    /// task's metric is; a failure has 0.
    pub f1: f64,
    /// Share of the requests whose answer contains a reference, in any case.
    pub contained: f64,
    /// Share of the answers whose first token is full prefill's.
    pub first_token_agrees: f64,
    /// Median time to first token of the answers.
    pub median_ttft_ms: f64,
    /// Share of the context rows that were selected and recomputed; 1 for methods that do not work
    /// in chunks and compute all rows.
    pub selected_share: f64,
    /// Share of the context rows that were computed once before that, to measure their attention or
    /// their drift.
    pub measured_share: f64,
    /// Share of the answers whose documents had another order than the request's.
    pub moved_share: f64,
    /// Median of the payload bytes of tensors received until the first token, all ranks together.
    pub median_received_bytes: u64,
    /// Median time from a request's acceptance to its last report; absent in answers of before it
    /// was kept.
    pub median_total_ms: Option<f64>,
    /// Median time of a token after the first, without evictions; absent where no answer has two.
    pub median_token_ms: Option<f64>,
    /// Rows of the prompt whose keys and values decoding keeps, mean; absent in answers of before
    /// it was kept.
    pub kept_rows: Option<f64>,
    /// Eviction after the first token, and its cost; absent where there is none.
    pub eviction: Option<EvictionPoint>,
    /// The same requests answered by full prefill; absent for that itself.
    pub against_full: Option<Paired>,
    /// Agreement of its first tokens with full prefill's; absent for full prefill itself, and where
    /// no request was answered by both.
    pub agreement: Option<Agreement>,
}

impl Point {
    /// Cell of the point.
    pub fn cell(&self) -> Cell {
        let Self { task, length, depth, chunk_tokens, .. } = self;
        Cell { task: task.clone(), length: *length, depth: *depth, chunk_tokens: *chunk_tokens }
    }
}

/// Comparison of a method's first tokens with full prefill's on the requests that both have
/// answered.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Agreement {
    /// Those requests.
    pub requests: usize,
    /// Share of them whose first token is full prefill's, with Wilson's interval.
    pub first_token: Share,
    /// Mean of KL(full prefill ‖ this method) of the first token's distribution over the whole
    /// vocabulary, in nats, and its interval; absent where none was measured.
    pub kl_nats: Option<Mean>,
}

/// Two methods on the same requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Paired {
    /// Mean of this method's score less full prefill's, and its interval.
    pub difference: Mean,
    /// Requests that this method alone answers right; where scores lie between 0 and 1, those that
    /// it answers better.
    pub right_alone: usize,
    /// Requests that full prefill alone answers right, or better.
    pub full_alone: usize,
    /// McNemar's exact p, two-sided: the probability of a difference at least as large if both are
    /// equally good. Where scores lie between 0 and 1 it is the sign test.
    pub mcnemar_p: f64,
    /// The same, adjusted after Holm for all methods that are compared with full prefill on these
    /// requests.
    pub holm_p: f64,
}

/// Cells that are looked at together, under the name of one.
struct Group {
    name: Cell,
    /// Numbers of its cells.
    members: Vec<usize>,
}

/// Every cell alone; where there are several lengths, all of each; where there are several sizes of
/// chunks, all of each, at each length too; and all together.
fn groups(cells: &[(Cell, usize)]) -> Vec<Group> {
    let alone = cells.iter().enumerate().map(|(index, (cell, _))| Group { name: cell.clone(), members: vec![index] });
    let mut groups: Vec<Group> = alone.collect();
    let several = |of: fn(&Cell) -> Option<usize>| -> Vec<Option<usize>> {
        let mut found: Vec<Option<usize>> = cells.iter().map(|(cell, _)| of(cell)).collect();
        found.sort_unstable();
        found.dedup();
        if found.len() > 1 { found } else { Vec::new() }
    };
    let (lengths, sizes) = (several(|cell| cell.length), several(|cell| cell.chunk_tokens));
    let mut add = |name: Cell, is_alone_too: bool| {
        let agrees = |wanted: Option<usize>, own: Option<usize>| wanted.is_none() || wanted == own;
        let is_member = |cell: &Cell| agrees(name.length, cell.length) && agrees(name.chunk_tokens, cell.chunk_tokens);
        let members: Vec<usize> = (0..cells.len()).filter(|&index| is_member(&cells[index].0)).collect();
        if members.len() > 1 || is_alone_too {
            groups.push(Group { name, members });
        }
    };
    // Cells without a length are a part of all, and no group of their own.
    let lengths: Vec<Option<usize>> = lengths.into_iter().filter(Option::is_some).collect();
    lengths.iter().for_each(|&length| add(Cell { length, ..Cell::of(ALL) }, false));
    for &chunk_tokens in &sizes {
        lengths.iter().for_each(|&length| add(Cell { length, chunk_tokens, ..Cell::of(ALL) }, false));
        add(Cell { chunk_tokens, ..Cell::of(ALL) }, true);
    }
    add(Cell::of(ALL), true);
    groups
}

/// All points: for each method its cells in their order, then all of a length, then all of them.
/// The first method is the reference.
pub fn points(cells: &[(Cell, usize)], seed: u64, arms: &[Arm], answers: &Answers) -> Vec<Point> {
    let reference = &arms[0];
    let of = |arm: &Arm, members: &[usize]| -> Vec<Option<Answer>> {
        let own = members.iter().map(|&index| &cells[index]);
        own.flat_map(|(cell, count)| (0..*count).map(|number| answers.get(cell, number, arm).cloned())).collect()
    };
    let mut found = Vec::new();
    for arm in arms {
        for Group { name, members } in groups(cells) {
            let (own, full) = (of(arm, &members), of(reference, &members));
            let mut point = point(arm, &name, &own, (arm != reference).then_some(&full), seed);
            let without = arms.iter().find(|other| other.method == arm.behind && other.ratio == arm.ratio);
            let without = without.map(|other| of(other, &members));
            point.eviction = EvictionPoint::new(arm, &own, without.as_deref(), seed);
            found.push(point);
        }
    }
    adjust(&mut found);
    found
}

/// Adjusts the p-values of methods that are compared on the same requests.
fn adjust(points: &mut [Point]) {
    let mut cells: Vec<Cell> = Vec::new();
    for point in points.iter() {
        if !cells.contains(&point.cell()) {
            cells.push(point.cell());
        }
    }
    for cell in cells {
        let pairs = points.iter_mut().filter(|point| point.cell() == cell);
        let mut pairs: Vec<&mut Paired> = pairs.filter_map(|point| point.against_full.as_mut()).collect();
        let adjusted = holm(&pairs.iter().map(|pair| pair.mcnemar_p).collect::<Vec<_>>());
        for (pair, p) in pairs.iter_mut().zip(adjusted) {
            pair.holm_p = p;
        }
    }
}

fn point(arm: &Arm, cell: &Cell, own: &[Option<Answer>], full: Option<&Vec<Option<Answer>>>, seed: u64) -> Point {
    let scores: Vec<f64> = own.iter().map(|answer| score(answer.as_ref())).collect();
    let replies: Vec<&Reply> = own.iter().flatten().filter_map(Answer::reply).collect();
    let share = |of: &dyn Fn(&Reply) -> f64| {
        let sum: f64 = replies.iter().map(|reply| of(reply)).sum();
        sum / replies.len().max(1) as f64
    };
    let rows = |of: fn(&Reply) -> usize| share(&|reply| of(reply) as f64 / reply.context_rows.max(1) as f64);
    let middle = |of: fn(&Reply) -> f64| median(&replies.iter().map(|reply| of(reply)).collect::<Vec<_>>());
    let decodings: Vec<&Decoding> = replies.iter().filter_map(|reply| reply.decoding.as_ref()).collect();
    let after = |of: &dyn Fn(&Decoding) -> Option<f64>| -> Vec<f64> {
        decodings.iter().filter_map(|decoding| of(decoding)).collect()
    };
    let median_of = |values: Vec<f64>| (!values.is_empty()).then(|| median(&values));
    let kept = after(&|decoding| Some(decoding.kept_rows));
    Point {
        method: arm.method.clone(),
        ratio: arm.ratio,
        family: arm.family().name(),
        exact: arm.is_exact(),
        task: cell.task.clone(),
        length: cell.length,
        depth: cell.depth,
        chunk_tokens: cell.chunk_tokens,
        requests: own.len(),
        failures: own.len() - replies.len(),
        score: statistics::score(&scores, seed).expect("there is a request"),
        share_of_full: share_of_full(&scores, full),
        f1: by(Metric::QaF1, own),
        contained: by(Metric::MatchPart, own),
        first_token_agrees: full.map_or(1.0, |full| first_tokens(own, full).map_or(0.0, |share| share.share)),
        median_ttft_ms: middle(|reply| reply.ttft_ms),
        selected_share: match arm.run_config.settings.method.selects() {
            true => rows(|reply| reply.selected_rows),
            false => 1.0,
        },
        measured_share: rows(|reply| reply.measured_rows),
        moved_share: share(&|reply| f64::from(u8::from(reply.moved))),
        median_received_bytes: middle(|reply| reply.received_bytes as f64) as u64,
        median_total_ms: median_of(after(&|decoding| Some(decoding.total_ms))),
        median_token_ms: median_of(after(&|decoding| decoding.token_ms)),
        kept_rows: (!kept.is_empty()).then(|| kept.iter().sum::<f64>() / kept.len() as f64),
        eviction: None,
        against_full: full.map(|full| paired(&scores, full, seed)),
        agreement: full.and_then(|full| agreement(own, full, seed)),
    }
}

/// Mean score of answers by a metric other than their task's.
fn by(metric: Metric, own: &[Option<Answer>]) -> f64 {
    let of = |answer: &Answer| Some(metric.score(&answer.reply()?.answer, &answer.references, &[]));
    own.iter().flatten().filter_map(of).sum::<f64>() / own.len().max(1) as f64
}

/// The sum of scores over full prefill's on the same requests; 1 for that itself, nothing where it
/// has none.
fn share_of_full(scores: &[f64], full: Option<&Vec<Option<Answer>>>) -> Option<f64> {
    let Some(full) = full else { return Some(1.0) };
    let theirs: f64 = full.iter().map(|answer| score(answer.as_ref())).sum();
    (theirs > 0.0).then(|| scores.iter().sum::<f64>() / theirs)
}

/// The answers of both to the requests that both have answered.
fn both<'a>(own: &'a [Option<Answer>], full: &'a [Option<Answer>]) -> impl Iterator<Item = (&'a Reply, &'a Reply)> {
    let reply = |answer: &'a Option<Answer>| answer.as_ref().and_then(Answer::reply);
    own.iter().zip(full).filter_map(move |(own, full)| Some((reply(own)?, reply(full)?)))
}

/// Share of the requests that both have answered where their first tokens are the same.
fn first_tokens(own: &[Option<Answer>], full: &[Option<Answer>]) -> Option<Share> {
    let same: Vec<bool> = both(own, full).map(|(own, full)| own.first_token == full.first_token).collect();
    share(same.iter().filter(|same| **same).count(), same.len())
}

fn agreement(own: &[Option<Answer>], full: &[Option<Answer>], seed: u64) -> Option<Agreement> {
    let nats: Vec<f64> = both(own, full).filter_map(|(own, _)| own.kl_nats).collect();
    Some(Agreement {
        requests: both(own, full).count(),
        first_token: first_tokens(own, full)?,
        kl_nats: mean(&nats, seed),
    })
}

fn paired(scores: &[f64], full: &[Option<Answer>], seed: u64) -> Paired {
    let theirs: Vec<f64> = full.iter().map(|answer| score(answer.as_ref())).collect();
    let alone = |one: &[f64], other: &[f64]| one.iter().zip(other).filter(|(one, other)| one > other).count();
    let (right_alone, full_alone) = (alone(scores, &theirs), alone(&theirs, scores));
    let p = mcnemar(right_alone, full_alone);
    Paired {
        difference: difference(scores, &theirs, seed).expect("there is a request"),
        right_alone,
        full_alone,
        mcnemar_p: p,
        holm_p: p,
    }
}

/// A p-value for a reader.
pub fn p_value(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

/// Explanation of intervals of scores, for a reader.
pub const INTERVALS: &str = "Intervals of 95 %: where all scores of a cell are 0 or 1, Wilson's for the score and Newcombe's (pairs) for the \
     difference; elsewhere 95 % of the means of requests drawn anew.";

/// Explanation of p-values, for a reader.
pub const P_VALUES: &str = "p: McNemar's exact test on the requests that one of the two alone answers right, or better. With many methods some have a small \
     p by chance: p (Holm) is adjusted for all rows of the table, and below 0.05 it is a finding.";

/// Nats for a reader: three digits after the point, or two significant ones for small values.
pub fn nats(value: f64) -> String {
    if value == 0.0 || value >= 0.01 { format!("{value:.3}") } else { format!("{value:.1e}") }
}

#[cfg(test)]
mod tests;
