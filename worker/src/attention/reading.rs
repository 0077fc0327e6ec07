//! A whole prompt on one rank, for the reading of an auxiliary model: the attention of its last
//! rows to each row in the last layer is kept, or in the last one without a sliding window.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use candle_core::Tensor;
use tributary_kernels::{Keys, Partial, Positions, Reduce};
use tributary_model::{Attention, Model, Progress, Qkv, Rows};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};

/// State shared by the reading thread and the waiting one.
#[derive(Debug, Default)]
pub struct Watched {
    /// Number of layers read and tiles done so far.
    pub steps: Arc<AtomicUsize>,
    /// Whether the waiting thread has given up.
    pub ended: AtomicBool,
}

/// Rows: a prompt's, one after the other.
pub struct Reading<'a> {
    math: Math,
    at: Positions,
    /// Number of last rows that look back.
    looking: usize,
    /// Number of the layer in which they look back.
    layer: usize,
    read: Option<Tensor>,
    watched: &'a Watched,
}

impl Watched {
    /// Counts a step of the reading thread.
    ///
    /// # Errors
    /// Returns [`Error::Bug`] if the waiting thread has given up.
    pub fn step(&self) -> Result<()> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Error::Bug("the reading has no waiting thread"));
        }
        self.steps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<'a> Reading<'a> {
    /// Runs `rows` through `model` up to the attention of its last layer without a sliding window,
    /// with `math` of that model. Returns the attention that each row receives there from the last
    /// `looking` ones: the sum over these of the mean over heads, `[rows]` f32.
    ///
    /// # Errors
    /// Returns an error if a kernel fails. Returns [`Error::Bug`] if the waiting thread has given
    /// up.
    pub fn of(model: &dyn Model, math: Math, rows: Rows, looking: usize, watched: &'a Watched) -> Result<Tensor> {
        let scored = math.scored(&(0..model.config().layers));
        let (count, layer) = (rows.len(), scored.last().copied().unwrap_or(0));
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

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        self.watched.step()?;
        let Qkv { q, k, v } = qkv;
        let keys = [Keys { k, v, at: self.at.clone() }];
        if layer < self.layer {
            return self.math.layer(layer).attend(&q, &self.at, &keys);
        }
        let q = q.narrow(0, q.dim(0)? - self.looking, self.looking)?;
        let at = last_of(&self.at, self.looking);
        let partial = self.math.layer(layer).attend(&q, &at, &keys)?;
        self.read = Some(self.math.layer(layer).scores(&q, &at, &keys, &partial.lse, Reduce::Mass)?);
        Ok(partial)
    }
}
