//! Derives the order of chunks and a score from readings: pure functions. Rank 0 follows the
//! chains; every rank sums up its own readings.
//!
//! A[i,t] is the attention that row i pays row t in a free probe, the mean over layers and heads,
//! and 0 if i was not probed. It is in f32; sums are in f64, in the order of rows, so that every
//! world gets the same result.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tributary_methods::top_rows;
use tributary_protocol::{Plan, Sharpest, Trace};

use super::ordering::ranked_pairs;

/// The attention that one row pays another.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Read {
    /// The row that attends.
    pub row: u32,
    /// The row that it attends to.
    pub of: u32,
    /// The share of its attention.
    pub amount: f32,
}

/// The chains of one request: its rows, chunks and scores, and the parameters. Tiles of a picture
/// count as one chunk here: their places among each other are given.
pub struct Chains {
    trace: Trace,
    budget: usize,
    /// Number of the first context row.
    first_row: u32,
    /// The rows of tokens, ascending.
    rows: Vec<u32>,
    /// The chunk of each context row.
    chunk_of: Vec<u32>,
    /// The plan's chunks of each.
    groups: Vec<Range<usize>>,
    /// s: one number a context row.
    scores: Vec<f32>,
}

impl Chains {
    /// The chains of a plan whose rows have these scores.
    pub fn new(plan: &Plan, trace: Trace, scores: Vec<f32>) -> Self {
        assert_eq!(scores.len(), plan.context_rows(), "scores of the context's rows");
        let chunks = plan.chunks.iter().zip(plan.group_of_chunks());
        Self {
            trace,
            budget: plan.budget,
            first_row: plan.prefix_tokens() as u32,
            rows: plan.token_rows(),
            chunk_of: chunks.flat_map(|(of, group)| std::iter::repeat_n(group as u32, of.rows())).collect(),
            groups: plan.groups(),
            scores,
        }
    }

    /// The chunk of a row.
    pub fn chunk(&self, row: u32) -> u32 {
        self.chunk_of[(row - self.first_row) as usize]
    }

    /// The rows of the first free probe: the best by score, those of the first chunk included;
    /// ascending.
    pub fn first(&self) -> Vec<u32> {
        top_rows(&self.rows, |row| self.scores[self.place(row)], Trace::rows_of_round(self.budget))
    }

    /// Whether a reading may turn out sharp: of a token of another chunk, and not below α before
    /// the reverse is subtracted.
    pub fn may_be_sharp(&self, read: &Read) -> bool {
        read.amount >= self.trace.alpha
            && self.chunk(read.row) != self.chunk(read.of)
            && self.rows.binary_search(&read.of).is_ok()
    }

    /// X[i,t] = A[i,t] − A[t,i] of rows of different chunks, where that is α or more; in the order
    /// of rows. `reverse` has A[t,i] by (t, i) for every t that was probed.
    pub fn sharp(&self, reads: &[Read], reverse: &HashMap<(u32, u32), f32>) -> Vec<Read> {
        let net = |read: &Read| Read {
            amount: read.amount - reverse.get(&(read.of, read.row)).copied().unwrap_or(0.0),
            ..*read
        };
        let mut sharp: Vec<Read> = reads.iter().map(net).filter(|read| self.may_be_sharp(read)).collect();
        sharp.sort_by_key(|read| (read.row, read.of));
        sharp
    }

    /// The largest sharp readings of rows that the query itself finds relevant: s_i ≥ g · max s.
    pub fn sharpest(&self, sharp: &[Read]) -> Sharpest {
        let least = self.least(&self.scores);
        let of_relevant = || sharp.iter().filter(|read| self.scores[self.place(read.row)] >= least);
        let after = of_relevant().filter(|read| self.chunk(read.of) > self.chunk(read.row));
        let largest = |readings: &mut dyn Iterator<Item = &Read>| readings.map(|read| read.amount).reduce(f32::max);
        Sharpest { any: largest(&mut of_relevant()), behind: largest(&mut after.into_iter()) }
    }

    /// ω, one number a context row: at first s; then, once for each chunk, from the one before, ω_t
    /// = max(s_t, γ · max{ω_i : X[i,t] > 0, ω_i ≥ g · max ω}).
    pub fn relevance(&self, sharp: &[Read]) -> Vec<f32> {
        let mut relevance = self.scores.clone();
        for _ in 0..self.groups.len() {
            let mut next = self.scores.clone();
            let least = self.least(&relevance);
            for read in sharp {
                let (from, to) = (relevance[self.place(read.row)], self.place(read.of));
                if from >= least {
                    next[to] = next[to].max(self.trace.decay * from);
                }
            }
            if next == relevance {
                break;
            }
            relevance = next;
        }
        relevance
    }

