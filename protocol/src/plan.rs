//! The plan of one request: everything a rank must know before it starts.
//! Every size that shapes a collective follows from it and from the selection, which rank 0
//! broadcasts.
//!
//! Rows are numbered from the first prefix row: prefix (head, then lead), chunks in the request's
//! own order, query, rows for generated tokens, and last the rows of a look-ahead.

use std::ops::Range;

use crate::place::Stretch;
use crate::tile::Tile;
use crate::{
    Auxiliary, DraftModel, Evict, EvictionEvidence, Exchange, Importance, OrderFor, Picture, PlannedMethod, Prefill,
    Slices, TextHints,
};

/// One request, ready for the ranks.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// Number of the request, for logs.
    pub request: u64,
    /// Token ids before the first chunk: the head, which is constant, and then the lead.
    pub prefix: Vec<u32>,
    /// Tokens of each piece of the lead, which is the end of the prefix that chunks are prefilled
    /// without: they see the head alone. Each piece is prefilled after the head and all earlier
    /// pieces. For everything else the lead is prefix. Empty where chunks see the whole prefix.
    pub lead: Vec<u32>,
    /// The context, in the request's own order.
    pub chunks: Vec<Chunk>,
    /// Token ids after the context.
    pub query: Vec<u32>,
    /// Method by which the cache is filled.
    pub method: PlannedMethod,
    /// The rank that computes the query's rows, has the prompt's last row, and draws the tokens. It
    /// has the whole prompt if one rank computes it.
    pub owner: usize,
    /// Tensors that ranks exchange while selected rows are recomputed.
    pub exchange: Exchange,
    /// Maximum number of rows to recompute; fewer if there are fewer candidates.
    pub budget: usize,
    /// Order of the chunks in the prompt, decided before it is computed; the request's own where
    /// empty.
    pub order: Vec<u32>,
    /// Rows at the beginning of the prompt that the owner may take from its chunk cache; 0 for
    /// methods that reuse no prefix. Missing ones are computed.
    pub reused_rows: usize,
    /// The sequence of an earlier request that this one goes on from: only rows after those that
    /// both share are computed.
    pub continues: Option<Continues>,
    /// Whether its sequence stays on the ranks after its last token, until it is released.
    pub keep_sequence: bool,
    /// The first row whose sliding windows its sequence has whole, one of the prompt's or the one
    /// after it: layers with a window drop keys that only earlier rows see. All are kept where 0.
    pub windows_from: usize,
    /// Whether another program reads its keys and values, from the first complete layer on.
    pub hands_over: bool,
    /// Scope of its entries in the chunk cache: requests of other scopes do not find them. Shared
    /// by all where absent.
    pub scope: Option<u64>,
    /// Whether freshly computed chunks, or pieces of the prompt, join the chunk cache after the
    /// answer.
    pub keep_chunks: bool,
    /// Whether chunks in a rank's memory are ignored, so that warm ones come from its store: for
    /// measurements.
    pub from_store: bool,
    /// Whether the layout's first chunk may be selected, although it is exact already. After a lead
    /// it is not exact, and always may be selected.
    pub include_first_chunk: bool,
    /// Importance by which chunks are reordered before selection, if they are.
    pub reorder: Option<Importance>,
    /// Purpose of the new order of chunks.
    pub order_for: OrderFor,
    /// Maximum number of tokens to generate, the first included.
    pub max_tokens: usize,
    /// Tokens that end the answer.
    pub eos: Vec<u32>,
    /// Parameters of sampling.
    pub sampling: Sampling,
    /// Time in milliseconds that a rank may compute without progress, and that ranks may wait for
    /// each other, before the group is declared dead.
    pub timeout_ms: u64,
    /// Slices of layers.
    pub slices: Slices,
    /// Numbers that the outcome carries besides the tokens.
    pub returns: Returns,
    /// Models beside the main one that read the context for it.
    pub auxiliary: Vec<Auxiliary>,
    /// What is known of the context's text, for methods that select sentences.
    pub text: TextHints,
    /// The model that drafts tokens for an eviction, if the eviction measures such tokens.
    pub draft_model: Option<DraftModel>,
    /// Rows that attend to the cache before generation begins and are then discarded.
    pub look_ahead: Option<LookAhead>,
    /// The eviction after the first token; everything is kept where absent.
    pub evict: Option<Evict>,
}

