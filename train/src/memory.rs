//! The memory that a training needs beside the model: predicted before it starts.

use tributary_model::{AdapterKind, Config};

use crate::error::Result;
use crate::lookahead::KEPT_BYTES;
use crate::reader::{Objective, Reader};
use crate::sample::Sample;
use crate::wish::Wish;

/// Tensors of a row's width that a layer keeps for its backward pass: the residual before and after
/// attention, both normalised forms.
const KEPT_HIDDEN: usize = 6;
/// Tensors of the queries' width: queries, turned ones, attention's answer with and without
/// log-sum-exp, flat.
const KEPT_QUERIES: usize = 5;
/// Tensors of the keys' width: keys and values, with the prefix's before them, rotated, and again
/// for the query.
const KEPT_KEYS: usize = 9;
/// Tensors of the MLP's width: gate, up and their product.
const KEPT_MLP: usize = 3;
/// Factor for gradients in computation.
const GRADIENTS: f64 = 1.25;
/// Bytes that the allocator holds for each byte in use: blocks of the last sample are kept for a
/// while and have other sizes. Measured on the demo model with two ranks, where it was 2.2.
const HELD: f64 = 2.4;

/// Tensors of the prompt's and of the looking rows' length that a layer keeps for each head:
/// logits, scaled ones, their differences from the log-sum-exp and from the largest, exponentials,
/// and gradients in computation.
const KEPT_SCORES: usize = 8;

/// Tensors of a row's width that a layer keeps more of where its weights are learned too: inputs of
/// its norms.
const KEPT_HIDDEN_LEARNED: usize = 6;

/// Tensors of the vocabulary's width for each row whose next token is guessed: logits, shifted
/// ones, exponentials, logarithms, and their gradients.
const KEPT_LOGITS: usize = 6;

/// Bytes of a weight that is learned: the optimizer's value and means, gradients as they are summed
/// and sent, and the tensors' own.
const LEARNED_WEIGHT_BYTES: usize = 80;

/// The memory that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Bytes that one rank keeps of its longest sample between the forward and the backward pass,
    /// with gradients in computation.
    pub activation_bytes: u64,
    /// Bytes of the teacher's results that each rank keeps from one epoch to the next: its
    /// distributions of all samples' answers; or its shares of all samples' prompts, and the
    /// prompts' keys and values where there is room.
    pub teacher_bytes: u64,
}

impl Need {
    /// The need of one rank, computed in numbers of `size` bytes.
    ///
    /// # Errors
    /// Returns an error if the folder to resume from is no checkpoint.
    pub fn of(model: &Config, samples: &[Sample], wish: &Wish, size: usize) -> Result<Self> {
        Ok(match wish {
            Wish::Adapter(kind @ AdapterKind::KvPacket { .. }) => {
                Self::of_packet(model, samples, kind.rows() as usize, size)
            }
            Wish::Adapter(kind @ AdapterKind::Lookahead { .. }) => {
                Self::of_look_ahead(model, samples, kind.rows() as usize, size)
            }
            Wish::Auxiliary(reader) => Self::of_auxiliary((model, &reader.config(model)?), samples, reader, size),
        })
    }

    /// Numbers with `extra` rows around each chunk, all of which take a gradient.
    fn of_packet(model: &Config, samples: &[Sample], extra: usize, size: usize) -> Self {
        let rows = |sample: &Sample| {
            let around = sample.chunks.len() * extra;
            sample.context_tokens() + around + sample.query.len() + sample.answer_tokens
        };
        let longest = samples.iter().map(rows).max().unwrap_or(0);
        let activations = (longest * kept_of_row(model) * model.layers * size) as f64 * GRADIENTS * HELD;
        let answers: usize = samples.iter().map(|sample| sample.answer_tokens).sum();
        Self { activation_bytes: activations as u64, teacher_bytes: (answers * model.vocab * size) as u64 }
    }

    /// Numbers with `extra` rows after the prompt, which alone take a gradient; the prompt's pass
    /// frees each layer before the next.
    fn of_look_ahead(model: &Config, samples: &[Sample], extra: usize, size: usize) -> Self {
        let rows = |sample: &Sample| sample.prompt().len();
        let longest = samples.iter().map(rows).max().unwrap_or(0);
        let scores = KEPT_SCORES * model.heads * longest;
        let looking = extra * (kept_of_row(model) + scores) * model.layers;
        let keys_of_row = keys_of_row(model);
        let activations = (looking + reading(model, longest)) as f64 * size as f64 * GRADIENTS * HELD;
        let prompts: usize = samples.iter().map(rows).sum();
        let kept = (prompts * keys_of_row * size).min(KEPT_BYTES) + prompts * model.layers * model.kv_heads * size;
        Self { activation_bytes: activations as u64, teacher_bytes: kept as u64 }
    }

    /// With a whole model that is learned, which reads the chunks of a sample side by side, or its
    /// prompt and answer.
    fn of_auxiliary((model, own): (&Config, &Config), samples: &[Sample], reader: &Reader, size: usize) -> Self {
        let beside = |sample: &Sample| sample.context_tokens() + sample.chunks.len() * (1 + sample.query.len());
        let kept = kept_of_row(own) + KEPT_HIDDEN_LEARNED * own.hidden;
        let need = |sample: &Sample| {
            let look = KEPT_SCORES * sample.query.len() * sample.context_tokens();
            let learning = match reader.objective {
                Objective::Select => beside(sample) * kept * own.layers + look * own.heads,
                Objective::Language => reader.longest(sample) * (kept * own.layers + KEPT_LOGITS * own.vocab),
            };
            learning + reading(model, sample.prompt().len()) + look * model.heads
        };
        let most = samples.iter().map(need).max().unwrap_or(0);
        let activations = (most * size) as f64 * GRADIENTS * HELD;
        let weights = own.parameters() * LEARNED_WEIGHT_BYTES;
        let rows: usize = samples.iter().map(Sample::context_tokens).sum();
        Self { activation_bytes: activations as u64 + weights as u64, teacher_bytes: (rows * size) as u64 }
    }

    /// All ranks of a process together.
    pub fn bytes(self, ranks: usize) -> u64 {
        ranks as u64 * (self.activation_bytes + self.teacher_bytes)
    }
}

/// Numbers of the keys and values of a row, in all layers.
fn keys_of_row(model: &Config) -> usize {
    2 * model.kv_heads * model.head_dim * model.layers
}

/// Numbers that a prompt's pass holds, which frees each layer before the next.
fn reading(model: &Config, rows: usize) -> usize {
    rows * (kept_of_row(model) + keys_of_row(model))
}

/// Numbers that a layer keeps of a row for its backward pass.
fn kept_of_row(model: &Config) -> usize {
    let (queries, keys) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
    KEPT_HIDDEN * model.hidden + KEPT_QUERIES * queries + KEPT_KEYS * keys + KEPT_MLP * model.intermediate
}
