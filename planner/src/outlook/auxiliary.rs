//! A model beside the main one that reads a hypothetical request. Its tokens are the main model's.

use tributary_methods::AuxiliaryReading;
use tributary_protocol::{Auxiliary, AuxiliaryPrompt};

use crate::ModelShape;
use crate::cost::beside;

/// What a model of this shape reads of a request with `prefix` tokens, chunks of these lengths and
/// a query of `query` tokens, and what that costs: the whole prompt, or each chunk but the first
/// `skipped`.
pub fn auxiliary(
    reading: AuxiliaryReading,
    shape: &ModelShape,
    [prefix, query]: [usize; 2],
    lengths: &[usize],
    skipped: usize,
) -> Auxiliary {
    let prompt = |before: usize, first_row: usize, rows: usize| {
        let stands_for = (first_row..first_row + rows).map(|row| row as u32..row as u32 + 1);
        let stands_for = std::iter::repeat_n(0..0, before).chain(stands_for).collect();
        AuxiliaryPrompt { ids: vec![0; before + rows + query], query, stands_for }
    };
    let prompts = match reading {
        AuxiliaryReading::Chunks => {
            let mut first_row = prefix;
            let of_chunk = |&length: &usize| {
                first_row += length;
                prompt(0, first_row - length, length)
            };
            lengths.iter().map(of_chunk).skip(skipped).collect()
        }
        AuxiliaryReading::Prompt { .. } => vec![prompt(prefix, prefix, lengths.iter().sum())],
    };
    let longest = prompts.iter().map(|prompt| prompt.ids.len()).max().unwrap_or(0);
    let written = reading.written();
    let cost = match reading {
        AuxiliaryReading::Chunks => beside::reading(shape, longest),
        AuxiliaryReading::Prompt { .. } => beside::writing(shape, longest + written as usize),
    };
    Auxiliary { model: "auxiliary".to_owned(), prompts, written, cost }
}
