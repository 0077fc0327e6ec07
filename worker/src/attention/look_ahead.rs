//! Rows that look at a filled cache and leave nothing in it: they see everything that is kept of the prompt, and each other, and
//! what every key receives from them is read by KV head. The owner computes the rows; where the cache is distributed their queries go
//! to the keys and partial results come home, as in decoding.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Positions, Readings, merge};

use super::rounds::{all_queries, bring_home, join, start_queries};
use crate::context::Math;
use crate::error::Result;
use crate::kv::View;
use crate::model::{Attention, Qkv};
use crate::progress::Progress;

/// Rows: the look-ahead's on the owner, none elsewhere.
pub struct LookAhead<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// The way to the other ranks where they hold parts of the cache; absent where the owner holds all.
    pub comm: Option<&'a mut dyn Communicator>,
    /// The number of rows on each rank.
    pub counts: Vec<usize>,
    /// Where the rows stand.
    pub at: Positions,
    /// The context rows that are this rank's alone; all that there are where the owner holds them.
    pub context: View,
    /// On the owner: prefix and query, which count once in a merge.
    pub rest: Option<View>,
    /// For every layer so far the attention that this rank's keys received, those of `context` and then of `rest`: `[kv_heads, keys]` f32, the
    /// sum over the rows of the mean over a KV head's heads. The rows' own keys are left out.
    pub received: Vec<Tensor>,
}

impl LookAhead<'_> {
    /// The attention of the rows: their output on the owner, and all queries with their log-sum-exp on every rank that takes part.
    fn found(&mut self, qkv: &Qkv, context: &[Keys], rest: &[Keys]) -> Result<(Tensor, Tensor, Tensor)> {
        let Qkv { q, k, v } = qkv;
        let mut home = rest.to_vec();
        home.push(Keys { k: k.clone(), v: v.clone(), at: self.at.clone() });
        let Some(comm) = &mut self.comm else {
            home.extend_from_slice(context);
            let everything = self.math.attend(q, &self.at, &home)?;
            return Ok((everything.out, q.clone(), everything.lse));
        };
        let queries = start_queries(*comm, q, &self.counts, k.dtype())?;
        let all_q = all_queries(*comm, queries, q)?;
        let part = self.math.attend(&all_q, &self.at, context)?;
        let mut everything = bring_home(*comm, &part, &self.counts, k.dtype())?;
        if self.rest.is_some() {
            everything = merge(&everything, &self.math.attend(q, &self.at, &home)?)?;
        }
        let lse = join(&comm.all_gather_v(&everything.lse, &self.counts)?)?;
        Ok((everything.out, all_q, lse))
    }
}

impl Attention for LookAhead<'_> {
    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let mut context = self.context.keys(layer);
        let rest = self.rest.as_ref().map_or_else(Vec::new, |rest| rest.keys(layer));
        let (out, all_q, lse) = self.found(&qkv, &context, &rest)?;
        context.extend(rest);
        self.received.push(self.math.readings(&all_q, &self.at, &context, &lse, Readings::PerKvHead)?);
        Ok(out)
    }
}
