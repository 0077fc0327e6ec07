//! What a client gets: chat completions and their chunks in OpenAI's form, with a `metrics` object beside them.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tributary_engine::Answered;

/// What all parts of one answer have in common.
#[derive(Debug, Clone)]
pub struct Frame {
    id: String,
    created: u64,
    model: String,
}

/// How many tokens there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Frame {
    /// The frame of the request of this number.
    pub fn new(request: u64, model: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        Self { id: format!("chatcmpl-{created:x}-{request}"), created, model: model.to_owned() }
    }

    /// The name that the answer has for its client.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A whole answer.
    pub fn completion(&self, finish_reason: &str, answered: &Answered) -> Value {
        let message = json!({"role": "assistant", "content": answered.report.answer, "refusal": null});
        let choice = json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason});
        let mut object = self.object("chat.completion", json!([choice]));
        object["usage"] = Usage::of(answered).json();
        object["metrics"] = metrics(answered);
        object
    }

    /// The first part of a stream: who speaks.
    pub fn opening(&self) -> Value {
        self.chunk(json!({"role": "assistant", "content": ""}), None)
    }

    /// Some text.
    pub fn text(&self, text: &str) -> Value {
        self.chunk(json!({"content": text}), None)
    }

    /// The end of the text.
    pub fn closing(&self, finish_reason: &str, answered: &Answered) -> Value {
        let mut object = self.chunk(json!({}), Some(finish_reason));
        object["metrics"] = metrics(answered);
        object
    }

    /// How many tokens there were, behind the end.
    pub fn usage(&self, answered: &Answered) -> Value {
        let mut object = self.object("chat.completion.chunk", json!([]));
        object["usage"] = Usage::of(answered).json();
        object
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
        self.object("chat.completion.chunk", json!([choice]))
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices})
    }
}

impl Usage {
    fn of(answered: &Answered) -> Self {
        let tokens = &answered.report.tokens;
        Self {
            prompt: tokens.prefix + tokens.context + tokens.query,
            cached: answered.report.chunk_cache.hit_tokens,
            completion: tokens.generated,
        }
    }

    fn json(self) -> Value {
        let Self { prompt, cached, completion } = self;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

/// What an answer cost.
fn metrics(answered: &Answered) -> Value {
    let report = &answered.report;
    let phases: serde_json::Map<String, Value> =
        report.phases.iter().map(|phase| (phase.phase.to_owned(), phase.critical_path_ms.into())).collect();
    let received: u64 = report.ranks.iter().map(|rank| rank.tensor_bytes_received).sum();
    json!({
        "ttft_ms": report.ttft_ms,
        "total_ms": report.total_ms,
        "method": report.method,
        "exact": report.exact,
        "cache": report.chunk_cache.state,
        "phases_ms": phases,
        "selected_tokens": report.tokens.selected,
        "recomputed_tokens": report.tokens.recomputed,
        "tensor_bytes_received": received,
        "world_size": report.ranks.len(),
    })
}
