//! A request and its result for checking against other implementations.
//!
//! `request.json`: token ids and the settings that determine the result. `result.safetensors`:
//! `first_token_logits` f32 \[vocab\]; `selected` u32, row numbers counted from the first prefix
//! token with chunks in the request's own order; where rows were evicted `kept` u32, row numbers
//! likewise, layer by layer, KV head by KV head, and `kept_counts` u32 \[layers\], the rows of a KV
//! head in each; where chunks were compressed `kept_of_chunks` u32, the context rows that are held,
//! layer by layer, KV head by KV head; `scores` f32, one a row counted likewise, prefix and context
//! (0 for the prefix), where the method has them.

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use candle_core::{Device, Tensor};
use schemars::JsonSchema;
use serde::Serialize;
use tributary_coordinator::report::{CompressedRow, ResolvedSettings};
use tributary_engine::Answered;
use tributary_protocol::{Auxiliary, Evict, KeptRows};

use crate::error::{Error, Result};
use tributary_system::file::write_whole;

/// Refuses a folder that cannot be one, before anything is computed.
///
/// # Errors
/// Returns an error if the path is a file.
pub fn check(folder: &Path) -> Result<()> {
    match folder.is_file() {
        true => {
            Err(Error::usage(format!("--dump {}: it is a file; it must be a folder, new or old", folder.display())))
        }
        false => Ok(()),
    }
}

/// Writes both files; each appears whole or not at all.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn write(folder: &Path, answered: &Answered) -> Result<()> {
    // They reveal the documents: only their owner may read them.
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::file("cannot write to", folder))?;
    let request = serde_json::to_string_pretty(&request(answered))?;
    whole(&folder.join("request.json"), request.as_bytes())?;
    let result = safetensors::serialize(&tensors(answered)?, None);
    let result = result.map_err(std::io::Error::other).map_err(Error::file("cannot write to", folder))?;
    whole(&folder.join("result.safetensors"), &result)
}

fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = write_whole(path, bytes);
    let owned = written.and_then(|()| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)));
    owned.map_err(Error::file("cannot write", path))
}

/// Name and version of `request.json` (`docs/schemas/dump.v2.json`). A field that goes, or means
/// something else, makes another version.
const SCHEMA: &str = "tributary.dump/2";

/// `request.json`: token ids, the settings that determined the result, and the generated tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Dumped<'a> {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    schema: &'static str,
    /// Token ids before the first chunk.
    prefix: &'a [u32],
    /// Number of those at its end that chunks are prefilled without.
    #[serde(skip_serializing_if = "is_zero")]
    lead: usize,
    /// Token ids of each chunk, in the request's own order.
    chunks: Vec<&'a [u32]>,
    /// Token ids after the context.
    query: &'a [u32],
    /// Chunk numbers in the order of the layout.
    order: &'a [u32],
    /// Settings that determined the result, as in the report of `prefill`.
    settings: &'a ResolvedSettings,
    /// Number of tokens written after the prompt to see their attention, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    evict_tokens: Option<usize>,
    /// Rows of chunks kept in the cache, where those are not all.
    #[serde(skip_serializing_if = "Option::is_none")]
    compressed: Option<&'a CompressedRow>,
    /// Prompts that an auxiliary model reads, one after the other, where one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    auxiliary_prompts: Option<Vec<AuxiliaryPrompt<'a>>>,
    /// The rows with which a sentence of the context ends, if the method selects sentences.
    #[serde(skip_serializing_if = "Option::is_none")]
    sentence_ends: Option<&'a [u32]>,
    /// The rows in which a word of the query ends, each with that word's weight, if the method
    /// counts such words.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_words: Option<&'a [(u32, f32)]>,
    /// First rows of the chunks that the query's words name and whose openings tell what they are
    /// about, the best first, if the method asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    named_chunks: Option<&'a [u32]>,
    /// Generated token ids.
    generated: &'a [u32],
}

/// A prompt of the model that reads chunks for the method.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AuxiliaryPrompt<'a> {
    /// Token ids of its own tokenizer, the query's at the end.
    ids: &'a [u32],
    /// Number of the query's ids.
    query: usize,
    /// For each other id the first of the rows that it represents, numbered as `selected`, and the
    /// one after the last.
    stands_for: Vec<(u32, u32)>,
}

fn prompts(auxiliary: &Auxiliary) -> Vec<AuxiliaryPrompt<'_>> {
    let prompt = |prompt: &'_ tributary_protocol::AuxiliaryPrompt| {
        prompt.stands_for.iter().map(|rows| (rows.start, rows.end)).collect::<Vec<_>>()
    };
    let all = auxiliary.prompts.iter();
    all.map(|of| AuxiliaryPrompt { ids: &of.ids, query: of.query, stands_for: prompt(of) }).collect()
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

fn request(answered: &Answered) -> Dumped<'_> {
    let (plan, outcome) = (&answered.planned.plan, &answered.answer.outcome);
    Dumped {
        schema: SCHEMA,
        prefix: &plan.prefix,
        lead: plan.lead_tokens(),
        chunks: plan.chunks.iter().map(|chunk| chunk.ids.as_slice()).collect(),
        query: &plan.query,
        order: &outcome.order,
        settings: &answered.report.settings,
        evict_tokens: plan.evict.as_ref().map(Evict::pseudo_tokens).filter(|tokens| *tokens > 0),
        compressed: answered.report.compressed.as_ref(),
        auxiliary_prompts: plan.auxiliary.first().map(prompts),
        sentence_ends: Some(&plan.text.sentence_ends[..]).filter(|ends| !ends.is_empty()),
        shared_words: Some(&plan.text.shared_words[..]).filter(|words| !words.is_empty()),
        named_chunks: Some(&plan.text.named[..]).filter(|named| !named.is_empty()),
        generated: &outcome.tokens,
    }
}

fn tensors(answered: &Answered) -> Result<HashMap<String, Tensor>> {
    let (plan, outcome) = (&answered.planned.plan, &answered.answer.outcome);
    let vector = |values: &[f32]| Tensor::new(values, &Device::Cpu);
    let logits = outcome.logits.as_deref().unwrap_or_default();
    let mut tensors = HashMap::from([
        ("first_token_logits".to_owned(), vector(logits)?),
        ("selected".to_owned(), Tensor::new(outcome.selected.as_slice(), &Device::Cpu)?),
    ]);
    if let Some(KeptRows(kept)) = outcome.kept.as_deref() {
        let counts: Vec<u32> = kept.iter().map(|heads| heads[0].len() as u32).collect();
        let rows: Vec<u32> = kept.iter().flatten().flatten().copied().collect();
        tensors.insert("kept".to_owned(), Tensor::new(rows, &Device::Cpu)?);
        tensors.insert("kept_counts".to_owned(), Tensor::new(counts, &Device::Cpu)?);
    }
    if let Some(KeptRows(kept)) = outcome.kept_of_chunks.as_deref() {
        let rows: Vec<u32> = kept.iter().flatten().flatten().copied().collect();
        tensors.insert("kept_of_chunks".to_owned(), Tensor::new(rows, &Device::Cpu)?);
    }
    if let Some(scores) = &outcome.scores {
        let rows: Vec<f32> = std::iter::repeat_n(0.0, plan.prefix_tokens()).chain(scores.iter().copied()).collect();
        tensors.insert("scores".to_owned(), vector(&rows)?);
    }
    Ok(tensors)
}
