//! Cost of an answer: tokens and times.

use serde::{Serialize, Serializer};
use tributary_coordinator::report::{EvictedRow, PicturesRow};
use tributary_engine::Answered;

/// Numbers of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Usage {
    /// Tokens of the prompt: prefix, context and query.
    pub prompt_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
    /// Both together.
    pub total_tokens: usize,
    /// Sources of the prompt's tokens.
    pub prompt_tokens_details: PromptTokens,
}

/// Sources of a prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct PromptTokens {
    /// Tokens that were not computed: from the chunk cache, or of an earlier turn of the
    /// conversation.
    pub cached_tokens: usize,
    /// Tokens that are rows of pictures; absent where there are none. OpenAI has no such field.
    #[serde(skip_serializing_if = "is_zero")]
    #[cfg_attr(test, schema(required = false))]
    pub image_tokens: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Usage {
    /// From numbers of tokens.
    pub fn new(prompt_tokens: usize, cached_tokens: usize, completion_tokens: usize) -> Self {
        let total_tokens = prompt_tokens + completion_tokens;
        let prompt_tokens_details = PromptTokens { cached_tokens, image_tokens: 0 };
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }

    /// The same for a prompt of which this number of tokens are rows of pictures.
    #[must_use]
    pub fn with_images(mut self, image_tokens: usize) -> Self {
        self.prompt_tokens_details.image_tokens = image_tokens;
        self
    }

    /// Adds those of another answer; `is_new` says whether its prompt has not been counted yet.
    pub fn add(&mut self, other: &Usage, is_new: bool) {
        if is_new {
            self.prompt_tokens += other.prompt_tokens;
            let (own, other) = (&mut self.prompt_tokens_details, &other.prompt_tokens_details);
            own.cached_tokens += other.cached_tokens;
            own.image_tokens += other.image_tokens;
        }
        self.completion_tokens += other.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }

    /// Usage of an answer with `completion_tokens` tokens.
    pub fn of(answered: &Answered, completion_tokens: usize) -> Self {
        let tokens = &answered.report.tokens;
        let prompt = tokens.prefix + tokens.context + tokens.query;
        let reused = answered.report.conversation.map_or(0, |conversation| conversation.reused_tokens);
        Self::new(prompt, answered.report.chunk_cache.hit_tokens + reused, completion_tokens)
            .with_images(answered.prepared.picture_rows())
    }
}

/// Cost of an answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Metrics<'a> {
    /// Milliseconds from the request's acceptance to its first token.
    pub ttft_ms: f64,
    /// Milliseconds from the request's acceptance to its end.
    pub total_ms: f64,
    /// Method that filled the cache.
    pub method: &'static str,
    /// Whether that equals a full prefill but for rounding.
    pub exact: bool,
    /// `cold`, `partial` or `warm`: how much of the context came from the chunk cache, or from an
    /// earlier turn.
    pub cache: &'static str,
    /// `reused` if the request went on from an earlier turn of its conversation; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation: Option<&'static str>,
    /// Milliseconds of each phase on the critical path, the wait for its turn (`queue`) among them.
    #[cfg_attr(test, schema(value_type = std::collections::BTreeMap<String, f64>))]
    #[serde(serialize_with = "as_object")]
    pub phases_ms: Vec<(&'a str, f64)>,
    /// Context tokens that were selected.
    pub selected_tokens: usize,
    /// Rows of the recompute pass, the query's included.
    pub recomputed_tokens: usize,
    /// Bytes of tensors that ranks received from each other until the first token, all together.
    pub tensor_bytes_received: u64,
    /// Rows of the prompt that decoding does not keep; absent where it keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicted: Option<Evicted>,
    /// Pictures of the prompt; absent where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pictures: Option<Pictures>,
    /// Ranks.
    pub world_size: usize,
    /// Notes for the client on the reading of the request; absent where there are none.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    #[cfg_attr(test, schema(nullable = false))]
    pub notes: &'a [String],
}

/// Rows of a prompt that decoding does not keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Evicted {
    /// Method of eviction.
    pub method: &'static str,
    /// Rows of the prompt that there were.
    pub rows: f64,
    /// Rows that are kept, the mean over layers and KV heads.
    pub kept_rows: f64,
    /// Bytes of evicted keys and values.
    pub freed_bytes: u64,
    /// Milliseconds that it took, between the first token and the second.
    pub evict_ms: f64,
}

impl Evicted {
    fn of(row: &EvictedRow) -> Self {
        Self {
            method: row.method,
            rows: row.rows,
            kept_rows: row.kept_rows,
            freed_bytes: row.bytes_before - row.bytes_kept,
            evict_ms: row.ms,
        }
    }
}

/// Pictures of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct Pictures {
    /// Number of pictures.
    pub count: usize,
    /// Tokens of the prompt that are their places.
    pub tokens: usize,
    /// Number of different pictures.
    pub different: usize,
    /// Number of different pictures whose features were cached, so that no vision tower ran.
    pub cached: usize,
    /// Bytes of resized pixels, of each different picture once.
    pub pixel_bytes: u64,
    /// Milliseconds in which the files were decoded and resized.
    pub decode_ms: f64,
    /// Milliseconds of the vision phase without waits, on the rank where it took longest.
    pub tower_ms: f64,
}

impl Pictures {
    fn of(row: &PicturesRow) -> Self {
        let PicturesRow { count, tokens, different, cached, pixel_bytes, decode_ms, tower_ms, .. } = *row;
        Self { count, tokens, different, cached, pixel_bytes, decode_ms, tower_ms }
    }
}

/// Named numbers as an object, in their order.
fn as_object<S: Serializer>(named: &[(&str, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(named.iter().copied())
}

impl<'a> Metrics<'a> {
    /// Of an answer.
    pub fn of(answered: &'a Answered) -> Self {
        let report = &answered.report;
        Self {
            ttft_ms: report.ttft_ms,
            total_ms: report.total_ms,
            method: report.method,
            exact: report.exact,
            cache: report.chunk_cache.state,
            conversation: report.conversation.map(|_| "reused"),
            phases_ms: report.phases.iter().map(|phase| (phase.phase, phase.critical_path_ms)).collect(),
            selected_tokens: report.tokens.selected,
            recomputed_tokens: report.tokens.recomputed,
            tensor_bytes_received: report.ranks.iter().map(|rank| rank.tensor_bytes_received).sum(),
            evicted: report.evicted.as_ref().map(Evicted::of),
            pictures: report.pictures.as_ref().map(Pictures::of),
            world_size: report.ranks.len(),
            notes: &answered.prepared.notes,
        }
    }
}
