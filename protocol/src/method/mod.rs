//! Prefill methods: the registry. One file a method says what the method is ([`Descriptor`]) and, once its parameters are known, how
//! it prefills ([`Prefill`]). Here stand the list, and the parameters that a plan carries.

mod a3;
mod all_gather;
mod apb;
mod ape;
mod cacheblend;
mod cacheclip;
mod choices;
mod descriptor;
mod epic;
mod family;
mod full;
mod ideal;
mod infoflow;
mod kv_packet;
mod kvshare;
mod none;
mod pass_q;
mod prophetkv;
mod random;
mod relay;
mod ring;
mod samkv;
mod star;
#[cfg(test)]
mod tests;
mod trace;

pub use choices::{
    Ape, Drift, DriftOf, DriftScore, Exchange, Importance, Layout, OrderFor, Packets, Passing, SamKv, SamKvVariant,
    Score, Trace, TraceHeads,
};
pub use descriptor::{
    COST_LETTERS, Choice, Claim, Command, Descriptor, Evidence, Heads, InvalidOption, Layers, Prefill, Selection,
    Wishes,
};
pub use family::Family;
pub use infoflow::InfoFlow;

/// A way to fill the cache of a long prompt, with its parameters.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Method {
    /// Exact: the whole prompt on one rank, the plan's owner; the others idle.
    Full,
    /// Exact: zigzag ring attention, keys and values point to point.
    Ring,
    /// Exact: contiguous split, every layer's keys and values gathered on every rank.
    AllGather {
        /// KV heads gathered at a time; all at once where absent.
        heads_per_gather: Option<usize>,
    },
    /// Exact: zigzag shards that stay, queries point to point.
    PassQ,
    /// Blocks behind an anchor, the first block; the query sees all of them.
    Star {
        /// Rows a block; an equal part for every rank where absent.
        block_tokens: Option<usize>,
    },
    /// Naive reuse: chunks as they are, nothing recomputed.
    None,
    /// Recomputes rows drawn at random.
    Random {
        /// Seed of the draw.
        seed: u64,
    },
    /// Recomputes the first rows of every chunk but the first (EPIC's LegoLink).
    Epic {
        /// Rows a chunk; the budget divided evenly where absent.
        per_chunk: Option<usize>,
    },
    /// Recomputes what the query attends to in some layers.
    InfoFlow(InfoFlow),
    /// Recomputes what the query attends to in all layers, normalised over the context.
    ProphetKv {
        /// RoPE positions while scoring.
        layout: Layout,
    },
    /// Two hops: what the query attends to, and what that attends to after a provisional recompute.
    Relay {
        /// RoPE positions while scoring.
        layout: Layout,
    },
    /// Recomputes what the query attends to in the first layer, normalised over the context.
    A3 {
        /// RoPE positions while scoring.
        layout: Layout,
    },
    /// Recomputes the rows that drift most from what is cached of them in the first layers.
    CacheBlend(Drift),
    /// Recomputes the rows that drift most, weighted by the attention that all context rows pay them.
    KvShare,
    /// Recomputes what the query attends to and what that depends on, and puts chunks in the order in which they depend on each other.
    Trace(Trace),
    /// Recomputes the rows whose reuse changes most what the query takes from them, as a full prefill tells.
    Ideal,
    /// Recomputes nothing: chunks stand beside each other, and the query attends to them in a way of its own.
    Ape(Ape),
    /// Keeps and recomputes some rows of every document, and drops the others.
    SamKv {
        /// What is kept, and how it is mixed with what is cached.
        parameters: SamKv,
        /// First scoring layer and the one after the last.
        layers: (usize, usize),
    },
    /// Blocks behind an anchor, which pass keys on; the query sees all of them.
    Apb {
        /// Rows a block; an equal part for every rank where absent.
        block_tokens: Option<usize>,
        /// What blocks see beside their own.
        passing: Passing,
    },
    /// Recomputes what the query attends to in an auxiliary model, in windows.
    CacheClip,
    /// Recomputes nothing: chunks stand between trained rows.
    KvPacket,
}

/// Every method, in the order of help texts and tables.
pub static METHODS: [&Descriptor; 21] = [
    &full::DESCRIPTOR,
    &ring::DESCRIPTOR,
    &all_gather::DESCRIPTOR,
    &pass_q::DESCRIPTOR,
    &star::DESCRIPTOR,
    &apb::DESCRIPTOR,
    &none::DESCRIPTOR,
    &random::DESCRIPTOR,
    &epic::DESCRIPTOR,
    &infoflow::DESCRIPTOR,
    &prophetkv::DESCRIPTOR,
    &relay::DESCRIPTOR,
    &a3::DESCRIPTOR,
    &cacheblend::DESCRIPTOR,
    &kvshare::DESCRIPTOR,
    &trace::DESCRIPTOR,
    &ideal::DESCRIPTOR,
    &ape::DESCRIPTOR,
    &samkv::DESCRIPTOR,
    &cacheclip::DESCRIPTOR,
    &kv_packet::DESCRIPTOR,
];

