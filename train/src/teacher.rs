//! The teacher: the model itself, which reads the whole prompt in full and continues greedily.

use candle_core::{D, Tensor};
use tributary_kernels::{Keys, Positions};
use tributary_model::{Model, Progress, Rows};

use crate::error::Result;
use crate::pass::{Layers, Pass, one_behind_other};
use crate::sample::Sample;

/// The teacher's result for a sample.
#[derive(Debug, Clone)]
pub struct Taught {
    /// Its greedy continuation: as many tokens as were asked for, fewer where it ends the text.
    pub answer: Vec<u32>,
    /// The logarithms of its probabilities of each token of the answer, `[answer, vocab]`.
    pub log_probabilities: Tensor,
}

/// Reads a sample's prompt in full and continues.
///
/// # Errors
/// Returns an error if an id is outside the vocabulary, or if the model fails.
pub fn teach(model: &dyn Model, sample: &Sample, progress: &Progress) -> Result<Taught> {
    Ok(teach_and_keep(model, sample, progress)?.0)
}

/// The same, with the keys and values that the prompt leaves in every layer.
///
/// # Errors
/// Fails as [`teach`] does.
pub fn teach_and_keep(model: &dyn Model, sample: &Sample, progress: &Progress) -> Result<(Taught, Layers)> {
    let prompt = sample.prompt();
    let (mut before, mut rows, mut start) = (Layers::new(), model.embed(&prompt)?, 0);
    let (mut answer, mut distributions) = (Vec::new(), Vec::new());
    loop {
        let (count, at) = (rows.len(), Positions::run(start, rows.len()));
        let mut pass = Pass::new(model, at.clone(), &before, 1, progress)?;
        let last = model.prompt(rows, &mut pass)?;
        let own = pass.keys_at(&at);
        let distribution = log_softmax(&model.logits(&last)?)?;
        let token = distribution.argmax(D::Minus1)?.to_vec1::<u32>()?[0];
        distributions.push(distribution);
        before = one_behind_other(&before, own);
        answer.push(token);
        if answer.len() >= sample.answer_tokens || model.config().eos.contains(&token) {
            let log_probabilities = Tensor::cat(&distributions, 0)?.detach();
            let prompt_keys = before.iter().map(|blocks: &Vec<Keys>| blocks[..1].to_vec()).collect();
            return Ok((Taught { answer, log_probabilities }, prompt_keys));
        }
        start += count as u32;
        rows = Rows::new(model.embed(&[token])?.hidden);
    }
}

/// Keys and values of every layer of the prompt of a sample, the same bits as [`teach_and_keep`]
/// gives.
///
/// # Errors
/// Fails as [`teach`] does.
pub fn prompt_keys(model: &dyn Model, sample: &Sample, progress: &Progress) -> Result<Layers> {
    let (prompt, none) = (sample.prompt(), Layers::new());
    let at = Positions::run(0, prompt.len());
    let mut pass = Pass::new(model, at.clone(), &none, 1, progress)?;
    model.prompt(model.embed(&prompt)?, &mut pass)?;
    Ok(pass.keys_at(&at))
}

/// The logarithms of the softmax of each row, `[rows, n]`.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn log_softmax(logits: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)
}
