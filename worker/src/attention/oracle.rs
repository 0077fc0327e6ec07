//! The oracle of `ideal`: a full prefill over a distributed cache, with a measurement for each
//! context row. It measures the difference between the query's attention output from the fresh row
//! and from the cached row. It works like `pass-q`, with any exchange of the recompute. All context
//! rows are fresh; each is on the rank of its chunk during a layer and is dropped after it.

use candle_core::{DType, Tensor};
use tributary_comm::Communicator;
use tributary_kernels::{
    DeviceList, Distance, Keys, Partial, Positions, Reduce, cast, contiguous, cuda, distance, from_eight_bits,
    gather_list, merge, scale_rows,
};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::Plan;
use tributary_protocol::deal::Homes;

use super::delivery::Delivery;
use super::placed::Placed;
use super::rounds::{bring_home, join};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: all context rows, in any deal, and the query's on the owner.
pub struct OraclePass<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    owner: usize,
    /// Number of each rank's queries; in `query_counts` those of the query's rows.
    counts: Vec<usize>,
    query_counts: Vec<usize>,
    delivery: Delivery,
    /// Positions of all ranks' queries, of this rank's, and of the query's.
    at_all: Positions,
    at: Positions,
    at_query: Positions,
    /// Positions of this rank's chunks' rows in the order of arrival, and of the query's rows on
    /// this rank.
    at_fresh: Positions,
    at_tail: Positions,
    prefix: View,
    /// Cached blocks of this rank's chunks, and the places of the arriving rows in them.
    cached: &'a [Block],
    places: DeviceList,
    /// Attention of the query's rows to the cached rows in each layer, `[rows]` f32.
    paid: Vec<Tensor>,
    /// Sum of the differences over the layers, one for each arriving row.
    sums: Vec<f32>,
}

impl<'a> OraclePass<'a> {
    /// The pass over `homes`, which hold all context rows and the query's. `paid` has the attention
    /// of the query's rows to this rank's cached rows in each layer, `[rows]` f32: the sum over
    /// query rows of the mean over heads.
    pub fn new(
        math: Math,
        comm: &'a mut dyn Communicator,
        (plan, homes): (&Plan, &Homes),
        placed: Placed<'a>,
        paid: Vec<Tensor>,
    ) -> Self {
        let Placed { cache, placement, .. } = placed;
        let (rank, keepers) = (comm.rank(), plan.keepers());
        let delivery = Delivery::new(rank, homes, &|row| keepers[row as usize]);
        let kept: Vec<u32> = cache.own.iter().flat_map(|block| block.rows().iter().copied()).collect();
        let mut place_of = vec![0; plan.total_rows()];
        kept.iter().zip(0..).for_each(|(&row, place)| place_of[row as usize] = place);
        let arriving = delivery.arriving();
        assert_eq!(arriving.len(), kept.len(), "rows of this rank's chunks that come");
        let places: Vec<u32> = arriving.iter().map(|&row| place_of[row as usize]).collect();
        Self {
            math,
            owner: homes.owner,
            counts: homes.counts(),
            query_counts: homes.query_counts(),
            at_all: placement.at(&homes.all()),
            at: placement.at(&homes.of(rank)),
            at_query: placement.at(&homes.query),
            at_fresh: placement.at(&arriving),
            at_tail: placement.at(homes.query_of(rank)),
            prefix: cache.view_of_prefix(placement),
            cached: &cache.own,
            places: places.into(),
            comm,
            delivery,
            paid,
            sums: vec![0.0; arriving.len()],
        }
    }

    /// Context rows of this rank, each with the sum of its differences over the layers.
    pub fn into_measured(self) -> impl Iterator<Item = (u32, f32)> {
        self.delivery.arriving().into_iter().zip(self.sums)
    }

    /// Measures a layer: the query's rows have the queries `q` and the log-sum-exp `lse`; `fresh`
    /// are the rows of this rank's chunks.
    fn measure(&mut self, layer: usize, q: &Tensor, lse: &Tensor, fresh: Keys) -> Result<()> {
        let count = fresh.at.len();
        if count == 0 {
            return Ok(());
        }
        let cached: Vec<Tensor> = self.cached.iter().map(|block| block.layer(layer).1.clone()).collect();
        let cached = gather_list(&join(&cached)?, &self.places)?;
        let paid_before = gather_list(&self.paid[layer].reshape((count, 1))?, &self.places)?.flatten_all()?;
        let v = fresh.v.clone();
        let paid = self.math.layer(layer).scores(q, &self.at_query, &[fresh], lse, Reduce::Mass)?;
        let taken = |v: &Tensor, paid: &Tensor| -> Result<Tensor> {
            Ok(scale_rows(&cast(&from_eight_bits(v, DType::F32)?, DType::F32)?, paid)?)
        };
        let apart = distance(&taken(&v, &paid)?, &taken(&cached, &paid_before)?, Distance::Squared)?;
        let apart = cuda::download(&apart)?.to_vec1::<f32>()?;
        self.sums.iter_mut().zip(apart).for_each(|(sum, squared)| *sum += squared.sqrt());
        Ok(())
    }
}

impl Attention for OraclePass<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let (all_q, fresh_k, fresh_v) =
            self.delivery.deliver(self.comm, &self.counts, (&q, &cast(&q, self.math.dtype)?), (&k, &v))?;
        let fresh = Keys { k: fresh_k, v: fresh_v, at: self.at_fresh.clone() };
        let part = self.math.layer(layer).attend(&all_q, &self.at_all, std::slice::from_ref(&fresh))?;
        let home = bring_home(self.comm, &part, &self.counts, self.math.dtype)?;
        let (rows, tail) = (k.dim(0)?, self.at_tail.len());
        let mut rest = self.prefix.keys(layer);
        let last_of = |x: &Tensor| x.narrow(0, rows - tail, tail);
        rest.push(Keys { k: last_of(&k)?, v: last_of(&v)?, at: self.at_tail.clone() });
        let everything = merge(&home, &self.math.layer(layer).attend(&q, &self.at, &rest)?)?;
        // The query's rows are after the owner's other rows.
        let lse = contiguous(&everything.lse.narrow(0, q.dim(0)? - tail, tail)?)?;
        let lse = join(&self.comm.all_gather_v(&lse, &self.query_counts)?)?;
        let query = self.query_counts[self.owner];
        let end: usize = self.counts[..=self.owner].iter().sum();
        let q = all_q.narrow(0, end - query, query)?;
        self.measure(layer, &q, &lse, fresh)?;
        Ok(everything)
    }

    /// Only the query's rows ask: the output of the others is not needed after the last layer.
    fn last_layer(&mut self, _rows: usize) -> usize {
        self.counts.clone_from(&self.query_counts);
        (self.at_all, self.at) = (self.at_query.clone(), self.at_tail.clone());
        self.at_tail.len()
    }
}