/// An earlier request of the same conversation, whose sequence the ranks have kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Continues {
    /// Its number.
    pub request: u64,
    /// Rows that both share, the first ones: prefix, context and the beginning of the query. Rows
    /// of the earlier answer are rows of this query.
    pub rows: usize,
    /// Rows of the prompt of the conversation's first request, or of those of them that are shared.
    /// They are where its method has put them; all later ones are on the owner.
    pub first_rows: usize,
}

/// Rows of an adapter right after the query, between prefill and generation (LookaheadKV).
/// Their attention tells which rows of the cache an answer will need. No later row sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LookAhead {
    /// Number of the adapter on the ranks. Its low-rank matrices, if any, are active on these rows.
    pub adapter: u64,
    /// Number of rows in use: the first ones.
    pub rows: u32,
}

/// A run of context tokens prefilled on its own.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Chunk {
    /// Its token ids.
    pub ids: Vec<u32>,
    /// Pictures among them, in the order of their places.
    pub pictures: Vec<Picture>,
    /// The rank that prefills and keeps it.
    pub rank: usize,
    /// Whether that rank may take its keys and values from the chunk cache. A missing chunk is
    /// computed.
    pub warm: bool,
    /// Rows of an adapter before and after its tokens, cached with them. They count for positions,
    /// order and memory, never as tokens of the context, and are never selected.
    pub around: Option<Around>,
    /// Compression of its tokens in each KV head of each layer before it is cached, sent or
    /// attended to; everything is kept where absent.
    /// Places count from the chunk's own first row, and kept keys stay at their own positions. Rows
    /// around the tokens are always kept.
    pub compress: Option<Evict>,
}

/// Rows of an adapter around a chunk's tokens (KV Packet's header and trailer).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Around {
    /// Number of the adapter on the ranks.
    pub adapter: u64,
    /// Number of its rows before the tokens: the first ones.
    pub head: u32,
    /// Number of its rows after the tokens: the next ones.
    pub tail: u32,
}

/// Source that a row is computed from.
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
    /// A row of a picture.
    Picture {
        /// The hash of its pixels.
        hash: [u8; 32],
        /// The row's number in it, line by line.
        row: u32,
        /// The mark that stands for it among the ids.
        id: u32,
    },
}

