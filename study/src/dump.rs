//! A request and its result for checking against other implementations.
//!
//! `request.json`: token ids and the settings that shape the result. `result.safetensors`: `first_token_logits` f32
//! \[vocab\]; `selected` u32, row numbers counted from the first prefix token with chunks in the request's own order;
//! `scores` f32, one a row counted likewise, prefix and context (0 for the prefix), where the method has them.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::json;
use tributary_engine::Answered;

use crate::error::{Error, Result};
use tributary_system::file::write_whole;

/// Refuses a folder that cannot be one, before anything is computed.
///
/// # Errors
/// The path is a file.
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
/// The system's.
pub fn write(folder: &Path, answered: &Answered) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::file("cannot write to", folder))?;
    let request = serde_json::to_string_pretty(&request(answered))?;
    whole(&folder.join("request.json"), request.as_bytes())?;
    let result = safetensors::serialize(&tensors(answered)?, None);
    let result = result.map_err(std::io::Error::other).map_err(Error::file("cannot write to", folder))?;
    whole(&folder.join("result.safetensors"), &result)
}

fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, bytes).map_err(Error::file("cannot write", path))
}

fn request(answered: &Answered) -> serde_json::Value {
    let (plan, settings, outcome) = (&answered.planned.plan, &answered.report.settings, &answered.answer.outcome);
    let chunks: Vec<&Vec<u32>> = plan.chunks.iter().map(|chunk| &chunk.ids).collect();
    json!({
        "prefix": plan.prefix,
        "chunks": chunks,
        "query": plan.query,
        "order": outcome.order,
        "method": settings.method,
        "ratio": settings.ratio,
        "budget": settings.budget,
        "score": settings.score,
        "score_layers": settings.score_layers,
        "layout": settings.layout,
        "reorder": settings.reorder,
        "importance": settings.importance,
        "include_first_chunk": settings.include_first_chunk,
        "per_chunk": settings.per_chunk,
        "seed": settings.seed,
        "exchange": settings.exchange,
        "world": settings.world,
        "dtype": settings.environment.dtype,
        "generated": outcome.tokens,
    })
}

fn tensors(answered: &Answered) -> Result<HashMap<String, Tensor>> {
    let (plan, outcome) = (&answered.planned.plan, &answered.answer.outcome);
    let vector = |values: &[f32]| Tensor::new(values, &Device::Cpu);
    let logits = outcome.logits.as_deref().unwrap_or_default();
    let mut tensors = HashMap::from([
        ("first_token_logits".to_owned(), vector(logits)?),
        ("selected".to_owned(), Tensor::new(outcome.selected.as_slice(), &Device::Cpu)?),
    ]);
    if let Some(scores) = &outcome.scores {
        let rows: Vec<f32> = std::iter::repeat_n(0.0, plan.prefix_tokens()).chain(scores.iter().copied()).collect();
        tensors.insert("scores".to_owned(), vector(&rows)?);
    }
    Ok(tensors)
}
