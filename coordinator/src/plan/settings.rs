//! What a user may choose about a request, and what that means for a given model.

use tributary_protocol::{
    Ape, Around, Choice, Chunk, Command, Descriptor, Drift, Exchange, Importance, Layout, METHODS, Method, OrderFor,
    Packets, Passing, REFERENCE, Returns, SamKv, Sampling, Score, TraceHeads, Wishes,
};

use super::compression::KeepPerChunk;
use super::eviction::EvictionWish;
use crate::error::setting;
use crate::{Error, Result};

/// The most ranks a group may have: far more than any machine runs, few enough that no size of a plan overflows.
const MAX_WORLD: usize = 4096;

/// Choices for one request. Those that a method does not have are passed over.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSettings {
    /// The method.
    pub method: &'static Descriptor,
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
    /// What another order of chunks is for.
    pub order_for: OrderFor,
    /// Whether the trained rows of an adapter stand around every chunk.
    pub packets: Packets,
    /// Whether the first chunk may be selected.
    pub include_first_chunk: bool,
    /// EPIC's rows a chunk; the budget divided evenly where absent.
    pub per_chunk: Option<usize>,
    /// What CacheBlend compares with the cache, and in how many layers.
    pub drift: Drift,
    /// The net reading from which on one row depends on another (trace); the model's, or the method's own where absent.
    pub trace_alpha: Option<f32>,
    /// The heads whose attention counts in free probes (trace); the model's, or all where absent.
    pub trace_heads: Option<TraceHeads>,
    /// Whether chunks stay in the request's order (trace).
    pub keep_order: bool,
    /// Rows of each block (star, apb); an equal part for every rank where absent.
    pub block_tokens: Option<usize>,
    /// What blocks see beside their own (APB).
    pub passing: Passing,
    /// How the query attends to contexts that stand beside each other (APE).
    pub ape: Ape,
    /// What is kept of every document where the rest is dropped (SAM-KV).
    pub samkv: SamKv,
    /// KV heads that the all-gather method gathers at a time; all where absent.
    pub heads_per_gather: Option<usize>,
    /// What moves during recompute; chosen from bytes and memory where absent.
    pub exchange: Option<Exchange>,
    /// Number of ranks.
    pub world: usize,
    /// The rank that shall compute the query's rows and draw the tokens; the usual one where absent.
    pub owner: Option<usize>,
    /// What every chunk keeps before it is cached; everything where absent.
    pub keep_per_chunk: Option<KeepPerChunk>,
    /// What decoding keeps of the prompt.
    pub eviction: EvictionWish,
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
    /// Whose chunks are looked for and kept; everybody's where absent.
    pub cache_scope: Option<u64>,
    /// Whether chunks in ranks' memories are passed over, so that those that come from the chunk cache come from the store behind it.
    pub from_store: bool,
}

impl Default for RequestSettings {
    fn default() -> Self {
        Self {
            method: default_method(),
            ratio: None,
            score: Score::Norm,
            score_layers: None,
            layout: Layout::Global,
            reorder: None,
            order_for: OrderFor::All,
            packets: Packets::Off,
            include_first_chunk: false,
            per_chunk: None,
            drift: Drift::default(),
            trace_alpha: None,
            trace_heads: None,
            keep_order: false,
            block_tokens: None,
            passing: Passing::default(),
            ape: Ape::default(),
            samkv: SamKv::default(),
            heads_per_gather: None,
            exchange: None,
            world: 1,
            owner: None,
            keep_per_chunk: None,
            eviction: EvictionWish::default(),
            max_tokens: 32,
            sampling: Sampling::default(),
            timeout_ms: 60_000,
            returns: Returns::default(),
            reuse: 1.0,
            keep_chunks: false,
            cache_scope: None,
            from_store: false,
        }
    }
}

impl RequestSettings {
    /// The method with its parameters, for a model of so many layers and KV heads.
    ///
    /// # Errors
    /// [`Error::Setting`] for a parameter that cannot be.
    pub fn method(&self, layers: usize, kv_heads: usize) -> Result<Method> {
        let wishes = Wishes {
            layers,
            kv_heads,
            score: self.score,
            score_layers: self.score_layers,
            layout: self.layout,
            per_chunk: self.per_chunk,
            drift: self.drift,
            trace_alpha: self.trace_alpha,
            trace_heads: self.trace_heads.unwrap_or_default(),
            keep_order: self.keep_order,
            block_tokens: self.block_tokens,
            passing: self.passing,
            ape: self.ape,
            samkv: self.samkv,
            heads_per_gather: self.heads_per_gather,
            seed: self.sampling.seed,
        };
        Ok((self.method.make)(&wishes)?)
    }

    /// These, where an order for the selection alone is none that anybody asked for if chunks stay in the request's order whatever is found:
    /// for settings whose method was put in the place of another one.
    #[must_use]
    pub fn without_idle_order(self) -> Self {
        let order_for = if self.moves_nothing() { OrderFor::All } else { self.order_for };
        Self { order_for, ..self }
    }

    /// These, where chunks keep everything if the method cannot have it otherwise: for settings whose method was put in the place of another
    /// one.
    #[must_use]
    pub fn without_idle_compression(self) -> Self {
        let keep_per_chunk = self.keep_per_chunk.filter(|_| self.method.takes(Choice::KeepPerChunk));
        Self { keep_per_chunk, ..self }
    }

    /// These for a prompt without a context to reuse or select from: it is computed whole, which is exact.
    #[must_use]
    pub fn without_context(self) -> Self {
        let this = Self { method: REFERENCE, packets: Packets::Off, reorder: None, ..self };
        this.without_idle_order().without_idle_compression()
    }

