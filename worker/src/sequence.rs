//! A sequence in decoding: a rank's state of a request after its first token.
//!
//! Keys are rotated to their positions once, before the first step; values are shared with the
//! blocks of the prefill. Keys and values of generated rows grow in place. Layers with a sliding
//! window drop the rows that no later query sees ([`Plan::windows_from`]).

use tributary_kernels::Positions;
use tributary_model::LayerAttention;
use tributary_protocol::{Ape, Plan};

use crate::error::Result;
use crate::evict::remains::Remains;
use crate::kv::{GrowingBlock, View};
use crate::placement::Placement;
use crate::sample::Sampler;
use crate::strategy::Prefilled;

/// One sequence, on every rank.
pub struct Sequence {
    /// The rank that draws its tokens.
    pub owner: usize,
    /// Whether the owner holds all keys that its rows attend to. Otherwise every rank holds a part.
    pub alone: bool,
    /// Number of positions that its rotary tables must cover.
    pub positions: usize,
    /// What it drops in layers with a sliding window.
    pub drops: Drops,
    /// Parameters of attention to parallel contexts, if the method has them.
    parallel: Option<Ape>,
    held: CacheState,
    /// On the owner: the sampler that draws its tokens, and the newest of them.
    drawing: Option<Drawing>,
}

/// What a sequence drops in layers with a sliding window: rows that no later query sees.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drops {
    /// The first row whose window stays whole; nothing is dropped where 0.
    pub from: usize,
    /// Whether rows of its answer are dropped, too.
    pub answer: bool,
}

/// The sampler of a sequence, and its newest token.
pub struct Drawing {
    /// The draws so far.
    pub sampler: Sampler,
    /// The newest token; its row has not been computed.
    pub newest: u32,
}

/// The start of a sequence after an evicted prompt.
pub struct Start {
    /// Positions of the prompt's rows.
    pub placement: Placement,
    /// Maximum number of generated tokens.
    pub tokens: usize,
    /// The first token, already drawn.
    pub first: u32,
    /// The sampler that drew it.
    pub sampler: Sampler,
}

/// The part of a sequence's cache that this rank holds.
enum CacheState {
    /// Nothing: the owner decodes alone, and this is another rank.
    Nothing,
    /// The cache after the prefill.
    Filled(Box<Prefilled>),
    /// The cache with its keys rotated.
    Turned(Box<Turned>),
}

/// A cache whose keys have been rotated to their positions.
pub struct Turned {
    /// Context rows of this rank alone; if the owner decodes alone, all its rows except `rest`.
    pub own: View,
    /// On the owner: prefix and query, which count once in a merge.
    pub rest: View,
    /// On the owner: the generated rows.
    pub generated: GrowingBlock,
    /// Parameters of attention to `own`, if contexts are parallel.
    pub parallel: Option<Ape>,
    placement: Placement,
    /// Number of the first row of `generated`.
    first_row: u32,
    /// Number of the next row of `generated`.
    next_row: u32,
    /// Position of the first generated row, if it is not the one after the query.
    first_position: Option<u32>,
}

impl Drops {
    /// What the sequence of a request drops.
    fn of(plan: &Plan) -> Self {
        Self { from: plan.windows_from, answer: plan.windows_from > 0 && !plan.keep_sequence }
    }
}

impl Sequence {
    /// The sequence of a request whose first token has been drawn, on `rank`.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn new(plan: &Plan, prefilled: Prefilled, first: u32, sampler: Sampler, rank: usize) -> Result<Self> {
        let Prefilled { owner, alone, .. } = prefilled;
        let positions = prefilled.placement.positions(plan.max_tokens);
        let held = match (rank == owner || !alone, plan.drops()) {
            (false, _) => CacheState::Nothing,
            (true, false) => CacheState::Filled(Box::new(prefilled)),
            (true, true) => {
                CacheState::Filled(Box::new(Prefilled { cache: prefilled.cache.without_stale()?, ..prefilled }))
            }
        };
        let drawing = (rank == owner).then_some(Drawing { sampler, newest: first });
        let (drops, parallel) = (Drops::of(plan), plan.method.parallel());
        Ok(Self { owner, alone, positions, drops, parallel, held, drawing })
    }

    /// The sequence of a request after eviction of some of the prompt's rows.
    pub fn of_remains(plan: &Plan, start: Start, remains: Remains, rank: usize) -> Self {
        let Start { placement, tokens, first, sampler } = start;
        let (owner, positions, parallel) = (plan.owner, placement.positions(tokens), plan.method.parallel());
        let Remains { own, rest, alone, next_position, .. } = remains;
        let is_owner = rank == owner;
        let generated = GrowingBlock::new(if is_owner { positions - placement.positions(0) } else { 0 });
        let (first_row, first_position) = (placement.rows() as u32, next_position);
        let turned =
            Turned { own, rest, generated, parallel, placement, first_row, next_row: first_row, first_position };
        let held = if is_owner || !alone { CacheState::Turned(Box::new(turned)) } else { CacheState::Nothing };
        let drawing = is_owner.then_some(Drawing { sampler, newest: first });
        Self { owner, alone, positions, drops: Drops::default(), parallel, held, drawing }
    }

    /// The sequence of a later request of the conversation that has gone on from `turned`.
    /// Its owner holds all of it if it is `alone`.
    pub fn of_turned(
        plan: &Plan,
        (turned, alone): (Option<Turned>, bool),
        (first, sampler): (u32, Sampler),
        rank: usize,
    ) -> Self {
        let positions = turned.as_ref().map_or(0, |turned| turned.placement.positions(plan.max_tokens));
        let drops = Drops::of(plan);
        let held = turned.map_or(CacheState::Nothing, |turned| CacheState::Turned(Box::new(turned)));
        let drawing = (rank == plan.owner).then_some(Drawing { sampler, newest: first });
        Self { owner: plan.owner, alone, positions, drops, parallel: plan.method.parallel(), held, drawing }
    }

    /// Its first `rows` rows for a later request of the conversation, whose further rows are
    /// missing yet; `None` if this rank holds none of it.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn going_on(&mut self, plan: &Plan, rows: usize, layers: &[LayerAttention]) -> Result<Option<Turned>> {
        self.turn(layers)?;
        let is_owner = self.drawing.is_some();
        self.turned().map(|turned| turned.going_on(plan, (rows, is_owner), layers)).transpose()
    }

    /// Rotates the cached keys to their positions, if they are not rotated yet.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn turn(&mut self, layers: &[LayerAttention]) -> Result<()> {
        self.held = match std::mem::replace(&mut self.held, CacheState::Nothing) {
            CacheState::Filled(prefilled) => {
                let turned = Turned::new(*prefilled, self, layers)?;
                CacheState::Turned(Box::new(turned))
            }
            as_it_is => as_it_is,
        };
        Ok(())
    }

    /// The rotated cache; absent if this rank holds nothing, and before [`turn`](Self::turn).
    pub fn turned(&mut self) -> Option<&mut Turned> {
        match &mut self.held {
            CacheState::Turned(turned) => Some(turned),
            CacheState::Nothing | CacheState::Filled(_) => None,
        }
    }

    /// The sampler and the newest token, on the owner.
    pub fn drawing(&mut self) -> Option<&mut Drawing> {
        self.drawing.as_mut()
    }
}

