//! Recompute under `pass-q`: keys stay where they are. Fresh keys and values go to the rank of their chunk, and with them all
//! rows' queries to all ranks; partial results come back to the rows' home, where they merge.
//!
//! The prefix and the query's own rows are added at home, once. With weights, the pass also measures what its rows attend
//! to (the second hop of `relay`).

use candle_core::Tensor;
use tributary_comm::{Communicator, Start};
use tributary_kernels::{DeviceList, Keys, Positions, Reduce, cast, cuda, gather_list, merge};
use tributary_protocol::deal::Homes;

use super::rounds::{added, all_queries, bring_home, join, last_of, start_all};
use crate::context::Math;
use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::model::{Attention, Qkv};
use crate::placement::Placement;
use crate::progress::Progress;

/// Rows: any deal of context rows, and the query's on the owner if the pass has them.
pub struct PassQ<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    /// Queries of each rank.
    counts: Vec<usize>,
    /// Queries of each rank in the last layer, and where they stand.
    last: (Vec<usize>, Positions),
    /// For each rank, which of this rank's rows it keeps the chunk of.
    send: Vec<DeviceList>,
    /// For each rank, how many rows of this rank's chunks it computes.
    receive: Vec<usize>,
    /// All ranks' queries.
    at_all: Positions,
    /// This rank's queries.
    at: Positions,
    at_fresh: Positions,
    at_tail: Positions,
    prefix: View,
    stale: View,
    fresh: Block,
    tail: Block,
    measure: Option<Measure>,
}

/// The measurement of the attention that a pass pays to context rows.
struct Measure {
    /// One weight a row of the pass, rank by rank.
    weights: Vec<f32>,
    /// Sum over the layers, `[rows of stale, then of fresh]` f32; none before the first.
    sums: Option<Tensor>,
    layers: usize,
}

impl<'a> PassQ<'a> {
    /// The pass over `homes`, which recomputes the context rows `recomputed`. `rank_of` tells which rank keeps a
    /// context row.
    pub fn new(
        math: Math,
        comm: &'a mut dyn Communicator,
        homes: &Homes,
        cache: &KvCache,
        placement: &Placement,
        recomputed: &[u32],
        rank_of: &dyn Fn(u32) -> usize,
    ) -> Self {
        let (rank, size) = (comm.rank(), comm.size());
        let mine = &homes.context[rank];
        let places = |to: usize| -> DeviceList {
            let kept_there = (0..mine.len() as u32).filter(|&i| rank_of(mine[i as usize]) == to);
            kept_there.collect::<Vec<u32>>().into()
        };
        let kept_here =
            |rows: &Vec<u32>| -> Vec<u32> { rows.iter().copied().filter(|&r| rank_of(r) == rank).collect() };
        let send: Vec<DeviceList> = (0..size).map(places).collect();
        assert_eq!(send.iter().map(|places| places.len()).sum::<usize>(), mine.len(), "rows sent to their keepers");
        let arriving: Vec<Vec<u32>> = homes.context.iter().map(kept_here).collect();
        let fresh = Block::new(arriving.concat());
        let tail = Block::new(homes.query_of(rank));
        Self {
            math,
            counts: homes.counts(),
            last: (homes.last_counts(), placement.at(homes.last())),
            send,
            receive: arriving.iter().map(Vec::len).collect(),
            at_all: placement.at(&homes.all()),
            at: placement.at(&homes.of(rank)),
            at_fresh: placement.at(fresh.rows()),
            at_tail: placement.at(tail.rows()),
            prefix: cache.view_of_prefix(placement),
            stale: cache.view_of_own(placement, recomputed),
            comm,
            fresh,
            tail,
            measure: None,
        }
    }

    /// Makes the pass measure what its rows attend to, each with its weight (rank by rank, as [`Homes::all`]).
    #[must_use]
    pub fn measuring(mut self, weights: Vec<f32>) -> Self {
        assert_eq!(weights.len(), self.at_all.len(), "weights of the rows of a pass");
        self.measure = Some(Measure { weights, sums: None, layers: 0 });
        self
    }

