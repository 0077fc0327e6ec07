//! A whole prompt on one rank, as an auxiliary model reads it: its last rows look back in the last
//! layer, and their attention to each row is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions, Reduce};
use tributary_model::{Attention, Model, Progress, Qkv, Rows};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};

/// What the thread that reads and the one that waits for it tell each other.
#[derive(Debug, Default)]
pub struct Watched {
    /// Layers read, and tiles done, so far.
    pub steps: Arc<AtomicUsize>,
    /// Nobody waits any more.
    pub ended: AtomicBool,
}

/// Rows: a prompt's, one after the other.
pub struct Reading<'a> {
    math: Math,
    at: Positions,
    /// How many of the last rows look back.
    looking: usize,
    /// The layer in which they look back.
    layer: usize,
    read: Option<Tensor>,
    watched: &'a Watched,
}

impl<'a> Reading<'a> {
    /// Runs `rows` through `model` up to the attention of its last layer, with `math` of that
    /// model: what each row receives there from the last `looking` ones, summed, the mean over the
    /// heads. `[rows]` f32.
    ///
    /// # Errors
    /// The kernels'; [`Error::Bug`] where nobody waits for it any more.
    pub fn of(model: &dyn Model, math: Math, rows: Rows, looking: usize, watched: &'a Watched) -> Result<Tensor> {
        let (count, layer) = (rows.len(), model.config().layers - 1);
        let mut this = Self { math, at: Positions::run(0, count), looking, layer, read: None, watched };
        model.up_to_attention(layer, rows, &mut this)?;
        Ok(this.read.expect("the last layer was reached"))
    }
}

impl Attention for Reading<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Tensor> {
        if self.watched.ended.load(Ordering::Relaxed) {
            return Err(Error::Bug("nobody waits for what is read"));
        }
        self.watched.steps.fetch_add(1, Ordering::Relaxed);
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
