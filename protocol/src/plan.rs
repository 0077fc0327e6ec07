//! The plan of one request: everything a rank must know before it starts. Every size that shapes a collective follows from
//! it (and from the selection, which rank 0 broadcasts).
//!
//! Rows are numbered from the first prefix row: prefix, then the chunks in the request's own order, then the query, then as many as
//! may be generated, and behind all of those the rows of a look-ahead.

use std::ops::Range;

use crate::{Auxiliary, DraftModel, Evict, EvictionEvidence, Exchange, Importance, OrderFor, PlannedMethod, Prefill};

/// One request, ready for the ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// Number of the request, for logs.
    pub request: u64,
    /// Token ids before the first chunk.
    pub prefix: Vec<u32>,
    /// The context, in the request's own order.
    pub chunks: Vec<Chunk>,
    /// Token ids after the context.
    pub query: Vec<u32>,
    /// How the cache is filled.
    pub method: PlannedMethod,
    /// The rank that computes the query's rows, has the prompt's last row (the whole prompt where one rank computes it), and draws
    /// the tokens.
    pub owner: usize,
    /// The tensors that ranks exchange while selected rows are recomputed.
    pub exchange: Exchange,
    /// Rows to recompute at most (fewer where there are fewer candidates).
    pub budget: usize,
    /// Whether freshly computed chunks join the chunk cache once the answer is out.
    pub keep_chunks: bool,
    /// Whether chunks in a rank's memory are passed over, so that warm ones come from its store: for measurements.
    pub from_store: bool,
    /// Whether the layout's first chunk may be selected, although it is exact as it is.
    pub include_first_chunk: bool,
    /// Whether and how chunks are reordered before selection.
    pub reorder: Option<Importance>,
    /// What another order of chunks is for.
    pub order_for: OrderFor,
    /// Tokens to generate at most, the first included.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub eos: Vec<u32>,
    /// How a token is drawn from the logits.
    pub sampling: Sampling,
    /// How long a rank may compute without progress, and all ranks wait for each other, before the group is declared dead.
    pub timeout_ms: u64,
    /// The numbers that the outcome carries besides the tokens.
    pub returns: Returns,
    /// Models beside the main one that read the context for it.
    pub auxiliary: Vec<Auxiliary>,
    /// The model beside the main one that writes what an eviction listens to, where it listens to such.
    pub draft_model: Option<DraftModel>,
    /// Rows that look at the cache before generation begins, and are then forgotten.
    pub look_ahead: Option<LookAhead>,
    /// What is kept of the prompt once the first token has been drawn; everything where absent.
    pub evict: Option<Evict>,
}

/// Rows of an adapter that stand right behind the query, between prefill and generation: what they attend to says which rows of the
/// cache an answer will need (LookaheadKV). No later row sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LookAhead {
    /// The adapter, by the number that the ranks know it by. Its low-rank matrices, if it has any, are active on these rows.
    pub adapter: u64,
    /// Number of its rows that are used: the first ones.
    pub rows: u32,
}

/// A run of context tokens prefilled on its own.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Chunk {
    /// Its token ids.
    pub ids: Vec<u32>,
    /// The rank that prefills and keeps it.
    pub rank: usize,
    /// Whether that rank may take its keys and values from the chunk cache. What is not there is computed.
    pub warm: bool,
    /// Rows of an adapter before and behind its tokens, cached with them. They count for positions, order and memory, never as
    /// tokens of the context, and are never selected.
    pub around: Option<Around>,
    /// What each KV head of each layer keeps of its tokens before it is cached, sent or attended to; everything where absent. Places count
    /// from the chunk's own first row, and kept keys stand at their own positions. Rows around the tokens are always kept.
    pub compress: Option<Evict>,
    /// Whose it is: nobody else's request finds it in a cache. Everybody's where absent.
    pub scope: Option<u64>,
}

/// Rows of an adapter around a chunk's tokens (KV Packet's header and trailer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Around {
    /// The adapter, by the number that the ranks know it by.
    pub adapter: u64,
    /// Number of its rows that stand before the tokens: the first ones.
    pub head: u32,
    /// Number of its rows that stand behind the tokens: the next ones.
    pub tail: u32,
}

