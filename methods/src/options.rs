//! Options that several methods take. An option of one method alone is in that method's file.

use std::ops::Bound::{Excluded, Included};

use crate::evict::{EvictChoice, Keep, KeepPerChunk};
use crate::option::{Kind, MethodOption, Usual};
use crate::terms::{Exchange, Importance, Layout, OrderFor, Score};

/// Options that the planner reads for every method: they are part of a request's settings.
pub static REQUEST: [&MethodOption; 10] =
    [&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR, &PACKETS, &KEEP_PER_CHUNK, &FIRST, &EXCHANGE, &EVICT, &KEEP];

/// Options that every method takes.
pub static COMMON: [&MethodOption; 4] = [&FIRST, &EXCHANGE, &EVICT, &KEEP];

/// Share of the context to recompute.
pub static RATIO: MethodOption = MethodOption {
    key: "ratio",
    value: "SHARE",
    kind: Kind::Number(Included(0.0), Included(1.0)),
    usual: Usual::Computed("by method"),
    help: "Share of the context's tokens to recompute, 0 to 1",
};

/// Conversion of attention into a score.
pub static SCORE: MethodOption = MethodOption {
    key: "score",
    value: "norm|mass",
    kind: Kind::Word(Score::NAMES),
    usual: Usual::Value("norm"),
    help: "Score of a context row: Euclidean norm or sum of its attention over the query's rows",
};

/// Layers whose attention counts.
pub static LAYERS: MethodOption = MethodOption {
    key: "layers",
    value: "FIRST..END",
    kind: Kind::Layers,
    usual: Usual::Computed("depth 0.55 to 0.65; attn-drift 0.4 to 0.95"),
    help: "Layers whose attention counts, END exclusive",
};

/// Weight of the query's rows, the last of which writes the answer.
pub static RECENCY: MethodOption = MethodOption {
    key: "recency",
    value: "N",
    kind: Kind::Number(Excluded(0.0), Included(1e6)),
    usual: Usual::Computed("infoflow: all count alike; attn-drift: 2"),
    help: "Distance from the query's last token, in tokens, at which a token's attention counts 1/e",
};

/// RoPE positions while scoring.
pub static LAYOUT: MethodOption = MethodOption {
    key: "layout",
    value: "global|hl-hp|hl-tp|tl-tp",
    kind: Kind::Word(Layout::NAMES),
    usual: Usual::Value("global"),
    help: "RoPE positions while scoring",
};

/// Reordering of chunks.
pub static REORDER: MethodOption = MethodOption {
    key: "reorder",
    value: "",
    kind: Kind::Flag,
    usual: Usual::Off,
    help: "Sort chunks by ascending importance, the most important one next to the query",
};

/// Importance that orders chunks.
pub static IMPORTANCE: MethodOption = MethodOption {
    key: "importance",
    value: "mass|selected",
    kind: Kind::Word(Importance::NAMES),
    usual: Usual::Computed("mass"),
    help: "Importance of a chunk: sum of its rows' scores, or its share of the best rows; implies reorder",
};

/// Purpose of the new order.
pub static ORDER_FOR: MethodOption = MethodOption {
    key: "order-for",
    value: "all|selection",
    kind: Kind::Word(OrderFor::NAMES),
    usual: Usual::Value("all"),
    help: "Use of the new order: for everything, or for selection and recompute alone",
};

/// Trained rows around chunks.
pub static PACKETS: MethodOption = MethodOption {
    key: "packets",
    value: "",
    kind: Kind::Flag,
    usual: Usual::Off,
    help: "Put the adapter's trained rows around every chunk",
};

/// Compression of chunks.
pub static KEEP_PER_CHUNK: MethodOption = MethodOption {
    key: "keep-per-chunk",
    value: "N|N%|[N%:METHOD]",
    kind: Kind::Text(|text| Ok(text.parse::<KeepPerChunk>()?.to_string())),
    usual: Usual::Computed("all"),
    help: "Tokens of each chunk that every KV head keeps before the chunk is cached",
};

/// Whether the first chunk's rows may be selected.
pub static FIRST: MethodOption = MethodOption {
    key: "first",
    value: "",
    kind: Kind::Flag,
    usual: Usual::Off,
    help: "Let tokens of the first chunk be selected too, although they are exact already",
};

/// Messages between ranks.
pub static EXCHANGE: MethodOption = MethodOption {
    key: "exchange",
    value: "auto|replicate|pass-q|selected",
    kind: Kind::Text(|text| Ok(exchange_named(text)?.map_or("auto", Exchange::name).to_owned())),
    usual: Usual::Value("auto"),
    help: "Messages between ranks during recompute; auto chooses by bytes and memory",
};

/// Eviction after the prefill.
pub static EVICT: MethodOption = MethodOption {
    key: "evict",
    value: "METHOD|[METHOD:window=N]",
    kind: Kind::Text(|text| Ok(text.parse::<EvictChoice>()?.to_string())),
    usual: Usual::Off,
    help: "Method that evicts prompt tokens from the KV cache after the first token; needs keep",
};

/// Rows that eviction keeps.
pub static KEEP: MethodOption = MethodOption {
    key: "keep",
    value: "N|N%",
    kind: Kind::Text(|text| Ok(text.parse::<Keep>()?.to_string())),
    usual: Usual::Off,
    help: "Prompt tokens that each KV head of a layer keeps, with evict",
};

/// Rows of a block.
pub static BLOCK: MethodOption = MethodOption {
    key: "block",
    value: "N",
    kind: Kind::Count(1..=usize::MAX),
    usual: Usual::Computed("an equal part for every rank"),
    help: "Rows of a block",
};

/// Threshold of the net reading between rows in free probes.
pub static ALPHA: MethodOption = MethodOption {
    key: "alpha",
    value: "X",
    kind: Kind::Number(Excluded(0.0), Included(1.0)),
    usual: Usual::Computed("of the model's calibration, or 0.18"),
    help: "Net reading from which one row depends on another, a share of a row's attention",
};

/// Heads that count in free probes.
pub static SHARPEST: MethodOption = MethodOption {
    key: "sharpest",
    value: "SHARE",
    kind: Kind::Number(Excluded(0.0), Included(1.0)),
    usual: Usual::Computed("of the model's calibration, or all heads"),
    help: "Share of all heads whose attention counts in free probes, the sharpest ones of each row",
};

/// A fixed order of chunks.
pub static KEEP_ORDER: MethodOption = MethodOption {
    key: "keep-order",
    value: "",
    kind: Kind::Flag,
    usual: Usual::Off,
    help: "Keep chunks in the request's order, as the parts of one long document require",
};

/// The exchange of that name; `None` for `auto`.
///
/// # Errors
/// Returns an error with the known names if the name is unknown.
pub fn exchange_named(text: &str) -> Result<Option<Exchange>, String> {
    match text {
        "auto" => Ok(None),
        name => name.parse().map(Some).map_err(|error| format!("{error}, auto")),
    }
}