    /// The rows to probe next, ascending: the most relevant unprobed rows whose relevance comes
    /// from another row and is g · max ω or more, ties the lower row.
    /// At most as many as in the first round, and half of the budget in all rounds together.
    pub fn frontier(&self, relevance: &[f32], probed: &[u32]) -> Vec<u32> {
        let least = self.least(relevance);
        let is_next = |&row: &u32| {
            let place = self.place(row);
            relevance[place] > self.scores[place] && relevance[place] >= least && !probed.contains(&row)
        };
        let rows: Vec<u32> = self.rows.iter().copied().filter(is_next).collect();
        let left = Trace::rows_of_all(self.budget).saturating_sub(probed.len());
        let most = Trace::rows_of_round(self.budget).min(left);
        top_rows(&rows, |row| relevance[self.place(row)], most)
    }

    /// The order of chunks in which needed ones precede those that need them: N = E − Eᵀ, E[c,c'] =
    /// Σ ω_i · X[i,t] over rows i of c with ω_i ≥ g · max ω and t of c'; then ranked pairs.
    /// The request's own order if nothing is sharp, or if it is to be kept.
    pub fn order(&self, sharp: &[Read], relevance: &[f32]) -> Vec<u32> {
        if self.trace.keep_order {
            return self.chunks_of(0..self.groups.len() as u32);
        }
        let least = self.least(relevance);
        let mut needs: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for read in sharp {
            let from = relevance[self.place(read.row)];
            if from >= least {
                let (chunk, needed) = (self.chunk(read.row), self.chunk(read.of));
                let amount = f64::from(from) * f64::from(read.amount);
                *needs.entry((chunk, needed)).or_default() += amount;
                *needs.entry((needed, chunk)).or_default() -= amount;
            }
        }
        let pairs: Vec<(u32, u32, f64)> =
            needs.into_iter().map(|((chunk, needed), net)| (chunk, needed, net)).collect();
        self.chunks_of(ranked_pairs(self.groups.len(), &pairs))
    }

    /// The plan's chunks of these, one after the other.
    fn chunks_of(&self, order: impl IntoIterator<Item = u32>) -> Vec<u32> {
        order.into_iter().flat_map(|group| self.groups[group as usize].clone()).map(|chunk| chunk as u32).collect()
    }

    /// Σ_i ω_i · A[i,t] for the rows `of`, over probed rows i whose chunk does not precede t's with
    /// chunks in `order`. `probed` has each row with its relevance and its attention to them.
    pub fn received(&self, probed: &[(u32, f32, &[f32])], of: &[u32], order: &[u32]) -> Vec<f32> {
        let mut places = vec![0; self.groups.len()];
        for (place, &chunk) in (0..).zip(order) {
            places[self.groups.partition_point(|group| group.end <= chunk as usize)] = place;
        }
        let place_of = |row: u32| -> u32 { places[self.chunk(row) as usize] };
        let columns: Vec<u32> = of.iter().map(|&row| place_of(row)).collect();
        let mut sums = vec![0f64; of.len()];
        let mut ordered: Vec<&(u32, f32, &[f32])> = probed.iter().collect();
        ordered.sort_by_key(|(row, ..)| *row);
        for &&(row, relevance, amounts) in &ordered {
            assert_eq!(amounts.len(), of.len(), "readings of row {row}");
            let own = place_of(row);
            for ((sum, &amount), &place) in sums.iter_mut().zip(amounts).zip(&columns) {
                if place <= own {
                    *sum += f64::from(relevance) * f64::from(amount);
                }
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    /// The numbers of `rows`, out of one a context row.
    pub fn of_rows(&self, numbers: &[f32], rows: &[u32]) -> Vec<f32> {
        rows.iter().map(|&row| numbers[self.place(row)]).collect()
    }

    /// g · max ω.
    fn least(&self, relevance: &[f32]) -> f32 {
        self.trace.share * relevance.iter().copied().fold(0.0, f32::max)
    }

    fn place(&self, row: u32) -> usize {
        (row - self.first_row) as usize
    }
}