    /// The fresh rows of this rank's chunks, and the query's rows where this rank has them.
    pub fn into_blocks(self) -> (Block, Block) {
        (self.fresh, self.tail)
    }

    /// The weighted attention that the pass paid, the mean over layers and heads: context rows of this rank and their score.
    ///
    /// # Errors
    /// The tensor library's.
    pub fn into_measured(self) -> Result<Vec<(u32, f32)>> {
        let Some(Measure { sums: Some(sums), layers, .. }) = self.measure else {
            return Ok(Vec::new());
        };
        let rows: Vec<u32> = self.stale.rows().chain(self.fresh.rows().iter().copied()).collect();
        let sums = cuda::download(&sums)?.to_vec1::<f32>()?;
        assert_eq!(sums.len(), rows.len(), "sums of stale and fresh rows");
        Ok(rows.into_iter().zip(sums).map(|(row, sum)| (row, sum / layers as f32)).collect())
    }

    /// Sends fresh keys and values to the rank of their chunk, and queries to all; the fresh ones of this rank's chunks and
    /// all queries.
    fn deliver(&mut self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        let queries = cast(q, k.dtype())?;
        let parts = |x: &Tensor| self.send.iter().map(|places| Ok(gather_list(x, places)?)).collect::<Result<Vec<_>>>();
        let (k, v) = (parts(k)?, parts(v)?);
        let starts = [
            Start::AllGather { send: &queries, rows: &self.counts },
            Start::AllToAll { send: &k, rows: &self.receive },
            Start::AllToAll { send: &v, rows: &self.receive },
        ];
        let [queries, sending_k, sending_v] = start_all(self.comm, starts)?;
        let k = self.comm.wait(sending_k)?;
        let v = self.comm.wait(sending_v)?;
        Ok((all_queries(self.comm, queries, q)?, join(&k)?, join(&v)?))
    }

    fn measure(&mut self, all_q: &Tensor, keys: &[Keys], lse: &Tensor) -> Result<()> {
        let Some(measure) = &mut self.measure else {
            return Ok(());
        };
        let lse = join(&self.comm.all_gather_v(lse, &self.counts)?)?;
        let scores = self.math.scores(all_q, &self.at_all, keys, &lse, Reduce::Weighted(&measure.weights))?;
        measure.sums = Some(added(measure.sums.take(), scores)?);
        measure.layers += 1;
        Ok(())
    }
}

impl Attention for PassQ<'_> {
    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        let dtype = k.dtype();
        let (all_q, fresh_k, fresh_v) = self.deliver(&q, &k, &v)?;
        let tail_rows = self.tail.rows().len();
        assert!(tail_rows <= k.dim(0)?, "{tail_rows} query rows of {}", k.dim(0)?);
        let own_rows = k.dim(0)? - tail_rows;
        let (tail_k, tail_v) = (k.narrow(0, own_rows, tail_rows)?, v.narrow(0, own_rows, tail_rows)?);

        let mut keys = self.stale.keys(layer);
        keys.push(Keys { k: fresh_k.clone(), v: fresh_v.clone(), at: self.at_fresh.clone() });
        let part = self.math.attend(&all_q, &self.at_all, &keys)?;
        let home = bring_home(self.comm, &part, &self.counts, dtype)?;
        let mut rest = self.prefix.keys(layer);
        rest.push(Keys { k: tail_k.clone(), v: tail_v.clone(), at: self.at_tail.clone() });
        let everything = merge(&home, &self.math.attend(&q, &self.at, &rest)?)?;
        if self.measure.is_some() {
            // An empty block has no keys in the view, so the scores line up with its rows all the same.
            self.measure(&all_q, &keys, &everything.lse)?;
        }
        self.fresh.layers.push((fresh_k, fresh_v));
        self.tail.layers.push((tail_k, tail_v));
        Ok(everything.out)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        let asked = self.tail.rows().len().min(1);
        (self.counts, self.at_all) = self.last.clone();
        self.at = last_of(&self.at, asked);
        asked
    }
}
