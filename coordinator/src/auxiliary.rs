//! A model beside the main one, for the planner: its reading of a request or its writing after it,
//! and its cost.
//!
//! It reads chunks or the whole prompt. Of chunks, each that may be selected is a prompt of its
//! own: the model's beginning-of-sequence token if it has one, the chunk, the query. The whole
//! prompt has the template's text and the user's, as the main model's has. If its tokenizer is the
//! main model's, ids are taken as they are. Otherwise texts are encoded anew, and each new token
//! stands for the main tokenizer's tokens that share a character with it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tributary_planner::cost::beside;
use tributary_planner::{ModelShape, RequestSettings, Tokens, pictures};
use tributary_protocol::{Auxiliary, AuxiliaryCost, AuxiliaryPrompt, AuxiliaryReading, DraftModel, PSEUDO_TOKENS};

use crate::error::setting;
use crate::intake::Prepared;
use crate::query_words;
use crate::template::OwnedPart;
use crate::tokenize::{Piece, Tokenizer};
use crate::{Error, Result};

/// Option that names the folder of a model that reads.
const OPTION: &str = "--aux-model";
/// Option that names the folder of a model that writes.
pub const DRAFT_OPTION: &str = "--draft-model";

/// A model that reads contexts for the main one, or writes after its prompts.
pub struct AuxiliaryReader {
    /// Its name on the ranks.
    pub name: String,
    /// Its shape.
    pub shape: ModelShape,
    /// Its beginning-of-sequence token, if it has one.
    pub bos: Option<u32>,
    /// Its tokenizer; absent if it is the main model's.
    pub tokenizer: Option<Tokenizer>,
}

impl fmt::Debug for AuxiliaryReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own_tokenizer = self.tokenizer.is_some();
        f.debug_struct("AuxiliaryReader").field("name", &self.name).field("own_tokenizer", &own_tokenizer).finish()
    }
}

/// The models beside the main one: one that reads contexts for methods that need it, and one that
/// writes what evictions listen to. The latter's tokens must be the main model's. Clones share
/// them.
#[derive(Debug, Clone, Default)]
pub struct Readers {
    /// The one that reads.
    pub auxiliary: Option<Arc<AuxiliaryReader>>,
    /// The one that writes.
    pub draft_model: Option<Arc<AuxiliaryReader>>,
}

impl Readers {
    /// A request's tokens, with what these models read and write for it.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] for pictures with settings that are for texts alone, and the errors
    /// of [`AuxiliaryReader::read`] and [`AuxiliaryReader::writes`].
    pub fn tokens(&self, request: &Prepared, settings: &RequestSettings) -> Result<Tokens> {
        if request.picture_rows() > 0 {
            pictures::check_settings(settings)?;
        }
        let mut tokens = request.tokens();
        if let Some(excerpt) = settings.excerpt()? {
            tokens.text = query_words::hints(request, excerpt.named as usize);
        }
        if let Some((reader, reading)) = self.auxiliary.as_ref().zip(settings.auxiliary_reading()?) {
            tokens.auxiliary = vec![match reading {
                AuxiliaryReading::Chunks => {
                    // After a lead the first of several chunks may be selected too.
                    let several = !request.lead.is_empty() && request.chunks.len() > 1;
                    reader.read(request, usize::from(!settings.include_first_chunk && !several))?
                }
                AuxiliaryReading::Prompt { tokens, .. } => reader.read_prompt(request, tokens)?,
            }];
        }
        if let Some(writer) = self.draft_model.as_ref().filter(|_| settings.eviction.asks_draft_model()) {
            tokens.draft_model = Some(writer.writes(request, PSEUDO_TOKENS)?);
        }
        Ok(tokens)
    }

    /// The tokens of chunks that are prefilled ahead of use. No model reads or writes for them.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] for pictures with settings that are for texts alone.
    pub fn chunk_tokens(&self, request: &Prepared, settings: &RequestSettings) -> Result<Tokens> {
        if request.picture_rows() > 0 {
            pictures::check_chunk_settings(settings)?;
        }
        Ok(request.tokens())
    }
}

