//! A trace in Mooncake's format, which other load generators replay (AIPerf, Dynamo).

use serde_json::json;

use super::Trace;
use super::blocks::Blocks;

/// Tokens of a block.
const BLOCK: usize = 512;

/// The trace as lines of Mooncake's format: times in milliseconds, prefix blocks of 512 tokens.
pub fn mooncake(trace: &Trace) -> String {
    let mut named = Blocks::default();
    let line = |request: &super::TraceRequest| {
        let object = json!({
            "timestamp": (1e3 * request.at_s).round() as u64,
            "input_length": request.prompt_tokens(),
            "output_length": request.output_tokens,
            "hash_ids": named.name(request.parts(), BLOCK),
        });
        format!("{object}\n")
    };
    trace.requests.iter().map(line).collect()
}
