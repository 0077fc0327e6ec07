//! KV Packet: vectors before and after every chunk, learned such that separately prefilled chunks
//! are read as one context.
//!
//! The student runs every chunk as header, tokens and trailer after the prefix, each in its own
//! segment. The keys then follow each other at their places in the whole prompt, and the query with
//! the teacher's answer attends to them; nothing is recomputed. The loss is the mean over the
//! answer's tokens of KL(teacher ‖ student); it depends on the vectors alone.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;

use candle_core::{DType, Tensor, Var};
use tributary_kernels::{Positions, SHARED, gather, join};
use tributary_model::{Adapter, AdapterKind, Model, Progress, Rows};

use crate::error::Result;
use crate::normal::Normal;
use crate::pass::{Layers, Pass, one_behind_other};
use crate::pupil::{Made, Pupil, write_adapter};
use crate::sample::Sample;
use crate::teacher::{Taught, log_softmax, teach};

/// The spread of the first vectors.
const SPREAD: f64 = 0.02;

/// The learned vectors, and the teacher's answers so far.
pub struct Packet {
    head: usize,
    tail: usize,
    vectors: Var, // [head + tail, hidden]
    taught: Mutex<HashMap<usize, Taught>>,
}

impl Packet {
    /// `head` and `tail` vectors of a width, from the normal distribution N(0, 0.02) of a seed, in
    /// `dtype`.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn new(head: usize, tail: usize, model: &dyn Model, seed: u64) -> Result<Self> {
        let hidden = model.config().hidden;
        let shape = (head + tail, hidden);
        let values = Normal::new(seed).take(SPREAD, shape.0 * hidden);
        let dtype = if model.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let vectors = Tensor::from_vec(values, shape, model.device())?.to_dtype(dtype)?;
        Ok(Self { head, tail, vectors: Var::from_tensor(&vectors)?, taught: Mutex::default() })
    }

    fn kind(&self) -> AdapterKind {
        AdapterKind::KvPacket { head: self.head as u32, tail: self.tail as u32 }
    }

    /// The rows of all chunks, packed: their sources, and the position of each after `prefix` rows
    /// in its own chunk.
    fn pack(&self, sample: &Sample, prefix: u32) -> (Vec<u32>, Vec<u32>, Positions) {
        let (head, tail) = (self.head as u32, self.tail as u32);
        let (tokens, mut rows, mut places, mut segments) = (sample.context_tokens() as u32, vec![], vec![], vec![]);
        let mut next = 0;
        for (chunk, ids) in sample.chunks.iter().enumerate() {
            let from = rows.len();
            rows.extend(tokens..tokens + head);
            rows.extend(next..next + ids.len() as u32);
            rows.extend(tokens + head..tokens + head + tail);
            next += ids.len() as u32;
            places.extend(prefix..prefix + (rows.len() - from) as u32);
            segments.resize(rows.len(), chunk as u32);
        }
        let ids = sample.chunks.concat();
        (ids, rows, Positions::new(places.clone(), places, segments))
    }

    /// Keys of prefix and chunks, where the query will see them, and how many rows those are.
    fn context(&self, model: &dyn Model, sample: &Sample, progress: &Progress) -> Result<(Layers, u32)> {
        let prefix = sample.prefix.len() as u32;
        let shared = {
            let places: Vec<u32> = (0..prefix).collect();
            Positions::new(places.clone(), places, vec![SHARED; prefix as usize])
        };
        let none = Layers::new();
        let mut before = Layers::new();
        if prefix > 0 {
            let mut pass = Pass::new(model, shared.clone(), &none, 0, progress)?;
            pass.run_to_keys(model, model.embed(&sample.prefix)?)?;
            before = pass.keys_at(&shared);
        }
        let (ids, rows, apart) = self.pack(sample, prefix);
        let tokens = model.embed(&ids)?.hidden;
        let vectors = self.vectors.to_dtype(tokens.dtype())?;
        let hidden = gather(&join(&[&tokens, &vectors], 0)?, &rows)?;
        let mut pass = Pass::new(model, apart, &before, 0, progress)?;
        pass.run_to_keys(model, Rows::new(hidden))?;
        let together = pass.keys_at(&Positions::run(prefix, rows.len()));
        Ok((one_behind_other(&before, together), prefix + rows.len() as u32))
    }

    /// The student's logits of each token of `answer`, `[answer, vocab]`.
    ///
    /// # Errors
    /// Returns an error if an id is outside the vocabulary, or if the model fails.
    pub fn logits(&self, model: &dyn Model, sample: &Sample, answer: &[u32], progress: &Progress) -> Result<Tensor> {
        let (context, start) = self.context(model, sample, progress)?;
        let given = &answer[..answer.len().saturating_sub(1)];
        let ids = [&sample.query, given].concat();
        let at = Positions::run(start, ids.len());
        let mut pass = Pass::new(model, at, &context, given.len() + 1, progress)?;
        let last = model.prompt(model.embed(&ids)?, &mut pass)?;
        Ok(model.logits(&last)?)
    }

    /// The student's own greedy answer, of as many tokens as `length`: for a quick look at the
    /// result.
    ///
    /// # Errors
    /// Fails as [`logits`](Self::logits) does.
    pub fn answer(&self, model: &dyn Model, sample: &Sample, length: usize, progress: &Progress) -> Result<Vec<u32>> {
        let mut answer: Vec<u32> = Vec::new();
        while answer.len() < length && !answer.last().is_some_and(|token| model.config().eos.contains(token)) {
            let given = [&answer[..], &[0]].concat();
            let logits = self.logits(model, sample, &given, progress)?.detach();
            let rows = logits.argmax(1)?.to_vec1::<u32>()?;
            answer.extend(rows.last());
        }
        Ok(answer)
    }
}

impl Pupil for Packet {
    fn name(&self) -> &'static str {
        self.kind().name()
    }

    fn identity(&self) -> serde_json::Value {
        serde_json::json!(self.kind())
    }

    fn loss_name(&self) -> &'static str {
        "mean KL(teacher, student) of an answer's tokens"
    }

    fn parameters(&self) -> Vec<Var> {
        vec![self.vectors.clone()]
    }

    fn loss(&self, model: &dyn Model, (number, sample): (usize, &Sample), progress: &Progress) -> Result<Tensor> {
        let known = self.taught.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        let taught = match known {
            Some(taught) => taught,
            None => {
                let taught = teach(model, sample, progress)?;
                let mut all = self.taught.lock().unwrap_or_else(PoisonError::into_inner);
                all.insert(number, taught.clone());
                taught
            }
        };
        let student = log_softmax(&self.logits(model, sample, &taught.answer, progress)?)?;
        let teacher = &taught.log_probabilities;
        let apart = (teacher.exp()? * (teacher - student)?)?.sum_all()?;
        Ok((apart / taught.answer.len() as f64)?)
    }

    fn write(&self, folder: &Path, made: &Made<'_>) -> Result<()> {
        write_adapter(self.kind(), &Adapter::from(self.vectors.as_tensor().clone()), folder, made)
    }
}