impl Source {
    /// The token's id, if it is a token or stands for one of a picture's rows.
    pub fn token(&self) -> Option<u32> {
        match self {
            Source::Token(id) | Source::Picture { id, .. } => Some(*id),
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

    /// Its rows in stretches of tokens and pictures, those around its tokens among them.
    pub fn stretches(&self) -> Vec<Stretch> {
        let (head, mut next, mut stretches) = (self.head_rows(), 0, Vec::new());
        for picture in &self.pictures {
            let before = picture.first as usize - next + if next == 0 { head } else { 0 };
            stretches.extend([Stretch::Tokens(before as u32), picture.stretch(before as u32)]);
            next = picture.range().end;
        }
        let before = if self.pictures.is_empty() { head } else { 0 };
        let rest = before + self.rows() - head - next;
        stretches.push(Stretch::Tokens(rest as u32));
        stretches
    }

    /// Rows of an adapter around its tokens.
    fn around_rows(&self) -> usize {
        self.around.map_or(0, |around| (around.head + around.tail) as usize)
    }

    /// Rows whose keys and values each layer and KV head holds after its prefill.
    pub fn held_rows(&self) -> usize {
        self.compress.as_ref().map_or(self.ids.len(), |compress| compress.keep) + self.around_rows()
    }

    /// Its own rows whose attention decides which of its tokens a compression keeps: an adapter's
    /// rows after them, or its window.
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
        let mut pictures = self.pictures.iter();
        let mut rows = pictures.next().map(|picture| (picture, picture.numbers()));
        let token = move |(place, &id): (usize, &u32)| loop {
            let Some((picture, numbers)) = rows.as_mut().filter(|(picture, _)| picture.first as usize <= place) else {
                return Source::Token(id);
            };
            match numbers.next() {
                Some(row) => return Source::Picture { hash: picture.hash, row, id },
                None => rows = pictures.next().map(|picture| (picture, picture.numbers())),
            }
        };
        let tokens = self.ids.iter().enumerate().map(token);
        (0..head).map(around).chain(tokens).chain((head..head + tail).map(around))
    }

    /// Bytes that distinguish its keys and values from those of its tokens alone, for the name of
    /// the cached chunk in a scope.
    pub fn extra(&self, scope: Option<u64>) -> Vec<u8> {
        let of = |Around { adapter, head, tail }: Around| {
            [&adapter.to_le_bytes()[..], &head.to_le_bytes(), &tail.to_le_bytes()].concat()
        };
        let mut bytes = self.around.map_or_else(Vec::new, of);
        bytes.extend(self.compress.iter().flat_map(Evict::chunk_bytes));
        for Picture { first, lines, columns, hash, tile, .. } in &self.pictures {
            bytes.extend(*b"picture");
            bytes.extend([first, lines, columns].into_iter().flat_map(|number| number.to_le_bytes()));
            bytes.extend(hash);
            // Computed alone, a tile is the same in every causal order.
            if let Some(Tile { grid, number, before, .. }) = tile {
                bytes.extend([&b"tile"[..], &[*grid, *number], &before.to_le_bytes()].concat());
            }
        }
        if let Some(scope) = scope {
            bytes.extend([&b"scope"[..], &scope.to_le_bytes()].concat());
        }
        bytes
    }
}

/// Parameters of sampling.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Sampling {
    /// Temperature; 0 takes the largest logit (ties: the lower id).
    pub temperature: f32,
    /// Draws from the smallest set of tokens with at least this total probability; 1 for all, 0 for
    /// the likeliest alone.
    pub top_p: f32,
    /// Draws from this number of likeliest tokens, before `top_p` cuts further; 0 for all.
    pub top_k: u32,
    /// Draws from tokens with at least this share of the likeliest token's probability (min-p,
    /// Nguyen et al. 2024); 0 for all.
    pub min_p: f32,
    /// Divisor of positive logits, and factor of negative ones, of tokens in prompt and answer
    /// (CTRL, Keskar et al. 2019); 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token that the answer has already.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time that the answer has it.
    pub frequency_penalty: f32,
    /// Numbers added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Minimum number of tokens in the answer before an end token may be drawn.
    pub min_tokens: u32,
    /// Whether the model's own end tokens do not end the answer.
    pub ignore_eos: bool,
    /// Tokens that end the answer, in addition to the model's own.
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
    /// Tokens that end an answer, given the model's own end tokens.
    pub fn ends(&self, eos: Vec<u32>) -> Vec<u32> {
        let own = if self.ignore_eos { Vec::new() } else { eos };
        own.into_iter().chain(self.stop_token_ids.iter().copied()).collect()
    }
}

/// Numbers that the outcome carries besides the tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Returns {
    /// The first token's logits.
    pub logits: bool,
    /// The score of every context row.
    pub scores: bool,
    /// Number of likeliest tokens that are reported with each token, in addition to its
    /// log-probability; absent for no log-probabilities.
    pub logprobs: Option<u32>,
    /// Number of likeliest tokens that are reported with each token of the query, in addition to
    /// its log-probability given everything before it; absent for none.
    pub prompt_logprobs: Option<u32>,
}

impl Plan {
    /// Whether the owner, among `world` ranks, holds everything that its rows attend to in the
    /// filled cache, so that it decodes alone.
    pub fn decodes_alone(&self, world: usize) -> bool {
        world == 1
            || match self.method.prefill {
                Prefill::Whole { .. } => true,
                Prefill::Ring | Prefill::Gathered { .. } | Prefill::Queries | Prefill::Anchored { .. } => false,
                Prefill::Chunks(_) | Prefill::Selected(_) => self.exchange == Exchange::Replicate,
            }
    }