/// The source that a row is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A token, by its id.
    Token(u32),
    /// A row of an adapter.
    Adapter {
        /// The adapter's number.
        adapter: u64,
        /// The row's number in it.
        row: u32,
    },
}

impl Source {
    /// The token's id, if it is one.
    pub fn token(&self) -> Option<u32> {
        match self {
            Source::Token(id) => Some(*id),
            Source::Adapter { .. } => None,
        }
    }
}

impl Chunk {
    /// Rows of an adapter before its tokens.
    pub fn head_rows(&self) -> usize {
        self.around.map_or(0, |around| around.head as usize)
    }

    /// Its rows: those of its tokens and those around them.
    pub fn rows(&self) -> usize {
        self.ids.len() + self.around_rows()
    }

    /// Rows of an adapter around its tokens.
    fn around_rows(&self) -> usize {
        self.around.map_or(0, |around| (around.head + around.tail) as usize)
    }

    /// Rows whose keys and values are there in each layer and KV head, once it is prefilled.
    pub fn held_rows(&self) -> usize {
        self.compress.as_ref().map_or(self.ids.len(), |compress| compress.keep) + self.around_rows()
    }

    /// The rows of its own whose attention says what is kept of its tokens, where it is compressed: those of an adapter behind them, or its
    /// window.
    pub fn asking(&self) -> Range<usize> {
        let (rows, tokens) = (self.rows(), self.head_rows() + self.ids.len());
        let Some(compress) = &self.compress else { return 0..0 };
        match compress.descriptor().evidence {
            EvictionEvidence::Window if tokens < rows => tokens..rows,
            EvictionEvidence::Window => tokens - compress.window_rows()..tokens,
            EvictionEvidence::LastRow => rows - 1..rows,
            EvictionEvidence::AllRows => 0..rows,
            _ => 0..0,
        }
    }

    /// The sources of its rows.
    pub fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        let Around { adapter, head, tail } = self.around.unwrap_or(Around { adapter: 0, head: 0, tail: 0 });
        let around = move |row| Source::Adapter { adapter, row };
        let tokens = self.ids.iter().map(|&id| Source::Token(id));
        (0..head).map(around).chain(tokens).chain((head..head + tail).map(around))
    }

    /// The bytes that tell its keys and values from those of its tokens alone, for the name of the cached chunk.
    pub fn extra(&self) -> Vec<u8> {
        let of = |Around { adapter, head, tail }: Around| {
            [&adapter.to_le_bytes()[..], &head.to_le_bytes(), &tail.to_le_bytes()].concat()
        };
        let mut bytes = self.around.map_or_else(Vec::new, of);
        bytes.extend(self.compress.iter().flat_map(Evict::chunk_bytes));
        if let Some(scope) = self.scope {
            bytes.extend([&b"scope"[..], &scope.to_le_bytes()].concat());
        }
        bytes
    }
}

/// How a token is drawn from the logits.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sampling {
    /// 0 takes the largest logit (ties: the lower id).
    pub temperature: f32,
    /// Draws from the smallest set of tokens with at least this probability together; 1 for all, 0 for the likeliest alone.
    pub top_p: f32,
    /// Draws from so many of the likeliest tokens, before `top_p` cuts further; 0 for all.
    pub top_k: u32,
    /// Draws from tokens with at least this share of the likeliest token's probability (min-p, Nguyen et al. 2024); 0 for all.
    pub min_p: f32,
    /// Divides positive logits of tokens of prompt and answer, and multiplies negative ones (CTRL, Keskar et al. 2019); 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that the answer has already.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time that the answer has it.
    pub frequency_penalty: f32,
    /// Numbers that are added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens of the answer before which no token is drawn that would end it.
    pub min_tokens: u32,
    /// Whether the model's own end tokens do not end the answer.
    pub ignore_eos: bool,
    /// Tokens that end the answer, beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// The likeliest token, always.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            min_tokens: 0,
            ignore_eos: false,
            stop_token_ids: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// The tokens that end an answer of a model whose own are these.
    pub fn ends(&self, eos: Vec<u32>) -> Vec<u32> {
        let own = if self.ignore_eos { Vec::new() } else { eos };
        own.into_iter().chain(self.stop_token_ids.iter().copied()).collect()
    }
}

