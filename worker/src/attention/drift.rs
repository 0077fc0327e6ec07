//! Some context rows at their global positions, which see the whole context; every rank has
//! gathered its cached keys and values. In the first layer all keys are the cached ones. In later
//! layers the rows' own keys and values, gathered from all ranks, replace the cached ones. The
//! attention among these rows can be measured.

use candle_core::{DType, Tensor};
use tributary_comm::{Communicator, Pending, Start};
use tributary_kernels::{Keys, Partial, Reduce, gather, join, merge};
use tributary_model::Qkv;
use tributary_protocol::{Drift, DriftOf, DriftScore};

use super::replication::kept_layer;
use super::rounds::start_all;
use crate::context::Math;
use crate::error::Result;
use crate::kv::{KvCache, View};
use crate::placement::Placement;

/// Keys and values of every rank's chunks in the first layers, in flight to all ranks or already
/// there.
pub struct CachedLayers {
    /// Keys and values of each layer; of the last only the compared tensor, unless attention is
    /// measured there.
    pending: Vec<Vec<Pending>>,
}

impl CachedLayers {
    /// Starts the gathers of the first layer and of those in which drift is measured, all at once:
    /// `counts[r]` rows come from rank r. Of the last layer only the compared tensor is sent,
    /// unless attention is measured there. `cache` has this rank's rows; without rows, its prefix
    /// gives the width of a row.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn start(comm: &mut dyn Communicator, cache: &KvCache, counts: &[usize], drift: Drift) -> Result<Self> {
        let own = |layer: usize| kept_layer(&cache.own, &cache.prefix, layer);
        let mut pending = Vec::new();
        for layer in 0..=drift.layers {
            let (k, v) = own(layer)?;
            let needed = match (drift.score, drift.of) {
                _ if layer < drift.layers => vec![&k, &v],
                (DriftScore::Attended, _) => vec![&k, &v],
                (DriftScore::Squared, DriftOf::Keys) => vec![&k],
                (DriftScore::Squared, DriftOf::Values) => vec![&v],
            };
            let gathers = |send| Start::AllGather { send, rows: counts };
            pending.push(match needed[..] {
                [one] => start_all(comm, [gathers(one)])?.into(),
                _ => start_all(comm, [&k, &v].map(gathers))?.into(),
            });
        }
        Ok(Self { pending })
    }

    /// The next layer's keys and values, or of the last layer the compared tensor: each rank's
    /// rows.
    ///
    /// # Errors
    /// Returns an error if the communicator fails.
    pub fn next(&mut self, comm: &mut dyn Communicator) -> Result<Vec<Vec<Tensor>>> {
        assert!(!self.pending.is_empty(), "every layer that was gathered has been waited for");
        self.pending.remove(0).into_iter().map(|pending| Ok(comm.wait(pending)?)).collect()
    }
}

/// Rows of a pass that measures drift, in one layer.
pub struct DriftPass<'a> {
    /// Kernels and constants.
    pub math: &'a Math,
    /// Communicator with the other ranks.
    pub comm: &'a mut dyn Communicator,
    /// Placement of the rows.
    pub placement: &'a Placement,
    /// The prefix.
    pub prefix: &'a View,
    /// The context rows that each rank keeps.
    pub kept: &'a [Vec<u32>],
}