    /// Whether another token follows `tokens`, all those generated so far: neither the limit nor an
    /// end token is reached.
    pub fn goes_on(&self, tokens: &[u32]) -> bool {
        let ended = tokens.last().is_some_and(|token| self.eos.contains(token));
        tokens.len() < self.max_tokens && !ended
    }

    /// Whether the ranks have a sequence of it after its first token.
    pub fn leaves_sequence(&self, first: u32) -> bool {
        self.goes_on(&[first]) || self.keep_sequence
    }

    /// Rows before the context.
    pub fn prefix_tokens(&self) -> usize {
        self.prefix.len()
    }

    /// Rows of the lead, at the end of the prefix.
    pub fn lead_tokens(&self) -> usize {
        self.lead.iter().map(|&tokens| tokens as usize).sum()
    }

    /// Rows of the prefix that chunks are prefilled after.
    pub fn head_tokens(&self) -> usize {
        self.prefix.len() - self.lead_tokens()
    }

    /// Token ids that chunks are prefilled after.
    pub fn head(&self) -> &[u32] {
        &self.prefix[..self.head_tokens()]
    }

    /// Rows of each piece of the lead.
    pub fn lead_rows(&self) -> Vec<Range<u32>> {
        let mut end = self.head_tokens() as u32;
        let mut rows = |&tokens: &u32| {
            end += tokens;
            end - tokens..end
        };
        self.lead.iter().map(&mut rows).collect()
    }

    /// Tokens of all chunks, the base of a ratio.
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

    /// Rows that are computed anew if it goes on from an earlier request's sequence.
    pub fn rows_after_kept(&self) -> Option<Range<u32>> {
        self.continues.map(|continues| continues.rows as u32..self.total_rows() as u32)
    }

    /// Of a request that goes on from an earlier one: the prompt of the conversation's first
    /// request, as far as it is shared.
    pub fn first_turn(&self) -> Option<Plan> {
        let Continues { first_rows, .. } = self.continues?;
        let query = self.query[..first_rows - self.query_rows().start as usize].to_vec();
        Some(Plan { query, continues: None, ..self.clone() })
    }

    /// Rows of the look-ahead, which are neither rows of the prompt nor tokens.
    pub fn look_ahead_count(&self) -> usize {
        self.look_ahead.map_or(0, |ahead| ahead.rows as usize)
    }

    /// Sources of the look-ahead's rows.
    pub fn look_ahead_sources(&self) -> Vec<Source> {
        let of = |LookAhead { adapter, rows }| (0..rows).map(|row| Source::Adapter { adapter, row }).collect();
        self.look_ahead.map_or_else(Vec::new, of)
    }

    /// Whether some of its chunks have pictures.
    pub fn has_pictures(&self) -> bool {
        self.chunks.iter().any(|chunk| !chunk.pictures.is_empty())
    }

    /// Its pictures, each once and whole, with the rank that reads it: that of the first chunk that
    /// has a row of it.
    pub fn pictures(&self) -> Vec<(&Picture, usize)> {
        let mut seen = std::collections::BTreeSet::new();
        let all = self.chunks.iter().flat_map(|chunk| chunk.pictures.iter().map(|picture| (picture, chunk.rank)));
        all.filter(|(picture, _)| seen.insert(picture.hash)).collect()
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

    /// Sources of all rows of prefix, chunks in the request's own order, and query, in the order of
    /// their numbers.
    pub fn sources(&self) -> Vec<Source> {
        let token = |&id: &u32| Source::Token(id);
        let context = self.chunks.iter().flat_map(Chunk::sources);
        self.prefix.iter().map(token).chain(context).chain(self.query.iter().map(token)).collect()
    }

    /// Sources of the query's rows.
    pub fn query_sources(&self) -> Vec<Source> {
        self.query.iter().map(|&id| Source::Token(id)).collect()
    }

    /// Ids of the tokens of prefix, chunks in the request's own order, and query, one after the
    /// other.
    pub fn all_ids(&self) -> Vec<u32> {
        let context = self.chunks.iter().flat_map(|chunk| &chunk.ids);
        self.prefix.iter().chain(context).chain(&self.query).copied().collect()
    }
}
