//! A whole prompt on one rank, and tokens written after it one at a time, for a draft model. Rows
//! see themselves and all rows before them.

use tributary_kernels::{Keys, Partial, Positions};
use tributary_model::{Attention, Progress, Qkv};

use super::rounds::last_of;
use crate::context::Math;
use crate::error::{Error, Result};
use crate::kv::GrowingBlock;

/// Rows: the prompt's, all at once, then each written token alone.
pub struct Writing {
    math: Math,
    /// Positions of the rows in the current pass.
    at: Positions,
    /// Per layer, the prompt's keys, rotated to their positions, and values.
    prompt: Vec<Keys>,
    written: GrowingBlock,
    is_reading: bool,
}

impl Writing {
    /// With `math` of the draft model, for a prompt of `prompt_rows` rows, which are computed
    /// first, and at most `most` tokens after it.
    pub fn new(math: Math, prompt_rows: usize, most: usize) -> Self {
        let at = Positions::run(0, prompt_rows);
        Self { math, at, prompt: Vec::new(), written: GrowingBlock::new(most), is_reading: true }
    }

    /// Begins the row of the next token, after the prompt or a token's row has been computed.
    pub fn begin_row(&mut self) {
        let prompt_rows = self.prompt[0].at.len() as u32;
        self.at = Positions::run(if self.is_reading { prompt_rows } else { self.at.order()[0] + 1 }, 1);
        self.written.begin_rows(1, |rows| Positions::run(prompt_rows + rows.start, rows.len()));
        self.is_reading = false;
    }
}

impl Attention for Writing {
    type Error = Error;

    fn progress(&self) -> &Progress {
        &self.math.progress
    }

    fn attend(&mut self, layer: usize, Qkv { q, k, v }: Qkv) -> Result<Partial> {
        let asking = last_of(&self.at, q.dim(0)?);
        let (q, k) = self.math.layer(layer).turned((&q, &asking), (&k, &self.at))?;
        let mut keys = Vec::new();
        if self.is_reading {
            self.prompt.push(Keys { k, v, at: self.at.clone() });
        } else {
            self.written.push(layer, &k, &v)?;
            keys = self.written.keys(layer)?;
        }
        keys.insert(0, self.prompt[layer].clone());
        self.math.layer(layer).attend_rotated(&q, &asking, &keys)
    }

    /// Only the newest row is needed of the last layer.
    fn last_layer(&mut self, rows: usize) -> usize {
        rows.min(1)
    }
}
