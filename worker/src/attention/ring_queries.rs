//! Exact attention of a sequence spread over ranks, the reverse of [`Ring`](super::Ring): keys and
//! values stay on their ranks, and queries travel round the ring. Each rank's partial results go
//! directly home while others are computed. It moves fewer bytes than a ring if queries and outputs
//! are smaller than keys and values; they are not if query heads share KV heads.

use std::ops::Range;

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};
use tributary_kernels::{Keys, Partial, Positions, cast};
use tributary_model::{Attention, Progress, Qkv, SlicedAttention, slice_count, slice_of_part};

use super::rounds::{last_of, merge_all, start_all};
use super::slices::Slices;
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: this rank's shard of the sequence.
pub struct RingQueries<'a> {
    math: Math,
    comm: &'a mut dyn Communicator,
    /// Positions of this rank's keys.
    at_keys: Positions,
    /// Positions of each rank's queries.
    at: Vec<Positions>,
    /// The rank that holds the prompt's last row.
    owner: usize,
    /// This rank's keys and values of every layer so far.
    layers: Vec<(Tensor, Tensor)>,
    slices: Slices,
    /// Number of slices of the current layer that are done.
    done: usize,
}

impl<'a> RingQueries<'a> {
    /// The pass over ranks whose shards have the positions `at`; the prompt's last row is on
    /// `owner`.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, at: Vec<Positions>, owner: usize) -> Self {
        assert_eq!(at.len(), comm.size(), "ranks with a shard");
        Self {
            at_keys: at[comm.rank()].clone(),
            math,
            comm,
            at,
            owner,
            layers: Vec::new(),
            slices: Slices::default(),
            done: 0,
        }
    }

    /// This rank's keys and values of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.layers
    }

    /// Starts to pass queries on; `rows` rows of them will arrive.
    fn pass_on(&mut self, send: &Tensor, rows: usize) -> Result<Pending> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        let [pending] = start_all(self.comm, [Start::Exchange { send, to, from, rows }])?;
        Ok(pending)
    }

    fn received(&mut self, pending: Pending) -> Result<Tensor> {
        Ok(self.comm.wait(pending)?.swap_remove(0))
    }

    /// Attention of the queries `q`, which are the rows `rows[rank]` of this rank's; every rank
    /// calls it with the rows of all ranks.
    fn round(&mut self, layer: usize, q: &Tensor, rows: &[Range<usize>]) -> Result<Partial> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (k, v) = self.layers.last().expect("the layer's keys were taken").clone();
        let dtype = self.math.dtype;
        let keys = [Keys { k, v, at: self.at_keys.clone() }];
        // Queries that travel are rounded to the model's dtype; this rank's own are not.
        let (mut visiting, mut queries) = (cast(q, dtype)?, q.clone());
        let (mut outs, mut lses, mut going_home) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..size {
            let holder = (rank + size - step) % size;
            let coming = match step + 1 < size {
                true => Some(self.pass_on(&visiting, rows[(holder + size - 1) % size].len())?),
                false => None,
            };
            let asking = (&queries, rows[holder].clone());
            let part = self.slices.attend(self.math.layer(layer), asking, &self.at[holder], &keys)?;
            if step == 0 {
                (outs, lses) = (vec![part.out], vec![part.lse]);
            } else {
                let (to, from, rows) = (holder, (rank + step) % size, rows[rank].len());
                let out = cast(&part.out, dtype)?;
                let starts = [&out, &part.lse].map(|send| Start::Exchange { send, to, from, rows });
                going_home.push(start_all(self.comm, starts)?);
            }
            if let Some(pending) = coming {
                visiting = self.received(pending)?;
                queries = cast(&visiting, q.dtype())?;
            }
        }
        for [out, lse] in going_home {
            outs.push(self.received(out)?);
            lses.push(self.received(lse)?);
        }
        let wide = outs[0].dtype();
        merge_all(outs, lses, wide)
    }

    /// The largest number of rows of any rank.
    fn most_rows(&self) -> usize {
        self.at.iter().map(Positions::len).max().unwrap_or(0)
    }
}

impl Attention for RingQueries<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        self.take(layer, k, v)?;
        let rows: Vec<Range<usize>> = self.at.iter().map(|at| 0..at.len()).collect();
        self.round(layer, &q, &rows)
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        Some(self)
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        let owner = self.owner;
        let asked = |(rank, at): (usize, &Positions)| last_of(at, usize::from(rank == owner));
        self.at = self.at.iter().enumerate().map(asked).collect();
        usize::from(self.comm.rank() == owner)
    }
}

impl SlicedAttention for RingQueries<'_> {
    type Error = Error;

    fn take(&mut self, _layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.layers.push((k, v));
        self.done = 0;
        Ok(())
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        let parts = self.math.progress.slices();
        let count = slice_count(self.most_rows().div_ceil(parts), self.math.slice_rows);
        let (part, slice) = (self.done / count, self.done % count);
        let of = |at: &Positions| slice_of_part(at.len(), (part, parts), (slice, count));
        let all: Vec<Range<usize>> = self.at.iter().map(of).collect();
        assert_eq!(all[self.comm.rank()], rows, "slice {slice} of {count} in part {part} of {parts}");
        self.done += 1;
        self.round(layer, &q, &all)
    }

    fn end(&mut self, _layer: usize) -> Result<()> {
        Ok(())
    }

    fn common_rows(&mut self) -> Option<usize> {
        Some(self.most_rows())
    }
}
