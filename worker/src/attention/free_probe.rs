//! The free probe: context rows attend as if every other chunk were before their own, so that their
//! attention does not depend on the order of chunks. It works like `pass-q`, with any exchange of
//! the recompute. Readings stay on the rank of their column.
//!
//! Keys have the positions of their chunk alone. A row sees the rows of its own chunk causally,
//! from its own position. It sees the prefix and all rows of all other chunks from a position after
//! the longest chunk (`Rule::Others`); one softmax covers both. Fresh keys and values of the probed
//! rows replace the cached ones, so that they see each other fresh, across chunks in both
//! directions.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use tributary_comm::Communicator;
use tributary_kernels::{Keys, Partial, Positions, RowSums, add, cast, merge};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::Plan;
use tributary_protocol::deal::Homes;

use super::delivery::Delivery;
use super::rounds::{bring_home, join};
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::{KvCache, View};
use crate::placement::Placement;

/// Rows: any deal of context rows.
pub struct FreeProbe<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    /// Number of each rank's rows.
    counts: Vec<usize>,
    delivery: Delivery,
    /// Positions of all ranks' rows: in their own chunk, and after the other chunks.
    at_all: [Positions; 2],
    /// Positions of this rank's rows, after the other chunks.
    at: Positions,
    at_fresh: Positions,
    prefix: View,
    stale: View,
    /// Sums over the layers of the attention of all rows to the rows of `stale`, then to fresh
    /// ones.
    sums: RowSums,
    layers: usize,
    reads: Reads,
}

/// The readings of a free probe.
enum Reads {
    /// The attention of all heads.
    AllHeads,
    /// The largest attention of each row to one row of another chunk, `[rows, heads]` of each layer
    /// so far.
    Peaks(Vec<Tensor>),
    /// The attention of chosen heads.
    Chosen(ChosenHeads),
}

/// The heads whose attention counts, for each row its own.
pub struct ChosenHeads {
    /// Terms added to a row's log-sum-exp, `[rows, heads]` f32 of each layer: 0 for a head that
    /// counts, otherwise [`NOTHING`], which removes its attention.
    masks: Vec<Tensor>,
    /// Number of all heads of all layers over the number that count.
    factor: f32,
}

/// Removes all of an attention: exp(−1e4) is 0.
const NOTHING: f32 = 1e4;

impl ChosenHeads {
    /// The `count` heads of each row with the highest `peaks`, which are `[rows, heads]` of each
    /// layer. Ties go to the lower layer, then to the lower head.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn sharpest(peaks: &[Vec<f32>], heads: usize, count: usize, device: &Device) -> Result<Self> {
        let rows = peaks.first().map_or(0, Vec::len) / heads.max(1);
        let mut masks = vec![vec![NOTHING; rows * heads]; peaks.len()];
        for row in 0..rows {
            let of = |&(layer, head): &(usize, usize)| peaks[layer][row * heads + head];
            let mut all: Vec<(usize, usize)> =
                (0..peaks.len()).flat_map(|layer| (0..heads).map(move |head| (layer, head))).collect();
            all.sort_by(|a, b| of(b).total_cmp(&of(a)).then(a.cmp(b)));
            all.iter().take(count).for_each(|&(layer, head)| masks[layer][row * heads + head] = 0.0);
        }
        let factor = (peaks.len() * heads) as f32 / count as f32;
        let mask = |mask: Vec<f32>| Ok(Tensor::from_vec(mask, (rows, heads), device)?);
        Ok(Self { masks: masks.into_iter().map(mask).collect::<Result<_>>()?, factor })
    }
}

/// The attention of a free probe's rows on this rank.
pub struct FreeReadings {
    /// The probed rows, rank by rank.
    pub rows: Vec<u32>,
    /// Mean over layers and heads, `[rows, context rows that this rank keeps]`.
    pub amounts: Vec<f32>,
}

impl<'a> FreeProbe<'a> {
    /// The probe of the context rows in `homes`; the chunks of the plan are apart.
    pub fn new(
        math: Math,
        comm: &'a mut dyn Communicator,
        (plan, placement): (&Plan, &Placement),
        homes: &Homes,
        cache: &KvCache,
    ) -> Self {
        let (rank, keepers, all) = (comm.rank(), plan.keepers(), homes.all_context());
        let delivery = Delivery::new(rank, homes, &|row| keepers[row as usize]);
        let stale = cache.view_of_own(placement, &all);
        let columns = stale.rows().count() + delivery.arriving().len();
        Self {
            math,
            counts: homes.context_counts(),
            at_all: [placement.at(&all), placement.behind_others(&all)],
            at: placement.behind_others(&homes.context[rank]),
            at_fresh: placement.at(&delivery.arriving()),
            prefix: cache.view_of_prefix(placement),
            stale,
            delivery,
            comm,
            sums: RowSums::new(all.len(), columns),
            layers: 0,
            reads: Reads::AllHeads,
        }
    }