impl AuxiliaryReader {
    /// The plan's entry for a request: a prompt for each of its chunks but the first `skipped`.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] if the model cannot read the request: token ids with a
    /// different tokenizer, a text without tokens, unknown ids, or a prompt longer than its
    /// positions.
    pub fn read(&self, request: &Prepared, skipped: usize) -> Result<Auxiliary> {
        // With a single chunk nothing is selected, and nothing has to be read.
        let query = if request.chunks.len() > skipped { self.query(request)? } else { Vec::new() };
        let mut first_row = request.prefix.len();
        let mut prompts = Vec::new();
        for (number, chunk) in request.chunks.iter().enumerate() {
            if number >= skipped {
                let prompt = self.prompt(chunk, first_row as u32, &query);
                prompts.push(prompt.map_err(|wanted| self.refusal(format!("chunk {}: {wanted}", number + 1)))?);
            }
            first_row += chunk.ids.len();
        }
        let auxiliary = Auxiliary { model: self.name.clone(), prompts, written: 0, cost: AuxiliaryCost::default() };
        Ok(Auxiliary { cost: beside::reading(&self.shape, auxiliary.longest_prompt()), ..auxiliary })
    }

    /// The plan's entry for a request whose prompt it reads as a whole, and after which it writes
    /// at most `written` tokens.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_prompt(&self, request: &Prepared, written: u32) -> Result<Auxiliary> {
        let [mut ids, query] = self.around(request)?;
        if ids.is_empty() {
            ids.extend(self.bos);
        }
        let (mut stands_for, mut first_row) = (vec![0..0; ids.len()], request.prefix.len());
        for (number, chunk) in request.chunks.iter().enumerate() {
            let piece = self.piece(chunk, first_row as u32);
            let (read, rows) = piece.map_err(|wanted| self.refusal(format!("chunk {}: {wanted}", number + 1)))?;
            ids.extend(read);
            stands_for.extend(rows);
            first_row += chunk.ids.len();
        }
        ids.extend(&query);
        self.check_ids(&ids).map_err(|wanted| self.refusal(wanted))?;
        let (rows, positions) = (ids.len() + written as usize, self.shape.max_positions);
        if rows > positions {
            let wanted = format!(
                "it reads the whole prompt, {} tokens, and writes {written}; the model has {positions} positions",
                ids.len()
            );
            return Err(self.refusal(wanted));
        }
        let prompts = vec![AuxiliaryPrompt { ids, query: query.len(), stands_for }];
        Ok(Auxiliary { model: self.name.clone(), prompts, written, cost: beside::writing(&self.shape, rows) })
    }

    /// Its ids before the documents, and after them.
    fn around(&self, request: &Prepared) -> Result<[Vec<u32>; 2]> {
        let Some(tokenizer) = &self.tokenizer else { return Ok([request.prefix.clone(), request.query.clone()]) };
        let [before, after] = request.texts.as_ref().ok_or_else(|| self.refusal(NO_TEXT.to_owned()))?;
        let encoded = |parts: &[OwnedPart], starts: bool| {
            tokenizer.encode_parts(&parts.iter().map(OwnedPart::part).collect::<Vec<_>>(), starts, usize::MAX)
        };
        let (before, after) = (encoded(before, true)?, encoded(after, false)?);
        if after.is_empty() {
            return Err(self.refusal(NO_QUERY.to_owned()));
        }
        Ok([before, after])
    }

    /// The plan's entry for a request after whose prompt this model writes `tokens` tokens.
    ///
    /// # Errors
    /// Returns [`Error::Plan`] if the model does not know the request's tokens, or has too
    /// few positions.
    pub fn writes(&self, request: &Prepared, tokens: usize) -> Result<DraftModel> {
        let chunks = request.chunks.iter().map(|chunk| &chunk.ids);
        let mut ids = request.prefix.iter().chain(chunks.flatten()).chain(&request.query);
        let (known, rows) = (self.shape.vocab, request.token_count() + tokens);
        if let Some(id) = ids.find(|&&id| id as usize >= known) {
            let wanted = format!("token id {id} is outside its vocabulary of {known}; it must know the model's tokens");
            return Err(setting(DRAFT_OPTION, &self.name, wanted));
        }
        if rows > self.shape.max_positions {
            let wanted = format!("reads and writes {rows} tokens, and has {} positions", self.shape.max_positions);
            return Err(setting(DRAFT_OPTION, &self.name, wanted));
        }
        Ok(DraftModel { model: self.name.clone(), cost: beside::writing(&self.shape, rows) })
    }

    /// Bytes of its weights.
    pub fn weight_bytes(&self) -> u64 {
        self.shape.weight_bytes
    }

    fn refusal(&self, wanted: String) -> Error {
        setting(OPTION, &self.name, wanted)
    }

    fn query(&self, request: &Prepared) -> Result<Vec<u32>> {
        let Some(tokenizer) = &self.tokenizer else { return Ok(request.query.clone()) };
        let text = request.query_text.as_deref().ok_or_else(|| self.refusal(NO_TEXT.to_owned()))?;
        let ids = tokenizer.encode(text)?.ids;
        if ids.is_empty() {
            return Err(self.refusal(NO_QUERY.to_owned()));
        }
        Ok(ids)
    }

    /// Its tokens for a chunk whose first row has this number, and the rows that each stands for;
    /// or the unmet requirement.
    fn piece(&self, chunk: &Piece, first_row: u32) -> std::result::Result<(Vec<u32>, Vec<Range<u32>>), String> {
        let (read, mapped) = match &self.tokenizer {
            None => (chunk.ids.clone(), (0..chunk.ids.len() as u32).map(|row| row..row + 1).collect()),
            Some(tokenizer) => {
                if chunk.text.is_empty() || chunk.spans.len() != chunk.ids.len() {
                    return Err(NO_TEXT.to_owned());
                }
                let piece = tokenizer.encode(&chunk.text).map_err(|error| error.to_string())?;
                (piece.ids, mapped(&piece.spans, &chunk.spans))
            }
        };
        if mapped.iter().all(Range::is_empty) {
            return Err("none of its tokenizer's tokens has a letter in common with one of the model's".to_owned());
        }
        Ok((read, mapped.into_iter().map(|rows| rows.start + first_row..rows.end + first_row).collect()))
    }

    /// Checks that the model knows these ids, or tells the unmet requirement.
    fn check_ids(&self, ids: &[u32]) -> std::result::Result<(), String> {
        let known = self.shape.vocab;
        match ids.iter().find(|&&id| id as usize >= known) {
            Some(id) => {
                Err(format!("token id {id} is outside its vocabulary of {known}; its tokenizer does not fit it"))
            }
            None => Ok(()),
        }
    }

    /// The prompt of a chunk whose first row has this number, or the unmet requirement.
    fn prompt(&self, chunk: &Piece, first_row: u32, query: &[u32]) -> std::result::Result<AuxiliaryPrompt, String> {
        let (read, rows) = self.piece(chunk, first_row)?;
        let ids: Vec<u32> = self.bos.into_iter().chain(read).chain(query.iter().copied()).collect();
        self.check_ids(&ids)?;
        let (all, positions) = (ids.len(), self.shape.max_positions);
        if all > positions {
            return Err(format!(
                "with the query it is a prompt of {all} tokens, and the model has {positions} positions; cut it by --chunk"
            ));
        }
        let of_bos = self.bos.map(|_| 0..0);
        Ok(AuxiliaryPrompt { ids, query: query.len(), stands_for: of_bos.into_iter().chain(rows).collect() })
    }
}

/// The requirement if texts are encoded anew.
const NO_TEXT: &str = "its tokenizer is not the model's, so that it needs texts, and the request is made of token ids";

/// The requirement if a query has none of its tokens.
const NO_QUERY: &str = "its tokenizer has no token for the query";

/// For each span of characters, the tokens of `main`, by their places, that share a character with
/// it. Both lists are in the order of the text.
fn mapped(spans: &[Range<usize>], main: &[Range<usize>]) -> Vec<Range<u32>> {
    let places = |span: &Range<usize>| {
        let first = main.partition_point(|other| other.end <= span.start);
        let end = main.partition_point(|other| other.start < span.end);
        if span.is_empty() || end < first { first as u32..first as u32 } else { first as u32..end as u32 }
    };
    spans.iter().map(places).collect()
}

#[cfg(test)]
mod tests;
