//! A whole prompt on one rank, and tokens that are written behind it one at a time, as a draft
//! model reads and writes: rows see themselves and all before them.

use candle_core::Tensor;
use tributary_kernels::{Keys, Positions};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::GrowingBlock;

/// Rows: the prompt's, all at once, and then each token that was written, alone.
pub struct Writing {
    math: Math,
    /// Where the rows that pass through stand.
    at: Positions,
    /// Per layer, the prompt's keys, turned to their positions, and values.
    prompt: Vec<Keys>,
    written: GrowingBlock,
    is_reading: bool,
}

impl Writing {
    /// With `math` of the model that writes, for a prompt of so many rows, which pass through
    /// first, and at most so many tokens behind it.
    pub fn new(math: Math, prompt_rows: usize, most: usize) -> Self {
        let at = Positions::run(0, prompt_rows);
        Self { math, at, prompt: Vec::new(), written: GrowingBlock::new(most), is_reading: true }
    }

    /// The prompt is read, or a token's row computed: the next pass is the row of one token more.
    pub fn begin_row(&mut self) {
        let prompt_rows = self.prompt[0].at.len() as u32;
        self.at = Positions::run(if self.is_reading { prompt_rows } else { self.at.order()[0] + 1 }, 1);
        self.written.begin_row(|rows| Positions::run(prompt_rows + rows.start, rows.len()));
        self.is_reading = false;
    }
}

impl Attention for Writing {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Tensor> {
        let asking = last_of(&self.at, q.dim(0)?);
        let (q, k) = (self.math.rope.apply(&q, &asking)?, self.math.rope.apply(&k, &self.at)?);
        let mut keys = Vec::new();
        if self.is_reading {
            self.prompt.push(Keys { k, v, at: self.at.clone() });
        } else {
            self.written.push(layer, &k, &v)?;
            keys = self.written.keys(layer)?;
        }
        keys.insert(0, self.prompt[layer].clone());
        Ok(self.math.attend_rotated(&q, &asking, &keys)?.out)
    }

    /// Of the last layer the newest row alone is wanted.
    fn last_layer(&mut self, rows: usize) -> usize {
        rows.min(1)
    }
}