    /// Makes the probe read only the largest attention of each row to one row of another chunk, in
    /// every head.
    #[must_use]
    pub fn for_peaks(mut self) -> Self {
        self.reads = Reads::Peaks(Vec::new());
        self
    }

    /// Makes the probe read only the attention of chosen heads.
    #[must_use]
    pub fn of_heads(mut self, chosen: ChosenHeads) -> Self {
        self.reads = Reads::Chosen(chosen);
        self
    }

    /// The readings of a probe for peaks, `[rows, heads]` of each layer; only on this rank's rows.
    pub fn into_peaks(self) -> Vec<Tensor> {
        match self.reads {
            Reads::Peaks(peaks) => peaks,
            Reads::AllHeads | Reads::Chosen(_) => Vec::new(),
        }
    }

    /// The attention of the rows of `homes` to `kept`, the rows that this rank keeps.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn into_readings(self, homes: &Homes, kept: &[u32]) -> Result<FreeReadings> {
        let columns: Vec<u32> = self.stale.rows().chain(self.delivery.arriving()).collect();
        assert_eq!(self.sums.keys(), columns.len(), "readings of stale and fresh rows");
        let places: HashMap<u32, usize> = kept.iter().copied().zip(0..).collect();
        let places: Vec<usize> = columns.iter().map(|row| places[row]).collect();
        let factor = if let Reads::Chosen(chosen) = &self.reads { chosen.factor } else { 1.0 };
        let (rows, layers) = (homes.all_context(), self.layers.max(1) as f32 / factor);
        let mut amounts = self.sums.into_values()?;
        // In place, since there may be gigabytes of them: a row has at most as many kept rows as
        // columns.
        let mut of_row = vec![0.0; kept.len()];
        for row in 0..rows.len() {
            of_row.fill(0.0);
            let sums = &amounts[row * columns.len()..][..columns.len()];
            // A fresh row received nothing in its stale form.
            places.iter().zip(sums).for_each(|(&place, sum)| of_row[place] += sum / layers);
            amounts[row * kept.len()..][..kept.len()].copy_from_slice(&of_row);
        }
        amounts.truncate(rows.len() * kept.len());
        Ok(FreeReadings { rows, amounts })
    }

    /// The attention of all rows over this rank's keys.
    fn look(&self, layer: usize, all_q: &Tensor, keys: &[Keys]) -> Result<Partial> {
        let [own, others] = &self.at_all;
        Ok(merge(
            &self.math.layer(layer).attend(all_q, own, keys)?,
            &self.math.layer(layer).attend(all_q, others, keys)?,
        )?)
    }

    fn read(&mut self, layer: usize, all_q: &Tensor, keys: &[Keys], lse: &Tensor) -> Result<()> {
        let mut lse = join(&self.comm.all_gather_v(lse, &self.counts)?)?;
        match &mut self.reads {
            Reads::AllHeads => {}
            Reads::Peaks(peaks) => {
                peaks.push(self.math.layer(layer).peaks(all_q, &self.at_all[1], keys, &lse)?);
                return Ok(());
            }
            Reads::Chosen(chosen) => lse = add(&lse, &chosen.masks[self.layers])?,
        }
        for at in &self.at_all {
            self.math.layer(layer).add_readings(all_q, at, keys, &lse, &mut self.sums)?; // a row sees a key in one of them
        }
        self.layers += 1;
        Ok(())
    }
}

impl Attention for FreeProbe<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let Qkv { q, k, v } = qkv;
        let (all_q, fresh_k, fresh_v) =
            self.delivery.deliver(self.comm, &self.counts, (&q, &cast(&q, self.math.dtype)?), (&k, &v))?;
        let mut keys = self.stale.keys(layer);
        keys.push(Keys { k: fresh_k, v: fresh_v, at: self.at_fresh.clone() });
        let part = self.look(layer, &all_q, &keys)?;
        let home = bring_home(self.comm, &part, &self.counts, self.math.dtype)?;
        let everything = merge(&home, &self.math.layer(layer).attend(&q, &self.at, &self.prefix.keys(layer))?)?;
        // An empty block has no keys in the view, so the readings still match its rows.
        self.read(layer, &all_q, &keys, &everything.lse)?;
        Ok(everything)
    }
}
