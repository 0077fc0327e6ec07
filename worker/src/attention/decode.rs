//! The newest rows of sequences: in a step of decoding one of every sequence of this rank, in a
//! later turn of a conversation a run of one sequence. The rows share everything except attention,
//! which each run computes alone over the cache of its own sequence. Keys on other ranks need one
//! round of queries and one of partial results a layer, for all sequences together.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Partial, Positions, merge};
use tributary_model::{Attention, Progress, Qkv};

use super::parallel::weighed;
use super::rounds::{all_queries, bring_home, join, last_of, start_queries};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::sequence::Turned;

/// Rows: the newest ones of each sequence that this rank owns.
pub struct Decode<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Caches of which this rank has a part.
    pub caches: Vec<&'a mut Turned>,
    /// The runs of rows, in their order.
    pub runs: Vec<DecodeRun>,
    /// Positions of all rows.
    pub at: Positions,
    /// The sequences of the step that no rank holds alone, if there are any.
    pub shared: Option<SharedCaches<'a>>,
}

/// The newest rows of a sequence that this rank owns.
pub struct DecodeRun {
    /// Its cache, as a number in [`Decode::caches`].
    pub cache: usize,
    /// Their positions.
    pub at: Positions,
    /// Whether this rank holds all keys that it attends to.
    pub alone: bool,
}

/// The sequences of a step whose caches lie on several ranks.
pub struct SharedCaches<'a> {
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// Number of their newest rows that each rank owns.
    pub counts: Vec<usize>,
    /// For each of them, rank by rank: this rank's part, as a number in [`Decode::caches`], and the
    /// positions of its newest rows.
    pub parts: Vec<(usize, Positions)>,
}

impl Decode<'_> {
    /// Attention of a run's queries over the keys on its owner: all keys, or those that count once
    /// in the merge.
    fn at_home(&self, layer: usize, DecodeRun { cache, at, alone }: &DecodeRun, q: &Tensor) -> Result<Partial> {
        let (cache, at) = (&self.caches[*cache], last_of(at, q.dim(0)?));
        let mut context = if *alone { cache.own.keys(layer) } else { Vec::new() };
        // The growing block comes last: a device keeps the order of the blocks before it.
        let keys = [cache.rest.keys(layer), cache.generated.keys(layer)?].concat();
        let Some(ape) = cache.parallel else {
            context.extend(keys);
            return self.math.layer(layer).attend_rotated_in_slices(q, &at, &context);
        };
        let tempered = self.math.layers[layer].tempered(ape.temperature);
        let math = self.math.layer(layer).with(&tempered);
        let context = math.attend_rotated(q, &at, &context)?;
        Ok(merge(&weighed(context, ape)?, &self.math.layer(layer).attend_rotated_in_slices(q, &at, &keys)?)?)
    }

    /// Attention of the rows of shared sequences over every rank's own part, on their owner; `q`
    /// are this rank's queries.
    fn of_all_ranks(&mut self, layer: usize, q: &Tensor) -> Result<Option<Partial>> {
        let Some(SharedCaches { comm, counts, parts }) = &mut self.shared else { return Ok(None) };
        let queries = start_queries(*comm, q, counts, self.math.dtype)?;
        let all_q = all_queries(*comm, queries, q)?;
        let (mut found, mut from) = (Vec::with_capacity(parts.len()), 0);
        for (cache, at) in parts.iter() {
            let (cache, q) = (&self.caches[*cache], all_q.narrow(0, from, at.len())?);
            let of = &self.math.layers[layer];
            let tempered = cache.parallel.map(|ape| of.tempered(ape.temperature));
            let math = self.math.layer(layer).with(tempered.as_ref().unwrap_or(of));
            found.push(math.attend_rotated(&q, at, &cache.own.keys(layer))?);
            from += at.len();
        }
        assert_eq!(from, all_q.dim(0)?, "rows of shared sequences, and queries from all ranks");
        Ok(Some(bring_home(*comm, &Partial::below_each_other(&found)?, counts, self.math.dtype)?))
    }

    /// Adds keys and values of all rows, and returns the rotated queries of each run.
    fn take(&mut self, layer: usize, Qkv { q, k, v }: &Qkv) -> Result<Vec<Tensor>> {
        if self.runs.is_empty() {
            return Ok(Vec::new());
        }
        let asked = q.dim(0)?;
        let asking = last_of(&self.at, asked);
        let (q, k) = self.math.layer(layer).turned((q, &asking), (k, &self.at))?;
        let (mut queries, mut from) = (Vec::with_capacity(self.runs.len()), 0);
        for run in &self.runs {
            let count = run.at.len();
            let of = |x: &Tensor| x.narrow(0, from, count);
            self.caches[run.cache].generated.push(layer, &of(&k)?, &of(v)?)?;
            // In the last layer of a prompt, which has one run, only the last rows have a query.
            queries.push(if asked == self.at.len() { of(&q)? } else { q.clone() });
            from += count;
        }
        assert_eq!(from, self.at.len(), "rows of all runs");
        Ok(queries)
    }
}

impl Attention for Decode<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let queries = self.take(layer, &qkv)?;
        let shared: Vec<usize> = (0..self.runs.len()).filter(|&run| !self.runs[run].alone).collect();
        let asking = join_or_none(&qkv.q, shared.iter().map(|&run| Ok(queries[run].clone())))?;
        let elsewhere = self.of_all_ranks(layer, &asking)?;
        if self.runs.is_empty() {
            self.math.progress.idle_slices()?;
        }
        let at_home = self.runs.iter().zip(&queries).map(|(run, q)| self.at_home(layer, run, q));
        let mut found = at_home.collect::<Result<Vec<_>>>()?;
        if let Some(elsewhere) = elsewhere {
            let mut from = 0;
            for &run in &shared {
                let count = queries[run].dim(0)?;
                let there = elsewhere.rows(from, count)?;
                let there = match self.caches[self.runs[run].cache].parallel {
                    Some(ape) => weighed(there, ape)?,
                    None => there,
                };
                found[run] = merge(&there, &found[run])?;
                from += count;
            }
        }
        match found.is_empty() {
            true => Ok(Partial::of_output(qkv.q.narrow(0, 0, 0)?)?),
            false => Ok(Partial::below_each_other(&found)?),
        }
    }

    fn last_layer(&mut self, rows: usize) -> usize {
        if let Some(SharedCaches { counts, parts, .. }) = &mut self.shared {
            counts.iter_mut().for_each(|count| *count = (*count).min(1));
            parts.iter_mut().for_each(|(_, at)| *at = last_of(at, 1));
        }
        rows.min(1)
    }
}

/// The tensors one below the other; no rows of `like` if there are none.
fn join_or_none(like: &Tensor, parts: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let parts = parts.collect::<Result<Vec<_>>>()?;
    if parts.is_empty() { Ok(like.narrow(0, 0, 0)?) } else { join(&parts) }
}
