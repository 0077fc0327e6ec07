//! A request as it comes in, text or random tokens, and how it becomes token ids.

use tributary_coordinator::{Intake, Piece, Prepared, Request, prepare};

use crate::config::IntakeConfig;
use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::synthetic::Synthetic;

/// A request to be answered.
pub enum Question {
    /// Text.
    Text(Request),
    /// Random tokens from a seed.
    Random(Synthetic, u64),
}

impl Question {
    /// The request as token ids.
    ///
    /// # Errors
    /// The tokenizer's; a piece of text without a token.
    pub fn prepare(&self, folder: &ModelFolder, intake: &IntakeConfig) -> Result<Prepared> {
        let bos = folder.config.bos;
        match self {
            Question::Random(shape, seed) => {
                let limit = folder.config.max_positions;
                if shape.tokens() > limit {
                    return Err(Error::usage(format!(
                        "--synthetic {shape}: {} tokens, the model has {limit} positions",
                        shape.tokens()
                    )));
                }
                Ok(random(*shape, *seed, folder.config.vocab, bos))
            }
            Question::Text(request) => {
                let tokenizer = folder.tokenizer.as_ref().ok_or_else(|| Error::usage("text needs a tokenizer"))?;
                let template = folder.template.as_ref();
                let (chunking, prefix) = (&intake.chunking, &intake.prefix);
                Ok(prepare(request, &Intake { tokenizer, template, chunking, prefix, bos })?)
            }
        }
    }

    /// The expected answer, where the request names one.
    pub fn expected(&self) -> Option<&str> {
        match self {
            Question::Text(request) => request.answer.as_deref(),
            Question::Random(..) => None,
        }
    }
}

/// Token ids drawn uniformly from the vocabulary.
fn random(shape: Synthetic, seed: u64, vocab: usize, bos: Option<u32>) -> Prepared {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut draw = || {
        // splitmix64: any fixed, well mixed sequence would do.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab as u64) as u32
    };
    let mut ids = |count: usize| -> Vec<u32> { (0..count).map(|_| draw()).collect() };
    let chunk = |ids: Vec<u32>| Piece { ids, ..Piece::default() };
    Prepared {
        prefix: vec![bos.unwrap_or(0)],
        chunks: (0..shape.chunks).map(|_| chunk(ids(shape.chunk_tokens))).collect(),
        query: ids(shape.query_tokens),
        notes: vec!["synthetic request: random token ids from the seed".to_owned()],
    }
}
