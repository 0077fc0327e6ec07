//! The table of method options: one row each. Specs, the list of methods and refusals read it.

use std::str::FromStr;

use tributary_protocol::{Choice, Exchange, Importance, Packets, TraceHeads};

use crate::plan::{RequestSettings, eviction_named};

/// An option of a method, as a spec names it.
pub struct MethodOption {
    /// The key in a spec.
    pub key: &'static str,
    /// The form of its value; empty for an option that is set by its key alone.
    pub value: &'static str,
    /// The choice by which methods say that they take it; absent for an option that no method refuses.
    pub choice: Option<Choice>,
    /// The effect in one line, with unit and default.
    pub help: &'static str,
    /// Reads a value into settings.
    pub(super) set: fn(&mut RequestSettings, &str) -> Result<(), String>,
    /// The value in settings into which it was read.
    pub(super) shown: fn(&RequestSettings) -> String,
}

/// Every option, in the order in which a spec is printed.
pub static OPTIONS: [MethodOption; 28] = [
    MethodOption {
        key: "ratio",
        value: "SHARE",
        choice: Some(Choice::Ratio),
        help: "Share of the context's rows to recompute, 0 to 1; default by method",
        set: |s, v| put(&mut s.ratio, real(v).map(Some)),
        shown: |s| text(s.ratio),
    },
    MethodOption {
        key: "score",
        value: "norm|mass",
        choice: Some(Choice::Score),
        help: "Score of a context row: Euclidean norm or sum of its attention over the query's rows; default norm",
        set: |s, v| put(&mut s.score, read(v)),
        shown: |s| s.score.name().into(),
    },
    MethodOption {
        key: "layers",
        value: "FIRST..END",
        choice: Some(Choice::ScoreLayers),
        help: "Layers whose attention counts, END exclusive; default depth 0.55 to 0.65",
        set: |s, v| put(&mut s.score_layers, layers(v).map(Some)),
        shown: |s| text(s.score_layers.map(|(first, end)| format!("{first}..{end}"))),
    },
    MethodOption {
        key: "layout",
        value: "global|hl-hp|hl-tp|tl-tp",
        choice: Some(Choice::Layout),
        help: "RoPE positions while scoring; default global",
        set: |s, v| put(&mut s.layout, read(v)),
        shown: |s| s.layout.name().into(),
    },
    MethodOption {
        key: "reorder",
        value: "",
        choice: Some(Choice::Reorder),
        help: "Sort chunks by ascending importance, the most important one next to the query",
        set: |s, _| {
            _ = s.reorder.get_or_insert(Importance::Mass);
            Ok(())
        },
        shown: |_| String::new(),
    },
    MethodOption {
        key: "importance",
        value: "mass|selected",
        choice: Some(Choice::Reorder),
        help: "Importance of a chunk: sum of its rows' scores, or its share of the best rows; implies reorder",
        set: |s, v| put(&mut s.reorder, read(v).map(Some)),
        shown: |s| text(s.reorder.map(Importance::name)),
    },
    MethodOption {
        key: "order-for",
        value: "all|selection",
        choice: Some(Choice::OrderFor),
        help: "Use of the new order: for everything, or for selection and recompute alone; default all",
        set: |s, v| put(&mut s.order_for, read(v)),
        shown: |s| s.order_for.name().into(),
    },
    MethodOption {
        key: "packets",
        value: "",
        choice: Some(Choice::Packets),
        help: "Put the adapter's trained rows around every chunk",
        set: |s, _| put(&mut s.packets, Ok(Packets::On)),
        shown: |_| String::new(),
    },
    MethodOption {
        key: "first",
        value: "",
        choice: None,
        help: "Let rows of the first chunk in the order be selected, although they are exact already",
        set: |s, _| put(&mut s.include_first_chunk, Ok(true)),
        shown: |_| String::new(),
    },
    MethodOption {
        key: "exchange",
        value: "auto|replicate|pass-q|selected",
        choice: None,
        help: "Messages between ranks during recompute; default auto, by bytes and memory",
        set: |s, v| put(&mut s.exchange, exchange(v)),
        shown: |s| s.exchange.map_or("auto", Exchange::name).into(),
    },
    MethodOption {
        key: "heads",
        value: "N",
        choice: Some(Choice::HeadsPerGather),
        help: "KV heads gathered at a time; default all",
        set: |s, v| put(&mut s.heads_per_gather, count(v).map(Some)),
        shown: |s| text(s.heads_per_gather),
    },
    MethodOption {
        key: "rows",
        value: "N",
        choice: Some(Choice::PerChunk),
        help: "Rows to recompute of each chunk; default the budget divided evenly",
        set: |s, v| put(&mut s.per_chunk, count(v).map(Some)),
        shown: |s| text(s.per_chunk),
    },
    MethodOption {
        key: "drift-of",
        value: "values|keys",
        choice: Some(Choice::DriftOf),
        help: "Cached tensor to compare with; default values",
        set: |s, v| put(&mut s.drift.of, read(v)),
        shown: |s| s.drift.of.name().into(),
    },
    MethodOption {
        key: "drift-layers",
        value: "N",
        choice: Some(Choice::DriftLayers),
        help: "Layers after the first in which rows are compared; default 1",
        set: |s, v| put(&mut s.drift.layers, count(v)),
        shown: |s| s.drift.layers.to_string(),
    },
    MethodOption {
        key: "alpha",
        value: "X",
        choice: Some(Choice::TraceAlpha),
        help: "Net reading from which one row depends on another; default of the model's calibration, or 0.18",
        set: |s, v| put(&mut s.trace_alpha, real(v).map(Some)),
        shown: |s| text(s.trace_alpha),
    },
    MethodOption {
        key: "sharpest",
        value: "SHARE",
        choice: Some(Choice::TraceHeads),
        help: "Share of all heads whose attention counts in free probes, the sharpest ones of each row; default all",
        set: |s, v| put(&mut s.trace_heads, read(&format!("sharpest:{v}")).map(Some)),
        shown: |s| text(s.trace_heads.map(share)),
    },
    MethodOption {
        key: "keep-order",
        value: "",
        choice: Some(Choice::KeepOrder),
        help: "Keep chunks in the request's order",
        set: |s, _| put(&mut s.keep_order, Ok(true)),
        shown: |_| String::new(),
    },
    MethodOption {
        key: "block",
        value: "N",
        choice: Some(Choice::BlockTokens),
        help: "Rows of a block; default an equal part for every rank",
        set: |s, v| put(&mut s.block_tokens, count(v).map(Some)),
        shown: |s| text(s.block_tokens),
    },
    MethodOption {
        key: "anchor",
        value: "N",
        choice: Some(Choice::AnchorTokens),
        help: "Rows of the anchor before every block; default a quarter of a block",
        set: |s, v| put(&mut s.passing.anchor_tokens, count(v).map(Some)),
        shown: |s| text(s.passing.anchor_tokens),
    },
    MethodOption {
        key: "passing",
        value: "N",
        choice: Some(Choice::PassingTokens),
        help: "Rows that each block passes on in a layer; default an eighth of a block",
        set: |s, v| put(&mut s.passing.passing_tokens, count(v).map(Some)),
        shown: |s| text(s.passing.passing_tokens),
    },
    MethodOption {
        key: "temperature",
        value: "T",
        choice: Some(Choice::ApeTemperature),
        help: "Temperature of the attention to parallel contexts, above 0; default 0.9",
        set: |s, v| put(&mut s.ape.temperature, real(v)),
        shown: |s| s.ape.temperature.to_string(),
    },
    MethodOption {
        key: "scale",
        value: "S",
        choice: Some(Choice::ApeScale),
        help: "Scale of the contexts' weight beside the rest, above 0; default 0.9",
        set: |s, v| put(&mut s.ape.scale, real(v)),
        shown: |s| s.ape.scale.to_string(),
    },
    MethodOption {
        key: "variant",
        value: "small|large",
        choice: Some(Choice::SamKvVariant),
        help: "Sizes of head, tail and blocks that are kept of every document; default large",
        set: |s, v| put(&mut s.samkv.variant, read(v)),
        shown: |s| s.samkv.variant.name().into(),
    },
    MethodOption {
        key: "blocks",
        value: "N",
        choice: Some(Choice::SamKvBlocks),
        help: "Blocks that are kept of every document; default 2",
        set: |s, v| put(&mut s.samkv.blocks, count(v)),
        shown: |s| s.samkv.blocks.to_string(),
    },
    MethodOption {
        key: "theta",
        value: "SHARE",
        choice: Some(Choice::SamKvTheta),
        help: "Share of recomputed keys and values, 0 to 1; the rest stays as cached; default 0.9",
        set: |s, v| put(&mut s.samkv.theta, real(v)),
        shown: |s| s.samkv.theta.to_string(),
    },
    MethodOption {
        key: "keep-per-chunk",
        value: "N|N%|[N%:METHOD]",
        choice: Some(Choice::KeepPerChunk),
        help: "Tokens of each chunk that every KV head keeps before the chunk is cached; default all",
        set: |s, v| put(&mut s.keep_per_chunk, read(v).map(Some)),
        shown: |s| text(s.keep_per_chunk.map(|kept| kept.to_string())),
    },
    MethodOption {
        key: "evict",
        value: "METHOD|[METHOD:window=N]",
        choice: None,
        help: "Eviction of prompt rows after the first token; needs keep",
        set: evict,
        shown: |s| evicted(s),
    },
    MethodOption {
        key: "keep",
        value: "N|N%",
        choice: None,
        help: "Rows of the prompt that each KV head keeps in a layer, with evict",
        set: |s, v| put(&mut s.eviction.keep, read(v).map(Some)),
        shown: |s| text(s.eviction.keep),
    },
];