/// The numbers that the outcome carries besides the tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Returns {
    /// The first token's logits.
    pub logits: bool,
    /// The score of every context row.
    pub scores: bool,
    /// Log-probabilities with every token, and of so many of the likeliest tokens beside it.
    pub logprobs: Option<u32>,
    /// Log-probabilities of the query's tokens, each behind everything before it, and of so many of the likeliest in its place.
    pub prompt_logprobs: Option<u32>,
}

impl Plan {
    /// Whether, among so many ranks, the owner holds everything that its rows attend to once the cache is filled, so that it
    /// decodes alone.
    pub fn decodes_alone(&self, world: usize) -> bool {
        world == 1
            || match self.method.prefill() {
                Prefill::Whole => true,
                Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries | Prefill::Anchored { .. } => false,
                Prefill::Chunks(_) => self.exchange == Exchange::Replicate,
            }
    }

    /// Whether another token follows these, which are all that were generated so far: neither the limit nor an end token is
    /// reached.
    pub fn goes_on(&self, tokens: &[u32]) -> bool {
        let ended = tokens.last().is_some_and(|token| self.eos.contains(token));
        tokens.len() < self.max_tokens && !ended
    }

    /// Rows before the context.
    pub fn prefix_tokens(&self) -> usize {
        self.prefix.len()
    }

    /// Tokens of all chunks, of which a ratio is a share.
    pub fn context_tokens(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.ids.len()).sum()
    }

    /// Rows of all chunks, those around their tokens included.
    pub fn context_rows(&self) -> usize {
        self.chunks.iter().map(Chunk::rows).sum()
    }

    /// Rows of the query.
    pub fn query_tokens(&self) -> usize {
        self.query.len()
    }

    /// Rows of prefix, context and query.
    pub fn total_rows(&self) -> usize {
        self.prefix_tokens() + self.context_rows() + self.query_tokens()
    }

    /// Rows of the look-ahead, which are neither the prompt's nor tokens.
    pub fn look_ahead_count(&self) -> usize {
        self.look_ahead.map_or(0, |ahead| ahead.rows as usize)
    }

    /// The sources of the look-ahead's rows.
    pub fn look_ahead_sources(&self) -> Vec<Source> {
        let of = |LookAhead { adapter, rows }| (0..rows).map(|row| Source::Adapter { adapter, row }).collect();
        self.look_ahead.map_or_else(Vec::new, of)
    }

    /// Rows of the longest chunk.
    pub fn longest_chunk_rows(&self) -> usize {
        self.chunks.iter().map(Chunk::rows).max().unwrap_or(0)
    }

    /// First row of each chunk, counted from the first context row, in the request's own order.
    pub fn chunk_starts(&self) -> Vec<usize> {
        let mut start = 0;
        self.chunks
            .iter()
            .map(|chunk| {
                let this = start;
                start += chunk.rows();
                this
            })
            .collect()
    }

    /// The source of every row of prefix, chunks in the request's own order, and query, in the order of their numbers.
    pub fn sources(&self) -> Vec<Source> {
        let token = |&id: &u32| Source::Token(id);
        let context = self.chunks.iter().flat_map(Chunk::sources);
        self.prefix.iter().map(token).chain(context).chain(self.query.iter().map(token)).collect()
    }

    /// The sources of the query's rows.
    pub fn query_sources(&self) -> Vec<Source> {
        self.query.iter().map(|&id| Source::Token(id)).collect()
    }

    /// Ids of the tokens of prefix, chunks in the request's own order, and query, one after the other.
    pub fn all_ids(&self) -> Vec<u32> {
        let context = self.chunks.iter().flat_map(|chunk| &chunk.ids);
        self.prefix.iter().chain(context).chain(&self.query).copied().collect()
    }
}
