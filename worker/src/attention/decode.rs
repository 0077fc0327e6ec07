//! One step of decoding: the newest row of every sequence of this rank. The rows share everything
//! except attention, which each computes alone over the cache of its own sequence. Keys on other
//! ranks need one round of queries and one of partial results a layer, for all sequences of the
//! step together.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Partial, Positions, merge};
use tributary_model::{Attention, Progress, Qkv};

use super::parallel::{tempered, weighed};
use super::rounds::{all_queries, bring_home, join, start_queries};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::sequence::Turned;

/// Rows: the newest one of each sequence that this rank owns.
pub struct Decode<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Caches of which this rank has a part.
    pub caches: Vec<&'a mut Turned>,
    /// The rows, in their order.
    pub rows: Vec<DecodeRow>,
    /// Positions of all rows.
    pub at: Positions,
    /// The sequences of the step that no rank holds alone, if there are any.
    pub shared: Option<SharedCaches<'a>>,
}

/// The newest row of a sequence that this rank owns.
pub struct DecodeRow {
    /// Its cache, as a number in [`Decode::caches`].
    pub cache: usize,
    /// Its position.
    pub at: Positions,
    /// Whether this rank holds all keys that it attends to.
    pub alone: bool,
}

/// The sequences of a step whose caches lie on several ranks.
pub struct SharedCaches<'a> {
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// Number of them that each rank owns.
    pub counts: Vec<usize>,
    /// For each of them, rank by rank: this rank's part, as a number in [`Decode::caches`], and the
    /// position of its newest row.
    pub parts: Vec<(usize, Positions)>,
}

impl Decode<'_> {
    /// A row's attention over the keys on its owner: all keys, or those that count once in the
    /// merge.
    fn at_home(&self, layer: usize, row: usize, q: &Tensor) -> Result<Partial> {
        let DecodeRow { cache, at, alone } = &self.rows[row];
        let cache = &self.caches[*cache];
        let (q, mut context) = (q.narrow(0, row, 1)?, if *alone { cache.own.keys(layer) } else { Vec::new() });
        // The growing block comes last: a device keeps the order of the blocks before it.
        let keys = [cache.rest.keys(layer), cache.generated.keys(layer)?].concat();
        let Some(ape) = cache.parallel else {
            context.extend(keys);
            return self.math.attend_rotated(&q, at, &context);
        };
        let context = tempered(&self.math, ape).attend_rotated(&q, at, &context)?;
        Ok(merge(&weighed(context, ape)?, &self.math.attend_rotated(&q, at, &keys)?)?)
    }

    /// Attention of the rows of shared sequences over every rank's own part, on their owner; `q`
    /// are this rank's queries.
    fn of_all_ranks(&mut self, layer: usize, q: &Tensor, k: &Tensor) -> Result<Option<Partial>> {
        let Some(SharedCaches { comm, counts, parts }) = &mut self.shared else { return Ok(None) };
        let queries = start_queries(*comm, q, counts, k.dtype())?;
        let all_q = all_queries(*comm, queries, q)?;
        assert_eq!(parts.len(), all_q.dim(0)?, "parts of shared sequences, and queries from all ranks");
        let part = |(index, (cache, at)): (usize, &(usize, Positions))| {
            let cache = &self.caches[*cache];
            let math = cache.parallel.map(|ape| tempered(&self.math, ape));
            let q = all_q.narrow(0, index, 1)?;
            math.as_ref().unwrap_or(&self.math).attend_rotated(&q, at, &cache.own.keys(layer))
        };
        let parts = parts.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?;
        Ok(Some(bring_home(*comm, &stacked(parts)?, counts, k.dtype())?))
    }

    /// Numbers of the rows of shared sequences.
    fn shared_rows(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|&row| !self.rows[row].alone).collect()
    }
}

impl Attention for Decode<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        assert_eq!(q.dim(0)?, self.rows.len(), "one query a sequence");
        let any = !self.rows.is_empty();
        let (q, k) = match any {
            true => (self.math.rope.apply(&q, &self.at)?, self.math.rope.apply(&k, &self.at)?),
            false => (q, k),
        };
        for (index, row) in self.rows.iter().enumerate() {
            let (k, v) = (k.narrow(0, index, 1)?, v.narrow(0, index, 1)?);
            self.caches[row.cache].generated.push(layer, &k, &v)?;
        }
        let shared = self.shared_rows();
        let asking = join_or_none(&q, shared.iter().map(|&row| Ok(q.narrow(0, row, 1)?)))?;
        let elsewhere = self.of_all_ranks(layer, &asking, &k)?;
        let mut found = (0..self.rows.len()).map(|row| self.at_home(layer, row, &q)).collect::<Result<Vec<_>>>()?;
        if let Some(elsewhere) = elsewhere {
            for (index, &row) in shared.iter().enumerate() {
                let there =
                    Partial { out: elsewhere.out.narrow(0, index, 1)?, lse: elsewhere.lse.narrow(0, index, 1)? };
                let there = match self.caches[self.rows[row].cache].parallel {
                    Some(ape) => weighed(there, ape)?,
                    None => there,
                };
                found[row] = merge(&there, &found[row])?;
            }
        }
        join_or_none(&q, found.into_iter().map(|part| Ok(part.out)))
    }
}

/// Partial results of several rows, one below the other.
fn stacked(parts: Vec<Partial>) -> Result<Partial> {
    let (out, lse): (Vec<_>, Vec<_>) = parts.into_iter().map(|part| (part.out, part.lse)).unzip();
    Ok(Partial { out: join(&out)?, lse: join(&lse)? })
}

/// The tensors one below the other; no rows of `like` if there are none.
fn join_or_none(like: &Tensor, parts: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
    let parts = parts.collect::<Result<Vec<_>>>()?;
    if parts.is_empty() { Ok(like.narrow(0, 0, 0)?) } else { join(&parts) }
}