/// The method that all others are measured against.
pub static REFERENCE: &Descriptor = &full::DESCRIPTOR;

/// The method that fills chunk caches and does nothing else.
pub static CHUNKS_ALONE: &Descriptor = &none::DESCRIPTOR;

impl Method {
    fn entry(&self) -> (&'static Descriptor, Prefill) {
        match self {
            Method::Full => (&full::DESCRIPTOR, Prefill::Whole),
            Method::Ring => (&ring::DESCRIPTOR, Prefill::Ring),
            &Method::AllGather { heads_per_gather } => {
                (&all_gather::DESCRIPTOR, Prefill::Gathered { heads_per_gather })
            }
            Method::PassQ => (&pass_q::DESCRIPTOR, Prefill::Queries),
            &Method::Star { block_tokens } => {
                (&star::DESCRIPTOR, Prefill::Anchored { block_rows: block_tokens, passing: None })
            }
            &Method::Apb { block_tokens, passing } => {
                (&apb::DESCRIPTOR, Prefill::Anchored { block_rows: block_tokens, passing: Some(passing) })
            }
            Method::None => (&none::DESCRIPTOR, Prefill::Chunks(Selection::Nothing)),
            Method::Random { .. } => (&random::DESCRIPTOR, Prefill::Chunks(Selection::Random)),
            &Method::Epic { per_chunk } => (&epic::DESCRIPTOR, Prefill::Chunks(Selection::Leading { per_chunk })),
            Method::InfoFlow(parameters) => (&infoflow::DESCRIPTOR, infoflow::prefill(parameters)),
            &Method::ProphetKv { layout } => (&prophetkv::DESCRIPTOR, prophetkv::prefill(layout)),
            &Method::Relay { layout } => (&relay::DESCRIPTOR, relay::prefill(layout)),
            &Method::A3 { layout } => (&a3::DESCRIPTOR, a3::prefill(layout)),
            &Method::CacheBlend(drift) => (&cacheblend::DESCRIPTOR, cacheblend::prefill(drift)),
            Method::KvShare => (&kvshare::DESCRIPTOR, kvshare::prefill()),
            &Method::Trace(parameters) => (&trace::DESCRIPTOR, trace::prefill(parameters)),
            Method::Ideal => (&ideal::DESCRIPTOR, ideal::prefill()),
            &Method::Ape(parameters) => (&ape::DESCRIPTOR, ape::prefill(parameters)),
            &Method::SamKv { parameters, layers } => (&samkv::DESCRIPTOR, samkv::prefill(parameters, layers)),
            Method::CacheClip => (&cacheclip::DESCRIPTOR, cacheclip::prefill()),
            Method::KvPacket => (&kv_packet::DESCRIPTOR, Prefill::Chunks(Selection::Nothing)),
        }
    }

    /// The descriptor of the method.
    pub fn descriptor(&self) -> &'static Descriptor {
        self.entry().0
    }

    /// How it prefills a prompt.
    pub fn prefill(&self) -> Prefill {
        self.entry().1
    }

    /// Which rows it recomputes, if it prefills chunk by chunk.
    pub fn selection(&self) -> Option<Selection> {
        match self.prefill() {
            Prefill::Chunks(selection) => Some(selection),
            Prefill::Whole | Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries | Prefill::Anchored { .. } => {
                None
            }
        }
    }

    /// The measurements before it selects, if it asks the query.
    pub fn evidence(&self) -> Option<Evidence> {
        match self.selection() {
            Some(Selection::Evidence(evidence)) => Some(evidence),
            _ => None,
        }
    }

    /// The measurement of rows' drift before it selects, if it has one.
    pub fn drift(&self) -> Option<Drift> {
        match self.selection() {
            Some(Selection::Drift(drift)) => Some(drift),
            _ => None,
        }
    }

    /// What is kept of every document, if the rest is dropped.
    pub fn sparse(&self) -> Option<SamKv> {
        self.evidence().and_then(|evidence| evidence.sparse)
    }

    /// Whether an auxiliary model reads the context for it.
    pub fn reads_by_auxiliary(&self) -> bool {
        self.selection() == Some(Selection::Auxiliary)
    }

    /// How the query attends to contexts that stand beside each other, if they do.
    pub fn parallel(&self) -> Option<Ape> {
        match self.selection() {
            Some(Selection::Parallel(ape)) => Some(ape),
            _ => None,
        }
    }

    /// The name on the command line and in reports.
    pub fn name(&self) -> &'static str {
        self.descriptor().name
    }

    /// Whether the result equals a full prefill but for rounding.
    pub fn is_exact(&self) -> bool {
        self.descriptor().is_exact()
    }

    /// Whether it prefills chunk by chunk, so that chunks can be kept for later requests.
    pub fn in_chunks(&self) -> bool {
        self.descriptor().in_chunks
    }

    /// Whether selection asks the query.
    pub fn probes_query(&self) -> bool {
        self.evidence().is_some()
    }
}