    /// A chunk of these tokens that no rank has yet, between these rows.
    pub(crate) fn chunk(&self, ids: Vec<u32>, around: Option<Around>) -> Chunk {
        let compress = self.keep_per_chunk.and_then(|kept| kept.of_chunk(ids.len()));
        Chunk { ids, rank: 0, warm: false, around, compress, scope: self.cache_scope }
    }

    /// Whether the trained rows of an adapter stand around every chunk, where another method that takes them is put in the method's place too:
    /// a method that cannot be without them wants them always, and one that does not take them has none unless somebody asks.
    #[must_use]
    pub fn chunk_packets(&self) -> Packets {
        match self.packets {
            _ if self.method.takes(Choice::Adapter) => Packets::On,
            Packets::IfAny if !self.method.takes(Choice::Packets) => Packets::Off,
            packets => packets,
        }
    }

    /// Whether chunks stay in the request's order whatever is found.
    fn moves_nothing(&self) -> bool {
        match self.reorder {
            Some(_) => false,
            None => !self.method.takes(Choice::KeepOrder) || self.keep_order,
        }
    }

    /// The same for chunks ahead of use: chunks are computed and kept where they are, and nothing else is done.
    pub(crate) fn for_chunks(&self) -> Self {
        let as_they_are =
            |method: &&&Descriptor| method.in_chunks && method.ratio.is_none() && method.takes(Choice::KeepPerChunk);
        let method = METHODS.iter().find(as_they_are).expect("a method takes chunks as they are");
        Self {
            method,
            packets: self.chunk_packets(),
            ratio: None,
            reorder: None,
            order_for: OrderFor::All,
            exchange: Some(Exchange::PassQ),
            owner: None,
            eviction: EvictionWish::default(),
            max_tokens: 1,
            returns: Returns::default(),
            reuse: 1.0,
            keep_chunks: true,
            ..self.clone()
        }
    }

    /// The share of the context to recompute: 0 for methods that recompute nothing.
    ///
    /// # Errors
    /// [`Error::Setting`] if it is not from 0 to 1.
    pub fn ratio(&self) -> Result<f64> {
        let usual = self.method.ratio;
        let ratio = self.ratio.or(usual).unwrap_or(0.0);
        if !(0.0..=1.0).contains(&ratio) {
            return Err(setting("--ratio", ratio, "must be from 0 to 1"));
        }
        Ok(if usual.is_some() { ratio } else { 0.0 })
    }

    /// Checks what needs neither model nor request.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub(crate) fn check(&self) -> Result<()> {
        if self.world == 0 || self.world > MAX_WORLD {
            return Err(setting("--world-size", self.world, format!("must be at least 1 and at most {MAX_WORLD}")));
        }
        if self.max_tokens == 0 {
            return Err(setting("--max-tokens", 0, "must be at least 1: the first token is always drawn"));
        }
        if let Some(owner) = self.owner.filter(|&owner| owner >= self.world) {
            return Err(setting("owner", owner, format!("must be one of {} ranks", self.world)));
        }
        if self.reorder.is_some() && !self.method.takes(Choice::Reorder) {
            let able = Descriptor::names_taking(Choice::Reorder).join(", ");
            let wanted = format!("only with a method that asks the query: {able}");
            return Err(setting("--reorder", format!("with {}", self.method.name), wanted));
        }
        if self.order_for == OrderFor::Selection && self.moves_nothing() {
            let able = Descriptor::names_taking(Choice::OrderFor).join(", ");
            let wanted = format!("needs --reorder, or trace without --keep-order, of {able}");
            return Err(setting("--order-for", format!("selection with {}", self.method.name), wanted));
        }
        if self.packets == Packets::On
            && ![Choice::Packets, Choice::Adapter].iter().any(|&choice| self.method.takes(choice))
        {
            let able = Descriptor::names_taking(Choice::Packets).join(", ");
            return Err(setting("--packets", format!("with {}", self.method.name), format!("is for {able}")));
        }
        self.eviction.check()?;
        if let Some(kept) = self.keep_per_chunk {
            kept.check(self.method, self.eviction.method.is_some())?;
        }
        if !(0.0..=1.0).contains(&self.reuse) {
            return Err(setting("hit rate", self.reuse, "must be from 0 to 1"));
        }
        let Sampling { temperature, top_p, .. } = self.sampling;
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return Err(setting("--temperature", temperature, "must be 0 or more"));
        }
        if !(0.0..=1.0).contains(&top_p) {
            return Err(setting("--top-p", top_p, "must be from 0 to 1"));
        }
        Ok(())
    }
}

/// The method of one request where none is named.
fn default_method() -> &'static Descriptor {
    Descriptor::defaults_of(Command::Prefill).into_iter().next().expect("one request has a method by default")
}

/// The method of that name.
///
/// # Errors
/// [`Error::UnknownMethod`].
pub fn method_named(name: &str) -> Result<&'static Descriptor> {
    Descriptor::find(name).ok_or_else(|| Error::UnknownMethod { name: name.to_owned() })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Chunks are computed ahead of use whatever the requests to come will do with them.
    #[test]
    fn settings_of_any_method_serve_chunks_alone() {
        let method = Descriptor::find("trace").expect("a method");
        let moved = RequestSettings { method, order_for: OrderFor::Selection, ..RequestSettings::default() };
        assert!(moved.check().is_ok() && moved.for_chunks().check().is_ok());
        assert_eq!(moved.clone().without_idle_order(), moved, "trace moves documents");
        let stays = RequestSettings { keep_order: true, ..moved };
        assert!(stays.check().is_err());
        assert_eq!(stays.without_idle_order().order_for, OrderFor::All);
    }
}
