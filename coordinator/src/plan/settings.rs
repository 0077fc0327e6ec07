//! What a user may choose about a request, and what that means for a given model.

use tributary_protocol::{Exchange, Importance, InfoFlow, Layout, Method, Returns, Sampling, Score};

use crate::{Error, Result};

/// Ratio of most methods.
const RATIO: f64 = 0.15;

/// Ratio of ProphetKV, as published.
const PROPHETKV_RATIO: f64 = 0.20;

/// Rows a chunk that EPIC may be told to recompute.
const EPIC_ROWS: std::ops::RangeInclusive<usize> = 1..=64;

/// The most ranks a group may have: far more than any machine runs, few enough that no size of a plan overflows.
const MAX_WORLD: usize = 4096;

/// Choices for one request. Those that a method does not have are passed over.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Name of the method.
    pub method: String,
    /// Share of the context to recompute; the method's own where absent.
    pub ratio: Option<f64>,
    /// How attention becomes a score.
    pub score: Score,
    /// First scoring layer and the one after the last; depth 0.55 to 0.65 where absent.
    pub score_layers: Option<(usize, usize)>,
    /// RoPE positions while scoring.
    pub layout: Layout,
    /// Whether and how chunks are reordered before selection.
    pub reorder: Option<Importance>,
    /// Whether the first chunk may be selected.
    pub include_first_chunk: bool,
    /// EPIC's rows a chunk; the budget divided evenly where absent.
    pub per_chunk: Option<usize>,
    /// KV heads that the all-gather method gathers at a time; all where absent.
    pub heads_per_gather: Option<usize>,
    /// What moves during recompute; chosen from bytes and memory where absent.
    pub exchange: Option<Exchange>,
    /// Number of ranks.
    pub world: usize,
    /// Tokens to generate at most, the first included.
    pub max_tokens: usize,
    /// How tokens are drawn; its seed is also that of random selection.
    pub sampling: Sampling,
    /// How long a rank may compute without progress, and all ranks wait for each other, before the group is declared dead.
    pub timeout_ms: u64,
    /// What the outcome carries besides the tokens.
    pub returns: Returns,
    /// Share of the chunks that may come from the chunk cache: those that are there, spread evenly over the request.
    pub reuse: f64,
    /// Whether freshly computed chunks join the chunk cache.
    pub keep_chunks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            method: "infoflow".into(),
            ratio: None,
            score: Score::Norm,
            score_layers: None,
            layout: Layout::Global,
            reorder: None,
            include_first_chunk: false,
            per_chunk: None,
            heads_per_gather: None,
            exchange: None,
            world: 1,
            max_tokens: 32,
            sampling: Sampling { temperature: 0.0, top_p: 1.0, seed: 0 },
            timeout_ms: 60_000,
            returns: Returns::default(),
            reuse: 1.0,
            keep_chunks: false,
        }
    }
}

impl Settings {
    /// The method with its parameters, for a model of so many layers and KV heads.
    ///
    /// # Errors
    /// [`Error::UnknownMethod`], [`Error::Setting`] for a parameter that cannot be.
    pub fn method(&self, layers: usize, kv_heads: usize) -> Result<Method> {
        let layout = self.layout;
        match self.method.as_str() {
            "full" => Ok(Method::Full),
            "ring" => Ok(Method::Ring),
            "all-gather" => {
                let heads_per_gather = self.heads_per_gather;
                if heads_per_gather.is_some_and(|heads| heads == 0 || heads > kv_heads) {
                    let wanted = format!("must be from 1 to the model's {kv_heads} KV heads");
                    return Err(setting("--heads-per-gather", heads_per_gather.unwrap_or(0), wanted));
                }
                Ok(Method::AllGather { heads_per_gather })
            }
            "none" => Ok(Method::None),
            "random" => Ok(Method::Random { seed: self.sampling.seed }),
            "epic" => match self.per_chunk {
                Some(rows) if !EPIC_ROWS.contains(&rows) => Err(setting("--per-chunk", rows, "must be from 1 to 64")),
                per_chunk => Ok(Method::Epic { per_chunk }),
            },
            "infoflow" => {
                let layers = score_layers(self.score_layers, layers)?;
                Ok(Method::InfoFlow(InfoFlow { score: self.score, layers, layout }))
            }
            "prophetkv" => Ok(Method::ProphetKv { layout }),
            "relay" => Ok(Method::Relay { layout }),
            other => Err(Error::UnknownMethod { name: other.into() }),
        }
    }

    /// The share of the context to recompute: 0 for methods that recompute nothing.
    ///
    /// # Errors
    /// [`Error::Setting`] if it is not from 0 to 1.
    pub fn ratio(&self, method: &Method) -> Result<f64> {
        let default = if matches!(method, Method::ProphetKv { .. }) { PROPHETKV_RATIO } else { RATIO };
        let ratio = self.ratio.unwrap_or(default);
        if !(0.0..=1.0).contains(&ratio) {
            return Err(setting("--ratio", ratio, "must be from 0 to 1"));
        }
        let nothing = method.is_exact() || *method == Method::None;
        Ok(if nothing { 0.0 } else { ratio })
    }

    /// Checks what needs neither model nor request.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub(crate) fn check(&self, method: &Method) -> Result<()> {
        if self.world == 0 || self.world > MAX_WORLD {
            return Err(setting("--world-size", self.world, format!("must be at least 1 and at most {MAX_WORLD}")));
        }
        if self.max_tokens == 0 {
            return Err(setting("--max-tokens", 0, "must be at least 1: the first token is always drawn"));
        }
        if self.reorder.is_some() && !method.probes_query() {
            let wanted = "only with a method that asks the query: infoflow, prophetkv, relay";
            return Err(setting("--reorder", format!("with {}", method.name()), wanted));
        }
        if !(0.0..=1.0).contains(&self.reuse) {
            return Err(setting("hit rate", self.reuse, "must be from 0 to 1"));
        }
        let Sampling { temperature, top_p, .. } = self.sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(setting("--temperature", temperature, "must be 0 or more"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(setting("--top-p", top_p, "must be above 0 and at most 1"));
        }
        Ok(())
    }
}

/// InfoFlow's scoring layers. By default those from depth 0.55 to depth 0.65, rounded outwards: 22..26 of 40 layers, 2..4
/// of 5, 0..1 of 1.
fn score_layers(chosen: Option<(usize, usize)>, layers: usize) -> Result<(usize, usize)> {
    match chosen {
        None => Ok((55 * layers / 100, (65 * layers).div_ceil(100))),
        Some((first, end)) if first < end && end <= layers => Ok((first, end)),
        Some((first, end)) => {
            let wanted = format!("must be FIRST..END with FIRST < END, and the model has {layers} layers");
            Err(setting("--score-layers", format!("{first}..{end}"), wanted))
        }
    }
}

/// How many rows to recompute at most.
pub(crate) fn budget(ratio: f64, context_tokens: usize) -> usize {
    if ratio <= 0.0 {
        return 0;
    }
    // Without the small number, 0.15 of 20 would be 2.
    let share = (ratio * context_tokens as f64 + 1e-9).floor();
    (share as usize).max(1)
}

pub(crate) fn setting(name: &'static str, found: impl ToString, wanted: impl Into<String>) -> Error {
    Error::Setting { name, found: found.to_string(), wanted: wanted.into() }
}
