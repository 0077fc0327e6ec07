//! The phases of a request, in the order in which they happen.

use std::fmt;

/// A part of a request's time. Phases do not overlap on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub enum Phase {
    /// Before the first request: rendezvous, loading of weights, agreement.
    Start,
    /// Idle between requests.
    Idle,
    /// Coordinator: text to token ids, chunks, plan.
    Tokenize,
    /// Coordinator: waiting for free ranks and for memory.
    Queue,
    /// Steps of other requests' decoding at control points of the prefill.
    Interleaved,
    /// Broadcasting the plan to the ranks.
    Dispatch,
    /// Pictures: their pixels to the ranks, the towers, their features to the ranks.
    Vision,
    /// Prefill: of chunks one by one, or of the whole prompt in an exact method.
    ChunkPrefill,
    /// Waiting for the auxiliary model's readings of the chunks, which it makes during their
    /// prefill (CacheClip).
    Auxiliary,
    /// The query's probe in the HL-TP layout, and the new order of the chunks.
    Reorder,
    /// The query's probe of the cache, and later evidence that a selector asks for.
    Probe,
    /// Gathering scores and taking the highest.
    Select,
    /// The pass over the selected rows and the query's rows.
    Recompute,
    /// Logits, sampling, and sending the first token to the coordinator.
    FirstToken,
    /// Choosing the rows that decoding keeps and releasing the others, after the first token.
    Evict,
    /// Every token after the first.
    Decode,
}

impl Phase {
    /// All phases that count towards the time to first token, in their order.
    pub const TO_FIRST_TOKEN: [Phase; 12] = [
        Phase::Tokenize,
        Phase::Queue,
        Phase::Interleaved,
        Phase::Dispatch,
        Phase::Vision,
        Phase::ChunkPrefill,
        Phase::Auxiliary,
        Phase::Reorder,
        Phase::Probe,
        Phase::Select,
        Phase::Recompute,
        Phase::FirstToken,
    ];

    /// Name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Start => "start",
            Phase::Idle => "idle",
            Phase::Tokenize => "tokenize",
            Phase::Queue => "queue",
            Phase::Interleaved => "interleaved_decode",
            Phase::Dispatch => "dispatch",
            Phase::Vision => "vision",
            Phase::ChunkPrefill => "chunk_prefill",
            Phase::Auxiliary => "auxiliary",
            Phase::Reorder => "reorder",
            Phase::Probe => "probe",
            Phase::Select => "select",
            Phase::Recompute => "recompute",
            Phase::FirstToken => "first_token",
            Phase::Evict => "evict",
            Phase::Decode => "decode",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
