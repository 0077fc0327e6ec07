//! CacheClip's auxiliary model: a whole small decoder, all of whose weights are learned: first the
//! language, then the rows of a context that the main model's query attends to.
//!
//! The teacher reads the whole prompt in full. The attention of the query's rows to each row of the
//! context, the mean over rows, heads and layers, is normalised over all chunks that selection
//! chooses from. The student reads every one of these chunks as a separate prompt with the query
//! after it. Its scores are the attention of its last layer's query rows to the chunk's rows,
//! normalised in the same way. The loss is KL(teacher ‖ student) over the rows of all chunks. It is
//! the KL of the chunks' shares and, weighted by those shares, the KL within each chunk: serving
//! ranks rows of different chunks in one order, so both have to be right.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{D, DType, Tensor, Var};
use tributary_kernels::Positions;
use tributary_model::{Learnable, Model, Progress};

use crate::error::Result;
use crate::paid::log_sum_exp;
use crate::pass::{Layers, Pass};
use crate::pupil::{Made, Pupil};
use crate::reader::{Objective, Reader};
use crate::received::{Prompts, received, top};
use crate::sample::Sample;
use crate::teacher::{log_softmax, teach};

/// The share of the rows by whose choice teacher and student are compared.
pub const TOP_SHARE: f64 = 0.2;

/// The model that is learned.
pub struct Auxiliary {
    reader: Reader,
    own: Learnable,
    /// A hash of its initial weights.
    first: String,
    shares: Mutex<HashMap<usize, Tensor>>,
    answers: Mutex<HashMap<usize, Vec<u32>>>,
}

/// The kept value of a sample, or one made now.
fn kept<T: Clone>(all: &Mutex<HashMap<usize, T>>, number: usize, make: impl FnOnce() -> Result<T>) -> Result<T> {
    let found = all.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
    found.map_or_else(
        || {
            let made = make()?;
            all.lock().unwrap_or_else(PoisonError::into_inner).insert(number, made.clone());
            Ok(made)
        },
        Ok,
    )
}

impl Auxiliary {
    /// An auxiliary model with the weights of the folder that it resumes from, or with random ones
    /// of a seed.
    ///
    /// # Errors
    /// Returns an error if the folder is no model's, or if a candle operation fails.
    pub fn new(reader: &Reader, model: &dyn Model, seed: u64) -> Result<Self> {
        let config = reader.config(model.config())?;
        let dtype = if model.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let own = match &reader.start {
            Some(folder) => Learnable::read(config, folder, dtype)?,
            None => Learnable::drawn(config, seed, dtype)?,
        };
        let mut hash = blake3::Hasher::new();
        for (name, var) in own.weights() {
            hash.update(name.as_bytes());
            for number in var.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()? {
                hash.update(&number.to_le_bytes());
            }
        }
        let first = hash.finalize().to_hex()[..32].to_owned();
        let (shares, answers) = (Mutex::default(), Mutex::default());
        Ok(Self { reader: reader.clone(), own, first, shares, answers })
    }

    /// Its scores: for each row of the chunks from the second on, the logarithm of the attention
    /// from the query's rows in this model's last layer, the mean over rows and heads.
    ///
    /// # Errors
    /// Returns an error if an id is unknown to it, or if a candle operation fails.
    pub fn readings(&self, sample: &Sample, progress: &Progress) -> Result<Tensor> {
        let (model, mut prompts) = (self.own.model(), Prompts::default());
        let before: Vec<u32> = model.config().bos.into_iter().collect();
        sample.chunks.iter().skip(1).for_each(|chunk| prompts.add(&before, chunk, &sample.query));
        let last = model.config().layers - 1;
        Ok(received(model, &prompts, last..last + 1, progress)?.remove(0))
    }

