//! LookaheadKV: rows after the prompt, with low-rank matrices that are active on them alone,
//! learned to look at the prompt as the model's own response will.
//!
//! The teacher reads the prompt in full and answers greedily; the rows of its answer that another
//! token follows give the attention that the prompt received from them. The student's rows have the
//! same positions, over the same keys. The loss is the mean over layers and KV heads of KL(teacher
//! ‖ student) of the shares of the prompt's rows. The prompt's rows do not see them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Tensor, Var};
use tributary_model::{Adapter, AdapterKind, Linear, LowRank, LowRankPair, Model, Progress, Rows};

use crate::error::Result;
use crate::gaze::{apart, gaze};
use crate::normal::Normal;
use crate::pass::Layers;
use crate::pupil::{Made, Pupil, write_adapter};
use crate::sample::Sample;
use crate::teacher::{prompt_keys, teach_and_keep};

/// The spread of the rows' first embeddings.
const SPREAD: f64 = 0.02;

/// Prompts' keys and values that a rank keeps from one epoch to the next, at most; those of other
/// prompts are computed again.
pub const KEPT_BYTES: usize = 512 << 20;

/// The matrices of one linear layer: A `[rank, in]` and B `[out, rank]`.
struct Matrices {
    at: (usize, Linear),
    a: Var,
    b: Var,
}

/// Known results of a sample.
#[derive(Clone)]
struct Known {
    /// The teacher's shares, a tensor a layer.
    taught: Vec<Tensor>,
    /// The prompt's keys, where there was room for them.
    keys: Option<Layers>,
}

/// Known results of the samples so far, and the bytes of the keys among them.
#[derive(Default)]
struct Memory {
    of: HashMap<usize, Known>,
    key_bytes: usize,
}

/// The rows and matrices that are learned.
pub struct Lookahead {
    alpha: f64,
    rank: usize,
    embeddings: Var, // [rows, hidden]
    matrices: Vec<Matrices>,
    memory: Mutex<Memory>,
}

impl Lookahead {
    /// `rows` rows of N(0, 0.02), and for every linear layer A of N(0, 1/√in) and B of 0, so that
    /// the rows begin as the model's own. A rank of 0 leaves the matrices away.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn new((rows, rank, alpha): (usize, usize, f64), model: &dyn Model, seed: u64) -> Result<Self> {
        let (config, device, mut normal) = (model.config(), model.device(), Normal::new(seed));
        let dtype = if model.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let mut drawn = |shape: (usize, usize), spread: f64| {
            let numbers = normal.take(spread, shape.0 * shape.1);
            Var::from_tensor(&Tensor::from_vec(numbers, shape, device)?.to_dtype(dtype)?)
        };
        let embeddings = drawn((rows, config.hidden), SPREAD)?;
        let mut matrices = Vec::new();
        for at in (0..config.layers).flat_map(|layer| Linear::ALL.map(|linear| (layer, linear))) {
            if rank > 0 {
                let (out, input) = at.1.shape(config);
                let a = drawn((rank, input), 1.0 / (input as f64).sqrt())?;
                matrices.push(Matrices { at, a, b: Var::zeros((out, rank), dtype, device)? });
            }
        }
        Ok(Self { alpha, rank, embeddings, matrices, memory: Mutex::default() })
    }

    fn kind(&self) -> AdapterKind {
        let rows = self.embeddings.dims()[0] as u32;
        AdapterKind::Lookahead { rows, rank: self.rank as u32, alpha: self.alpha }
    }

    /// The current adapter.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn adapter(&self) -> Result<Adapter> {
        let low_rank = if self.rank > 0 { Some(self.low_rank(self.embeddings.dtype())?) } else { None };
        Ok(Adapter { embeddings: self.embeddings.as_tensor().clone(), low_rank })
    }

    /// The current matrices, in `dtype`; gradients flow into them.
    fn low_rank(&self, dtype: DType) -> Result<Arc<LowRank>> {
        let scale = self.alpha / self.rank.max(1) as f64;
        let pair = |Matrices { at, a, b }: &Matrices| -> Result<_> {
            Ok((*at, LowRankPair { a: a.to_dtype(dtype)?, b: b.to_dtype(dtype)?, scale }))
        };
        Ok(Arc::new(LowRank::new(self.matrices.iter().map(pair).collect::<Result<Vec<_>>>()?)?))
    }

    /// The student's look at a sample's prompt: for every layer the logarithm of each row's share
    /// of the attention that the prompt receives, `[kv_heads, prompt]`.
    ///
    /// # Errors
    /// Returns an error if the model fails.
    pub fn shares(&self, model: &dyn Model, sample: &Sample, progress: &Progress) -> Result<Vec<Tensor>> {
        self.look(model, &prompt_keys(model, sample, progress)?, progress)
    }

    fn look(&self, model: &dyn Model, prompt: &Layers, progress: &Progress) -> Result<Vec<Tensor>> {
        let on_host = model.device().is_cpu() && model.dtype() != DType::F64;
        let dtype = if on_host { DType::F32 } else { model.dtype() };
        let rows = Rows::new(self.embeddings.to_dtype(dtype)?);
        let count = rows.len();
        gaze(model, rows.adapted(0..count, &self.low_rank(dtype)?), prompt, progress)
    }

    /// The teacher's result for the sample of a number, with the keys of its prompt.
    fn known(
        &self,
        model: &dyn Model,
        (number, sample): (usize, &Sample),
        progress: &Progress,
    ) -> Result<(Vec<Tensor>, Layers)> {
        let found = self.memory.lock().unwrap_or_else(PoisonError::into_inner).of.get(&number).cloned();
        if let Some(Known { taught, keys }) = found {
            let keys = keys.map_or_else(|| prompt_keys(model, sample, progress), Ok)?;
            return Ok((taught, keys));
        }
        let (said, keys) = teach_and_keep(model, sample, progress)?;
        let asking = &said.answer[..(said.answer.len() - 1).max(1)];
        let taught = gaze(model, model.embed(asking)?, &keys, progress)?;
        let size = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let bytes: usize = keys.iter().flatten().map(|keys| size(&keys.k) + size(&keys.v)).sum();
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = memory.key_bytes + bytes <= KEPT_BYTES;
        memory.key_bytes += if has_room { bytes } else { 0 };
        memory.of.insert(number, Known { taught: taught.clone(), keys: has_room.then(|| keys.clone()) });
        Ok((taught, keys))
    }
}

impl Pupil for Lookahead {
    fn name(&self) -> &'static str {
        self.kind().name()
    }

    fn identity(&self) -> serde_json::Value {
        serde_json::json!(self.kind())
    }

    fn loss_name(&self) -> &'static str {
        "mean KL(response, rows ahead) of layers and KV heads"
    }

    fn parameters(&self) -> Vec<Var> {
        let matrices = self.matrices.iter().flat_map(|Matrices { a, b, .. }| [a.clone(), b.clone()]);
        std::iter::once(self.embeddings.clone()).chain(matrices).collect()
    }

    fn loss(&self, model: &dyn Model, sample: (usize, &Sample), progress: &Progress) -> Result<Tensor> {
        let (taught, keys) = self.known(model, sample, progress)?;
        apart(&taught, &self.look(model, &keys, progress)?)
    }

    fn write(&self, folder: &Path, made: &Made<'_>) -> Result<()> {
        write_adapter(self.kind(), &self.adapter()?, folder, made)
    }
}