impl Turned {
    fn new(prefilled: Prefilled, sequence: &Sequence, layers: &[LayerAttention]) -> Result<Self> {
        let Sequence { positions, drops, parallel, .. } = *sequence;
        let Prefilled { cache, placement, selection, .. } = prefilled;
        let is_owner = sequence.drawing.is_some();
        let from = (drops.from > 0).then(|| placement.at(&[drops.from as u32]).rope()[0]);
        let (own, rest) = cache.into_turned(&placement, &selection.rows, (is_owner, from), layers)?;
        assert!(positions >= placement.positions(0), "{positions} positions for {}", placement.positions(0));
        let most = positions - placement.positions(0);
        let generated = GrowingBlock::new(if is_owner { most } else { 0 });
        Ok(Self {
            own,
            rest,
            generated,
            parallel,
            first_row: placement.rows() as u32,
            next_row: placement.rows() as u32,
            placement,
            first_position: None,
        })
    }

    /// Its first `rows` rows for a later request of the conversation.
    fn going_on(&self, plan: &Plan, (rows, is_owner): (usize, bool), layers: &[LayerAttention]) -> Result<Self> {
        assert!(self.first_position.is_none(), "an evicted sequence ends with its answer");
        let (total, limit) = (plan.total_rows(), rows as u32);
        let query_start = plan.query_rows().start as usize;
        let placement = self.placement.going_on((query_start, rows), total, plan.max_tokens);
        let first_row = self.first_row.min(limit);
        let seen_from = (plan.windows_from > 0).then(|| (placement.at(&[limit]).rope()[0], layers));
        let counts = ((limit - first_row) as usize, total - rows + plan.max_tokens);
        let generated = if is_owner { self.generated.going_on(counts, seen_from)? } else { GrowingBlock::new(0) };
        let (mut own, mut rest) = (self.own.before(limit)?, self.rest.before(limit)?);
        if let Some((from, layers)) = seen_from {
            (own, rest) = (own.seen_from(from, layers)?, rest.seen_from(from, layers)?);
        }
        let (parallel, first_position) = (self.parallel, None);
        Ok(Self { own, rest, generated, parallel, placement, first_row, next_row: limit, first_position })
    }

    /// Begins the next generated row and returns its position. The owner makes room for its key and
    /// value. Every rank with a part of the sequence calls it, so that all know the row's position.
    pub fn begin_row(&mut self, is_owner: bool) -> Positions {
        self.begin_rows(1, is_owner)
    }

    /// The same for `count` rows of a run.
    pub fn begin_rows(&mut self, count: usize, is_owner: bool) -> Positions {
        let row = self.next_row;
        self.next_row += count as u32;
        let (placement, from, first) = (&self.placement, self.first_position, self.first_row);
        if is_owner {
            self.generated
                .begin_rows(count, |rows| generated_at(placement, from, first + rows.start..first + rows.end));
        }
        generated_at(placement, from, row..self.next_row)
    }
}

/// Positions of generated rows: after the query, or from the given position of the first of them.
fn generated_at(placement: &Placement, from: Option<u32>, rows: std::ops::Range<u32>) -> Positions {
    let at = placement.at(&rows.clone().collect::<Vec<_>>());
    let Some(from) = from else { return at };
    let first = placement.rows() as u32;
    Positions::in_sequence(rows.map(|row| from + row - first).collect::<Vec<_>>(), at.order())
}

#[cfg(test)]
mod tests;