    /// The teacher's shares of the same rows, as logarithms, on the host.
    fn taught(&self, model: &dyn Model, (number, sample): (usize, &Sample), progress: &Progress) -> Result<Tensor> {
        kept(&self.shares, number, || {
            let (prompt, context) = (sample.prompt(), sample.context_tokens());
            let (all, query) = (prompt.len(), sample.query.len());
            let from = all - query - context + sample.chunks.first().map_or(0, Vec::len);
            let mut prompts = Prompts::default();
            prompts.add(&prompt[..from], &prompt[from..all - query], &sample.query);
            let layers = received(model, &prompts, 0..model.config().layers, progress)?;
            let sum = log_sum_exp(&Tensor::stack(&layers, 0)?, 0)?.squeeze(0)?;
            let shares = normalised(&sum)?.to_device(self.own.model().device())?;
            Ok(shares.to_dtype(self.own.model().dtype())?.detach())
        })
    }

    /// The mean over the tokens of prompt and answer of −log of the probability that this model
    /// gives them.
    fn of_language(
        &self,
        model: &dyn Model,
        (number, sample): (usize, &Sample),
        progress: &Progress,
    ) -> Result<Tensor> {
        let answer = kept(&self.answers, number, || Ok(teach(model, sample, progress)?.answer))?;
        let text = [sample.prompt(), answer].concat();
        let (own, none, given) = (self.own.model(), Layers::new(), text.len() - 1);
        let mut pass = Pass::new(own, Positions::run(0, given), &none, given, progress)?;
        let rows = own.prompt(own.embed(&text[..given])?, &mut pass)?;
        let next = Tensor::from_slice(&text[1..], (given, 1), own.device())?;
        Ok(log_softmax(&own.logits(&rows)?)?.gather(&next, D::Minus1)?.mean_all()?.neg()?)
    }
}

/// Logarithms of shares: with a sum of exponentials of 1.
fn normalised(logarithms: &Tensor) -> Result<Tensor> {
    Ok(log_softmax(&logarithms.unsqueeze(0)?)?.squeeze(0)?)
}

fn numbers(logarithms: &Tensor) -> Result<Vec<f64>> {
    Ok(logarithms.detach().to_dtype(DType::F64)?.to_vec1()?)
}

impl Pupil for Auxiliary {
    fn name(&self) -> &'static str {
        "auxiliary"
    }

    fn identity(&self) -> serde_json::Value {
        serde_json::json!([self.name(), self.reader.objective, self.first])
    }

    fn loss_name(&self) -> &'static str {
        match self.reader.objective {
            Objective::Language => "mean -log p of the next token",
            Objective::Select => "KL(model's query attention, auxiliary's) of a context's rows",
        }
    }

    fn parameters(&self) -> Vec<Var> {
        self.own.weights().values().cloned().collect()
    }

    fn loss(&self, model: &dyn Model, sample: (usize, &Sample), progress: &Progress) -> Result<Tensor> {
        match self.reader.objective {
            Objective::Language => self.of_language(model, sample, progress),
            Objective::Select => {
                let taught = self.taught(model, sample, progress)?;
                let learned = normalised(&self.readings(sample.1, progress)?)?;
                Ok((taught.exp()? * (&taught - learned)?)?.sum_all()?)
            }
        }
    }

    /// The Jaccard index of the best rows by the teacher's and by its own word.
    fn agreement(&self, model: &dyn Model, sample: (usize, &Sample), progress: &Progress) -> Result<Option<f64>> {
        let taught = top(&numbers(&self.taught(model, sample, progress)?)?, TOP_SHARE);
        let own = top(&numbers(&self.readings(sample.1, progress)?)?, TOP_SHARE);
        let shared = taught.iter().filter(|row| own.binary_search(row).is_ok()).count();
        Ok(Some(shared as f64 / (taught.len() + own.len() - shared).max(1) as f64))
    }

    fn write(&self, folder: &Path, made: &Made<'_>) -> Result<()> {
        self.own.write(folder)?;
        self.reader.write(folder, made.model)
    }
}
