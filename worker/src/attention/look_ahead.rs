//! Look-ahead rows, which attend to a filled cache and leave nothing in it. They see all kept rows
//! of the prompt before them, and the attention that every key receives from them is read by KV
//! head. They are after the prompt and see each other too, or they are rows of the prompt, which
//! are in the cache themselves. Any rank may have some of them. If the cache is distributed, their
//! queries go to the keys and partial results return, as in decoding.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Partial, Positions, Reduce, contiguous, merge};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::{all_queries, bring_home, join, start_queries};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::View;
use crate::layer_math::LayerMath;

/// Rows: this rank's look-ahead rows.
pub struct LookAhead<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// Communicator with the other ranks if they hold parts of the cache; absent if the owner holds
    /// all.
    pub comm: Option<&'a mut dyn Communicator>,
    /// Number of rows on each rank.
    pub counts: Vec<usize>,
    /// Positions of the rows of all ranks, rank by rank.
    pub at_all: Positions,
    /// Positions of this rank's rows, if the cache lacks them: then they see each other. Only one
    /// rank may have such rows.
    pub behind: Option<Positions>,
    /// The part of this rank: over all ranks' views every key counts once.
    pub cache: View,
    /// Attention that this rank's keys received, for every layer so far: `[kv_heads, keys]` f32,
    /// the sum over the rows of the mean over a KV head's heads. Keys of rows that the cache lacks
    /// are left out.
    pub received: Vec<Tensor>,
}

impl LookAhead<'_> {
    /// The attention of the rows: this rank's, and all queries with their log-sum-exp on
    /// every rank that takes part.
    fn found(&mut self, layer: usize, qkv: &Qkv, cache: &[Keys]) -> Result<(Partial, Tensor, Tensor)> {
        let Qkv { q, k, v } = qkv;
        let own = self.behind.iter().map(|at| Keys { k: k.clone(), v: v.clone(), at: at.clone() });
        let own: Vec<Keys> = own.filter(|keys| !keys.at.is_empty()).collect();
        let Some(comm) = &mut self.comm else {
            let everything = self.math.layer(layer).attend(q, &self.at_all, &[&own, cache].concat())?;
            let lse = everything.lse.clone();
            return Ok((everything, q.clone(), lse));
        };
        let queries = start_queries(*comm, q, &self.counts, self.math.dtype)?;
        let all_q = all_queries(*comm, queries, q)?;
        let part = self.math.layer(layer).attend(&all_q, &self.at_all, cache)?;
        let mut everything = bring_home(*comm, &part, &self.counts, self.math.dtype)?;
        if let [keys] = &*own {
            everything = merge(&everything, &self.math.layer(layer).attend(q, &keys.at, &own)?)?;
        }
        let lse = join(&comm.all_gather_v(&everything.lse, &self.counts)?)?;
        Ok((everything, all_q, lse))
    }
}

impl Attention for LookAhead<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let cache = self.cache.keys(layer);
        let (out, all_q, lse) = self.found(layer, &qkv, &cache)?;
        let received =
            received_by_kv_head(self.math.layer(layer), (&all_q, &self.at_all, &lse), &cache, qkv.k.dim(1)?)?;
        self.received.push(received);
        Ok(out)
    }
}

/// The attention that keys receive from queries with this log-sum-exp, by KV head, `[kv_heads,
/// keys]`. There is one call a head; none holds rows times keys.
pub(super) fn received_by_kv_head(
    math: LayerMath<'_>,
    (q, at, lse): (&Tensor, &Positions, &Tensor),
    keys: &[Keys],
    kv_heads: usize,
) -> Result<Tensor> {
    let group = q.dim(1)? / kv_heads;
    let of_head = |head: usize| -> Result<Tensor> {
        let of = |x: &Tensor| x.narrow(1, head, 1);
        let cut = |block: &Keys| Ok(Keys { k: of(&block.k)?, v: of(&block.v)?, at: block.at.of_head(head).clone() });
        let keys = keys.iter().map(cut).collect::<Result<Vec<_>>>()?;
        let (q, lse) = (q.narrow(1, head * group, group)?, lse.narrow(1, head * group, group)?);
        let math = math.of_kv_head(head, kv_heads);
        let scores = math.scores(&contiguous(&q)?, at, &keys, &contiguous(&lse)?, Reduce::Mass)?;
        Ok(scores.reshape((1, scores.dim(0)?))?)
    };
    let heads = (0..kv_heads).map(of_head).collect::<Result<Vec<_>>>()?;
    Ok(tributary_kernels::join(&heads.iter().collect::<Vec<_>>(), 0)?)
}
