//! The calls of attention, and the choice of the backend that answers them.

use candle_core::Tensor;

use crate::backend::Backend;
use crate::eight_bits::is_in_eight_bits;
use crate::error::{Result, expect};
use crate::rows::join;
use crate::to_eight_bits::from_eight_bits;
use crate::{Keys, Partial, Query, Readings, Reduce, cpu, cuda, gradient, per_head, plain};

/// Which implementation of the kernels runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// The fastest one for the tensors' device; where a gradient is wanted, one with its own
    /// backward pass (attention on the host, in f32 and f64), else the plain one.
    #[default]
    Auto,
    /// The plain one, in candle operations: any device, differentiable, the reference.
    Plain,
}

impl Kernels {
    /// The backends in the order in which they are asked; the plain one answers every call.
    fn backends(self) -> &'static [&'static dyn Backend] {
        match self {
            Kernels::Auto => &[&cpu::Host, &cuda::Gpu, &gradient::Tiled, &plain::Plain],
            Kernels::Plain => &[&plain::Plain],
        }
    }

    /// The answer of the first backend that has one. Keys and values in 8 bits are unpacked for
    /// those that do not read them.
    fn first<T>(self, query: &Query<'_>, ask: impl Fn(&dyn Backend, &Query<'_>) -> Result<Option<T>>) -> Result<T> {
        let mut without = None;
        for &backend in self.backends() {
            if without.is_none() && !backend.reads_eight_bits() {
                without = unpacked(query)?;
            }
            let query = match &without {
                Some(keys) => &Query { keys, ..*query },
                None => query,
            };
            if let Some(found) = ask(backend, query)? {
                return Ok(found);
            }
        }
        unreachable!("the plain backend answers every call")
    }

    /// Attention of the queries to all blocks of keys together. Work runs on the current rayon
    /// pool. Where a CPU multiplies pairs of bf16 (AVX512-BF16) and all keys and values are in that
    /// type, queries, rotated keys and probabilities are rounded to it; sums are f32. Where keys
    /// have positions per KV head, each head is a separate call.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn attend(self, query: &Query<'_>) -> Result<Partial> {
        query.check("attend")?;
        if let Some(heads) = per_head::split(query.q, query.keys)? {
            let parts = heads.iter().map(|head| self.attend(&head.query(query)));
            return per_head::joined(&parts.collect::<Result<Vec<_>>>()?);
        }
        self.first(query, |backend, query| backend.attend(query))
    }

    /// One number a key, the keys in their order, `[keys]` f32 on the queries' device: `reduce`
    /// over the query rows of the attention that the key receives, averaged over the heads.
    /// Probabilities are recomputed from `lse` `[queries, heads]`, which decides what they are
    /// normalised over: A\[i,t\] = exp(scale·q_i·k_t − lse_i), 0 where `i` does not see `t` or lse
    /// is −∞. Gradients flow to queries, keys and `lse`; that of [`Reduce::Norm`] is taken as 0
    /// where the score is 0. Where keys have positions per KV head, the mean over the heads is that
    /// of the keys in the same place, computed by [`readings`](Self::readings).
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn column_scores(self, query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Tensor> {
        query.check_with("column_scores", lse)?;
        if let Reduce::Weighted(weights) = reduce {
            expect("column_scores", "weights", query.at.len(), weights.len())?;
        }
        if query.is_apart() {
            return plain::reduced(&self.readings(query, lse, Readings::PerRow)?, reduce);
        }
        self.first(query, |backend, query| backend.column_scores(query, lse, reduce))
    }

    /// Attention that every key receives, by KV head or by query row; otherwise as
    /// [`column_scores`](Self::column_scores). In f32, in f64 where the queries are. By KV head,
    /// and for the largest head, there is the plain implementation only, for windows of few rows:
    /// it holds `[heads, queries, keys]`.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn readings(self, query: &Query<'_>, lse: &Tensor, by: Readings) -> Result<Tensor> {
        query.check_with("readings", lse)?;
        if let Some(heads) = per_head::split(query.q, query.keys)? {
            let of_head = |head: &per_head::HeadCall| self.readings(&head.query(query), &head.part_of(lse)?, by);
            let parts = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            return match by {
                Readings::PerKvHead => join(&parts.iter().collect::<Vec<_>>(), 0),
                Readings::PerRow => per_head::mean(&parts),
                Readings::Largest => per_head::largest(&parts),
            };
        }
        self.first(query, |backend, query| backend.readings(query, lse, by))
    }

    /// The largest attention that each query row pays to any of the keys, in each head, given the
    /// rows' log-sum-exp over all that they see: `[queries, heads]` f32, 0 for a row that sees none
    /// of them. Plain on every device.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit.
    pub fn peaks(self, query: &Query<'_>, lse: &Tensor) -> Result<Tensor> {
        query.check_with("peaks", lse)?;
        if let Some(heads) = per_head::split(query.q, query.keys)? {
            let of_head = |head: &per_head::HeadCall| self.peaks(&head.query(query), &head.part_of(lse)?);
            let parts = heads.iter().map(of_head).collect::<Result<Vec<_>>>()?;
            return join(&parts.iter().collect::<Vec<_>>(), 1);
        }
        match unpacked(query)? {
            Some(keys) => plain::peaks(&Query { keys: &keys, ..*query }, lse),
            None => plain::peaks(query, lse),
        }
    }
}

/// The keys of a call without 8 bits, if some are in 8 bits.
fn unpacked(query: &Query<'_>) -> Result<Option<Vec<Keys>>> {
    if !query.keys.iter().any(|block| is_in_eight_bits(&block.k) || is_in_eight_bits(&block.v)) {
        return Ok(None);
    }
    let of = |x: &Tensor| from_eight_bits(x, query.dtype);
    let block = |block: &Keys| Ok(Keys { k: of(&block.k)?, v: of(&block.v)?, at: block.at.clone() });
    query.keys.iter().map(block).collect::<Result<Vec<_>>>().map(Some)
}
