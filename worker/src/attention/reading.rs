//! A whole prompt on one rank, as an auxiliary model reads it: its last rows look back in the last layer, and their attention to
//! each row is kept.

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, Reduce};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::Result;
use crate::model::{Attention, Model, Qkv, Rows};
use crate::progress::Progress;

/// Rows: a prompt's, one after the other.
pub struct Reading {
    math: Math,
    at: Positions,
    /// How many of the last rows look back.
    looking: usize,
    /// The layer in which they look back.
    layer: usize,
    read: Option<Tensor>,
}

impl Reading {
    /// Runs `rows` through `model` up to the attention of its last layer, with `math` of that model: what each row receives there
    /// from the last `looking` ones, summed, the mean over the heads. `[rows]` f32.
    ///
    /// # Errors
    /// The kernels'.
    pub fn of(model: &dyn Model, math: Math, rows: Rows, looking: usize) -> Result<Tensor> {
        let (count, layer) = (rows.len(), model.config().layers - 1);
        let mut this = Self { math, at: Positions::run(0, count), looking, layer, read: None };
        model.up_to_attention(layer, rows, &mut this)?;
        Ok(this.read.expect("the last layer was reached"))
    }
}

impl Attention for Reading {
    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        let Qkv { q, k, v } = qkv;
        let keys = [Keys { k, v, at: self.at.clone() }];
        if layer < self.layer {
            return Ok(self.math.attend(&q, &self.at, &keys)?.out);
        }
        let q = q.narrow(0, q.dim(0)? - self.looking, self.looking)?;
        let at = last_of(&self.at, self.looking);
        let partial = self.math.attend(&q, &at, &keys)?;
        self.read = Some(self.math.scores(&q, &at, &keys, &partial.lse, Reduce::Mass)?);
        Ok(partial.out)
    }
}
