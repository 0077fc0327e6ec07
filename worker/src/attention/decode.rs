//! One generated row at a time, over the cache that prefill left: on the owner alone where it holds everything, else by a
//! round of queries and partial results. Cached keys were rotated once, before the first step.

use candle_core::Tensor;
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Positions, merge};

use super::rounds::{all_queries, bring_home, join, start_queries};
use crate::context::Math;
use crate::error::Result;
use crate::kv::View;
use crate::model::{Attention, Qkv};
use crate::progress::Progress;

/// Rows: the newest token's on its owner, none elsewhere.
pub struct Decode<'a> {
    /// Kernels and constants.
    pub math: Math,
    /// The way to the other ranks, where the cache is distributed.
    pub comm: Option<&'a mut dyn Communicator>,
    /// Rows of each rank: one on the owner.
    pub counts: Vec<usize>,
    /// Where the newest row stands.
    pub at: Positions,
    /// This rank's context, rotated.
    pub own: &'a View,
    /// Keys that the owner adds to its own: prefix and query, rotated; nothing elsewhere.
    pub rest: &'a View,
    /// The generated rows so far, rotated, one pair a layer; the newest row is appended. On the owner only.
    pub generated: &'a mut Vec<(Tensor, Tensor)>,
    /// Where the generated rows stand, the newest included.
    pub at_generated: Positions,
}

impl Decode<'_> {
    /// The newest row's keys join the generated ones; all keys that only the owner has.
    fn owners_keys(&mut self, layer: usize, k: &Tensor, v: Tensor) -> Result<Vec<Keys>> {
        let k = self.math.rope.apply(k, &self.at)?;
        if let Some((old_k, old_v)) = self.generated.get_mut(layer) {
            *old_k = join(&[old_k.clone(), k])?;
            *old_v = join(&[old_v.clone(), v])?;
        } else {
            self.generated.push((k, v));
        }
        let (k, v) = self.generated[layer].clone();
        let mut keys = self.rest.keys(layer);
        keys.push(Keys { k, v, at: self.at_generated.clone() });
        Ok(keys)
    }
}

impl Attention for Decode<'_> {
    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        let dtype = k.dtype();
        let owns = q.dim(0)? > 0;
        let q = if owns { self.math.rope.apply(&q, &self.at)? } else { q };
        let mut keys = if owns { self.owners_keys(layer, &k, v)? } else { Vec::new() };
        let Some(comm) = self.comm.as_deref_mut() else {
            keys.extend(self.own.keys(layer));
            return Ok(self.math.attend_rotated(&q, &self.at, &keys)?.out);
        };
        let queries = start_queries(comm, &q, &self.counts, dtype)?;
        let all_q = all_queries(comm, queries, &q)?;
        let part = self.math.attend_rotated(&all_q, &self.at, &self.own.keys(layer))?;
        let Some(comm) = self.comm.as_deref_mut() else { unreachable!("the communicator was there before") };
        let home = bring_home(comm, &part, &self.counts, dtype)?;
        if !owns {
            return Ok(home.out);
        }
        Ok(merge(&home, &self.math.attend_rotated(&q, &self.at, &keys)?)?.out)
    }
}
