//! Exact attention of a sequence spread over ranks: keys and values travel round the ring, point to
//! point, while the rank attends to those it holds. With the zigzag split every rank has the same
//! work: kernels skip the half whose positions are in the future.

use candle_core::Tensor;
use tributary_comm::{Communicator, Pending, Start};
use tributary_kernels::{Keys, Partial, Positions};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::{last_of, start_all};
use super::slices::Slices;
use crate::context::Math;
use crate::error::{Error, Result};

/// Rows: this rank's shard of the sequence.
pub struct Ring<'a> {
    /// Kernels and constants.
    math: Math,
    /// Communicator with the other ranks.
    comm: &'a mut dyn Communicator,
    /// Positions of each rank's shard.
    at: Vec<Positions>,
    /// The rank that holds the prompt's last row.
    owner: usize,
    /// This rank's keys and values of every layer so far.
    layers: Vec<(Tensor, Tensor)>,
    slices: Slices,
}

impl<'a> Ring<'a> {
    /// The pass over ranks whose shards have the positions `at`; the prompt's last row is on
    /// `owner`.
    pub fn new(math: Math, comm: &'a mut dyn Communicator, at: Vec<Positions>, owner: usize) -> Self {
        assert_eq!(at.len(), comm.size(), "ranks with a shard");
        Self { math, comm, at, owner, layers: Vec::new(), slices: Slices::default() }
    }

    /// This rank's keys and values of every layer.
    pub fn into_layers(self) -> Vec<(Tensor, Tensor)> {
        self.layers
    }

    /// Starts to pass keys and values on; `rows` rows of them will arrive.
    fn pass_on(&mut self, k: &Tensor, v: &Tensor, rows: usize) -> Result<[Pending; 2]> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        start_all(self.comm, [k, v].map(|send| Start::Exchange { send, to, from, rows }))
    }

    fn receive(&mut self, pending: Pending) -> Result<Tensor> {
        Ok(self.comm.wait(pending)?.swap_remove(0))
    }
}

impl Attention for Ring<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let Qkv { q, mut k, mut v } = qkv;
        self.layers.push((k.clone(), v.clone()));
        let at = last_of(&self.at[rank], q.dim(0)?);
        let mut sum: Option<Partial> = None;
        for step in 0..size {
            let holder = (rank + size - step) % size;
            let next_rows = self.at[(holder + size - 1) % size].len();
            let coming = match step + 1 < size {
                true => Some(self.pass_on(&k, &v, next_rows)?),
                false => None,
            };
            let keys = Keys { k: k.clone(), v: v.clone(), at: self.at[holder].clone() };
            sum = Some(self.slices.attend_onto(self.math.layer(layer), sum, (&q, &at), &[keys])?);
            if let Some([next_k, next_v]) = coming {
                (k, v) = (self.receive(next_k)?, self.receive(next_v)?);
            }
        }
        Ok(sum.expect("a ring has at least one step"))
    }

    fn last_layer(&mut self, _rows: usize) -> usize {
        usize::from(self.comm.rank() == self.owner)
    }
}
