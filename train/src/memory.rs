//! The memory that a training needs beside the model: predicted before it starts.

use tributary_worker::Config;

use crate::sample::Sample;

/// Tensors of a row's width that a layer keeps for its backward pass: the residual before and behind attention, both normalised forms.
const KEPT_HIDDEN: usize = 6;
/// Tensors of the queries' width: queries, turned ones, attention's answer with and without log-sum-exp, flat.
const KEPT_QUERIES: usize = 5;
/// Tensors of the keys' width: keys and values, with the prefix's before them, turned, and once more for the query.
const KEPT_KEYS: usize = 9;
/// Tensors of the MLP's width: gate, up and their product.
const KEPT_MLP: usize = 3;
/// What gradients that are under way take beside them.
const GRADIENTS: f64 = 1.25;
/// What the allocator has from the system for each byte that is in use: blocks of the sample before are kept for a while and have other sizes. Measured on the demo
/// model with two ranks, where it was 2.2.
const HELD: f64 = 2.4;

/// The memory that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// What one rank keeps of its longest sample between the forward and the backward pass, with gradients under way.
    pub activation_bytes: u64,
    /// What the teacher has said to all samples, once a rank.
    pub teacher_bytes: u64,
}

impl Need {
    /// The need of one rank, for samples with `extra` rows around each chunk, computed in numbers of `size` bytes.
    pub fn of(model: &Config, samples: &[Sample], extra: usize, size: usize) -> Self {
        let rows = |sample: &Sample| {
            let around = sample.chunks.len() * extra;
            sample.context_tokens() + around + sample.query.len() + sample.answer_tokens
        };
        let longest = samples.iter().map(rows).max().unwrap_or(0);
        let (queries, keys) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
        let kept =
            KEPT_HIDDEN * model.hidden + KEPT_QUERIES * queries + KEPT_KEYS * keys + KEPT_MLP * model.intermediate;
        let activations = (longest * kept * model.layers * size) as f64 * GRADIENTS * HELD;
        let answers: usize = samples.iter().map(|sample| sample.answer_tokens).sum();
        Self { activation_bytes: activations as u64, teacher_bytes: (answers * model.vocab * size) as u64 }
    }

    /// All ranks of a process together.
    pub fn bytes(self, ranks: usize) -> u64 {
        ranks as u64 * (self.activation_bytes + self.teacher_bytes)
    }
}