impl DriftPass<'_> {
    /// The attention output of this rank's rows, of `rows` on each rank, over prefix and context.
    /// `cached` has keys and values of each rank's context. With `fresh` the rows' own keys and
    /// values replace the cached ones.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    pub fn attend(
        &mut self,
        layer: usize,
        qkv: Qkv,
        rows: &[Vec<u32>],
        cached: &[Vec<Tensor>],
        fresh: bool,
    ) -> Result<Partial> {
        assert_eq!(rows.len(), self.comm.size(), "ranks with rows of the pass");
        assert_eq!(self.kept.len(), self.comm.size(), "ranks with context rows");
        assert_eq!(cached.len(), 2, "cached keys and values of layer {layer}");
        let at = self.placement.at(&rows[self.comm.rank()]);
        let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
        let sending = match fresh {
            true => Some(start_all(self.comm, [&qkv.k, &qkv.v].map(|send| Start::AllGather { send, rows: &counts }))?),
            false => None,
        };
        let keys = self.there(layer, (&cached[0], &cached[1]), if fresh { rows } else { &[] });
        let part = self.math.layer(layer).attend(&qkv.q, &at, &keys)?;
        let Some([sending_k, sending_v]) = sending else { return Ok(part) };
        let (k, v) = (self.comm.wait(sending_k)?, self.comm.wait(sending_v)?);
        self.with_fresh(layer, part, (&qkv.q, rows), &self.of_rows((k, v), rows))
    }

    /// Attention of this rank's rows to all `rows`, rank by rank: the sum over this rank's rows of
    /// the mean over heads, `[rows]` f32. `cached` has the keys of each rank's context; the rows'
    /// own keys replace the cached ones.
    ///
    /// # Errors
    /// Returns an error if a kernel or the communicator fails.
    pub fn paid(&mut self, layer: usize, qkv: &Qkv, rows: &[Vec<u32>], cached: &[Tensor]) -> Result<Tensor> {
        let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
        let [sending] = start_all(self.comm, [Start::AllGather { send: &qkv.k, rows: &counts }])?;
        let k = self.comm.wait(sending)?;
        if rows[self.comm.rank()].is_empty() {
            return Ok(Tensor::zeros(counts.iter().sum::<usize>(), DType::F32, qkv.k.device())?);
        }
        // Only the log-sum-exp is needed, so the keys serve as values.
        let at = self.placement.at(&rows[self.comm.rank()]);
        let part = self.math.layer(layer).attend(&qkv.q, &at, &self.there(layer, (cached, cached), rows))?;
        let fresh = self.of_rows((k.clone(), k), rows);
        let lse = self.with_fresh(layer, part, (&qkv.q, rows), &fresh)?.lse;
        self.math.layer(layer).scores(&qkv.q, &at, &fresh, &lse, Reduce::Mass)
    }

    /// Prefix and cached context, without the rows `hidden` of each rank.
    fn there(&self, layer: usize, cached: (&[Tensor], &[Tensor]), hidden: &[Vec<u32>]) -> Vec<Keys> {
        let mut is_hidden = vec![false; self.kept.iter().flatten().max().map_or(0, |&row| row as usize + 1)];
        hidden.iter().flatten().for_each(|&row| is_hidden[row as usize] = true);
        let mut keys = self.prefix.keys(layer);
        for (rank, kept) in self.kept.iter().enumerate().filter(|(_, kept)| !kept.is_empty()) {
            let hidden = |&place: &u32| is_hidden[kept[place as usize] as usize];
            let places: Vec<u32> = (0..kept.len() as u32).filter(hidden).collect();
            let at = self.placement.at(kept).without(&places);
            keys.push(Keys { k: cached.0[rank].clone(), v: cached.1[rank].clone(), at });
        }
        keys
    }

    /// The keys and values from each rank, at the positions of its rows.
    fn of_rows(&self, (k, v): (Vec<Tensor>, Vec<Tensor>), rows: &[Vec<u32>]) -> Vec<Keys> {
        std::iter::zip(k, v)
            .zip(rows)
            .filter(|(_, rows)| !rows.is_empty())
            .map(|((k, v), rows)| Keys { k, v, at: self.placement.at(rows) })
            .collect()
    }

    /// `part` merged with the attention of this rank's rows to `fresh`.
    fn with_fresh(
        &self,
        layer: usize,
        part: Partial,
        (q, rows): (&Tensor, &[Vec<u32>]),
        fresh: &[Keys],
    ) -> Result<Partial> {
        if fresh.is_empty() {
            return Ok(part);
        }
        let at = self.placement.at(&rows[self.comm.rank()]);
        Ok(merge(&part, &self.math.layer(layer).attend(q, &at, fresh)?)?)
    }
}

/// The cached rows `rows`, of parts that hold the rows `kept` of each rank.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn cached_rows(parts: &[Tensor], kept: &[Vec<u32>], rows: &[u32]) -> Result<Tensor> {
    const NOWHERE: u32 = u32::MAX;
    let mut places = vec![NOWHERE; kept.iter().flatten().max().map_or(0, |&row| row as usize + 1)];
    kept.iter().flatten().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
    let filled: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[0] > 0).collect();
    let all = join(&filled, 0)?;
    let place = |&row: &u32| {
        assert!(places[row as usize] != NOWHERE, "no rank keeps row {row}");
        places[row as usize]
    };
    let places: Vec<u32> = rows.iter().map(place).collect();
    Ok(gather(&all, &places)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_rows_are_found_by_their_numbers() {
        let part = |from: f32, rows: usize| {
            let numbers: Vec<f32> = (0..rows).map(|row| from + row as f32).collect();
            Tensor::from_vec(numbers, (rows, 1, 1), &candle_core::Device::Cpu).expect("rows")
        };
        // Rank 0 keeps rows 5 to 7, rank 1 nothing, rank 2 rows 2 to 4.
        let (parts, kept) = ([part(50.0, 3), part(0.0, 0), part(20.0, 3)], [vec![5, 6, 7], vec![], vec![2, 3, 4]]);
        let found = cached_rows(&parts, &kept, &[7, 2, 5]).expect("rows");
        assert_eq!(found.flatten_all().and_then(|rows| rows.to_vec1::<f32>()).expect("f32"), [52.0, 20.0, 50.0]);
    }

    #[test]
    #[should_panic(expected = "no rank keeps row 3")]
    fn a_row_that_no_rank_keeps_is_a_bug() {
        let part = Tensor::zeros((2, 1, 1), candle_core::DType::F32, &candle_core::Device::Cpu).expect("rows");
        let _ = cached_rows(&[part], &[vec![2, 4]], &[3]);
    }
}