/// Puts a value that was read in its place.
fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn read<T: FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

fn count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "needs a whole number".to_owned())
}

/// A finite number of either width.
fn real<T: FromStr + Into<f64> + Copy>(text: &str) -> Result<T, String> {
    let number = text.parse().ok().filter(|number: &T| (*number).into().is_finite());
    number.ok_or_else(|| "needs a number".to_owned())
}

/// The value of an option as text; nothing where it was not set.
fn text<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A range of layers, `FIRST..END`.
///
/// # Errors
/// Returns an error if the text has another form.
pub fn layers(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    parts.ok_or_else(|| format!("`{text}` is not FIRST..END, such as 22..26"))
}

/// The name of an exchange, or `auto`.
///
/// # Errors
/// Returns an error with the known names if the name is unknown.
pub fn exchange(text: &str) -> Result<Option<Exchange>, String> {
    match text {
        "auto" => Ok(None),
        name => name.parse().map(Some).map_err(|error| format!("{error}, auto")),
    }
}

fn share(heads: TraceHeads) -> String {
    match heads {
        TraceHeads::Mean => "1".into(),
        TraceHeads::Sharpest(share) => share.to_string(),
    }
}

/// `METHOD`, or `METHOD:window=N`.
fn evict(settings: &mut RequestSettings, text: &str) -> Result<(), String> {
    let (name, window) = match text.split_once(':') {
        None => (text, None),
        Some((name, option)) => {
            let window = option.strip_prefix("window=").ok_or("an eviction method has the option window=N alone")?;
            (name, Some(count(window)?))
        }
    };
    settings.eviction.method = Some(eviction_named(name)?);
    settings.eviction.window = window.or(settings.eviction.window);
    Ok(())
}

fn evicted(settings: &RequestSettings) -> String {
    let name = text(settings.eviction.method.map(|method| method.descriptor().name));
    settings.eviction.window.map_or(name.clone(), |window| format!("{name}:window={window}"))
}
