//! A plan in the making. The consequences of request and settings are computed once; places of
//! chunks and transfers are computed each time the draft is placed.

use std::sync::Arc;

use tributary_methods::Options;
use tributary_protocol::deal::usual_owner;
use tributary_protocol::tile::TileOrder;
use tributary_protocol::{
    Around, Auxiliary, Chunk, DraftModel, Evidence, Exchange, LookAhead, Packets, Picture, Plan, PlannedMethod,
    Requirement, Selection, Slices, TextHints, leading_counts,
};

use super::cached::{Cached, Held};
use super::keeping::Conversation;
use super::settings::{RequestSettings, budget};
use super::{dealing, eviction, exchange, pictures as of_pictures};
use crate::cost::{evicting, memory, windows_from};
use crate::error::setting;
use crate::forecast::Profile;
use crate::machine::Machine;
use crate::{Error, ModelShape, Result};

/// Weight of reading a chunk relative to computing it, when chunks are dealt: enough to spread
/// reads over the ranks.
const READ_SHARE: f64 = 0.01;

/// The tokens of a request, which become the plan's.
#[derive(Debug, Clone, Default)]
pub struct Tokens {
    /// Ids before the first chunk.
    pub prefix: Vec<u32>,
    /// Tokens of each piece of the lead, at the end of the prefix.
    pub lead: Vec<u32>,
    /// The context, in the request's own order.
    pub chunks: Vec<Vec<u32>>,
    /// Pictures of each of the first chunks; the others have none.
    pub pictures: Vec<Vec<Picture>>,
    /// Ids after the context.
    pub query: Vec<u32>,
    /// Tokens that end the answer.
    pub eos: Vec<u32>,
    /// The rows of an adapter around every chunk, if there are any.
    pub around: Option<Around>,
    /// Models beside the main one that read the context for the method.
    pub auxiliary: Vec<Auxiliary>,
    /// What is known of the context's text, where the method needs it.
    pub text: TextHints,
    /// The model that drafts tokens for an eviction.
    pub draft_model: Option<DraftModel>,
    /// The method's rows of a look-ahead.
    pub look_ahead: Option<LookAhead>,
}

/// A plan, with further decisions and predictions of the planner.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan. The ranks get this very one: a long prompt is not copied.
    pub plan: Arc<Plan>,
    /// Number of ranks it is made for.
    pub world: usize,
    /// The share of the context to recompute; the resulting share if EPIC is given its rows a
    /// chunk.
    pub ratio: f64,
    /// The method's own options, with their defaults.
    pub options: Options,
    /// Peak bytes of memory, all ranks and the weights together.
    pub memory_bytes: u64,
}

/// A plan that has been checked, and can be placed any number of times.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// All but number, owner, exchange, and the ranks of chunks, which are from the last placement.
    pub(super) plan: Plan,
    /// Tokens of each chunk.
    lengths: Vec<usize>,
    pub(super) world: usize,
    pub(super) ratio: f64,
    pub(super) options: Options,
    /// The requested exchange.
    pub(super) exchange: Option<Exchange>,
    /// What it does with earlier requests of its conversation.
    pub(super) conversation: Conversation,
    /// The share of cached chunks that are not computed.
    reuse: f64,
    /// Whether a reused prefix may reach into the query.
    reuses_query: bool,
    /// The last chosen exchange, with its owner and cached chunks: the choice takes counting, and
    /// is often repeated.
    chosen: Option<(usize, Vec<Held>, Exchange)>,
    /// Tokens of the answer that must have memory when it is placed.
    reserved_tokens: usize,
    /// Bytes of memory that its last placement needs, with all tokens of the answer.
    memory_bytes: u64,
}

/// Share of the context to recompute, and the number of rows at most: what the ratio says, or what
/// a number of rows a chunk or of kept rows a document comes to. `from_first` says whether the
/// first chunk may be selected.
fn share_and_budget(
    method: &PlannedMethod,
    settings: &RequestSettings,
    (lengths, from_first): (&[usize], bool),
) -> Result<(f64, usize)> {
    let ratio = settings.ratio()?;
    let context_tokens: usize = lengths.iter().sum();
    let of_rows = |budget: usize| (budget as f64 / context_tokens as f64, budget);
    let (ratio, budget) = match method.selection() {
        Some(Selection::Leading { per_chunk: Some(rows) }) => of_rows(leading_rows(lengths, rows, from_first)),
        Some(Selection::Evidence(Evidence { sparse: Some(sparse), .. })) => {
            of_rows(lengths.iter().map(|&length| sparse.kept_of(length)).sum())
        }
        _ => (ratio, budget(ratio, context_tokens)),
    };
    assert!(budget <= context_tokens, "{budget} rows of {context_tokens} to recompute");
    Ok((ratio, budget))
}

impl Draft {
    /// A draft of a request, not placed yet.
    ///
    /// # Errors
    /// Returns the errors of [`plan`](super::plan()) except [`Error::Memory`].
    pub fn new(mut tokens: Tokens, settings: &RequestSettings, shape: &ModelShape) -> Result<Self> {
        let (method, _) = settings.method(shape.facts())?;
        // A single chunk that is prefilled after the whole prefix is exact. If none is, nothing
        // comes before the lead alone.
        if method.selects() && (tokens.chunks.len() == 1 || !method.in_chunks()) {
            tokens.lead.clear();
        }
        Self::of(tokens, settings, shape)
    }

    fn of(tokens: Tokens, settings: &RequestSettings, shape: &ModelShape) -> Result<Self> {
        let (method, options) = settings.method(shape.facts())?;
        settings.check()?;
        check(&tokens, settings, &method, shape)?;
        let Tokens { prefix, lead, chunks, pictures, query, eos, around, auxiliary, text, .. } = tokens;
        let lengths: Vec<usize> = chunks.iter().map(Vec::len).collect();
        let from_first = settings.include_first_chunk || !lead.is_empty() || begins_in_raster(&pictures);
        let pictures = pictures.into_iter().chain(std::iter::repeat(Vec::new()));
        let (ratio, budget) = share_and_budget(&method, settings, (&lengths, from_first))?;
        let mut plan = Plan {
            request: 0,
            prefix,
            lead,
            chunks: chunks.into_iter().zip(pictures).map(|of| settings.chunk(of, around)).collect(),
            query,
            owner: 0,
            exchange: Exchange::Replicate,
            budget,
            order: Vec::new(),
            reused_rows: 0,
            continues: None,
            keep_sequence: false,
            windows_from: 0,
            hands_over: settings.hands_over,
            scope: settings.cache_scope,
            keep_chunks: settings.keep_chunks && method.reuses(),
            from_store: settings.from_store,
            method,
            include_first_chunk: settings.include_first_chunk,
            reorder: settings.reorder,
            order_for: settings.order_for,
            max_tokens: settings.max_tokens,
            eos: settings.sampling.ends(eos),
            sampling: settings.sampling.clone(),
            timeout_ms: settings.timeout_ms,
            slices: Slices::default(),
            returns: settings.returns,
            auxiliary,
            text,
            draft_model: tokens.draft_model,
            look_ahead: tokens.look_ahead,
            evict: None,
        };
        plan.evict = eviction::resolved(&plan, &settings.eviction, settings.sampling.seed)?;
        can_be_computed(&plan, settings, shape)?;
        Ok(Self {
            plan,
            lengths,
            world: settings.world,
            ratio,
            options,
            exchange: settings.exchange,
            conversation: settings.conversation,
            reuse: settings.reuse,
            reuses_query: settings.reuses_query,
            chosen: None,
            reserved_tokens: usize::MAX,
            memory_bytes: 0,
        })
    }

    /// A draft of chunks ahead of use, for requests with several of them: no row is recomputed or
    /// moved, no token is drawn, and there is no query.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_chunks(tokens: Tokens, settings: &RequestSettings, shape: &ModelShape) -> Result<Self> {
        // A query of one token serves as a placeholder; none of the sizes that matter here include
        // it.
        let stand_in = tokens.chunks.first().and_then(|ids| ids.first()).copied();
        let tokens = Tokens { query: stand_in.into_iter().collect(), ..tokens };
        let mut draft = Self::of(tokens, &settings.for_chunks(), shape)?;
        draft.plan.query.clear();
        Ok(draft)
    }

    /// Cuts its layers into these slices.
    pub fn slice(&mut self, slices: Slices) {
        self.plan.slices = slices;
    }

    /// Places it for this moment, as the request of this number: the ranks of chunks, its owner
    /// (the default one where absent), and the exchange, by the machine's profile or an assumed
    /// one. It can be placed again after any result. A prompt whose prefix is cached is sent to the
    /// rank that has most of it, if that saves half of the prompt and has the memory.
    ///
    /// # Errors
    /// Returns [`Error::Memory`] if it needs more than the machine has now.
    pub fn place(
        &mut self,
        request: u64,
        owner: Option<usize>,
        cached: Cached<'_>,
        shape: &ModelShape,
        (machine, profile): (&Machine, Option<&Profile>),
    ) -> Result<()> {
        self.plan.request = request;
        if self.plan.continues.is_some() {
            // Its rows are where those of the kept sequence are.
            self.plan.windows_from = windows_from(&self.plan, shape);
            return self.check_memory(shape, machine, cached.bytes);
        }
        let usual = owner.unwrap_or_else(|| usual_owner(self.plan.method.prefill, self.world));
        assert!(usual < self.world, "owner {usual} of {} ranks", self.world);
        let nearest = self.nearest(cached.prefix, usual);
        if nearest != usual && self.place_on(nearest, cached, shape, (machine, profile)).is_ok() {
            return Ok(());
        }
        self.place_on(usual, cached, shape, (machine, profile))
    }

    /// The rank that has most of the prompt's prefix; `usual` unless another one saves half of the
    /// prompt: a beginning that many prompts share would send all of them to one rank.
    fn nearest(&self, prefix: &[usize], usual: usize) -> usize {
        let has = |rank: usize| prefix.get(rank).copied().unwrap_or(0);
        let most = (0..self.world).rev().max_by_key(|&rank| has(rank)).unwrap_or(usual);
        let saved = has(most).min(self.reusable_rows()).saturating_sub(has(usual));
        if self.plan.method.reuses_prefix() && 2 * saved >= self.plan.total_rows() { most } else { usual }
    }

    /// Maximum rows of the prompt that may come from the chunk cache: never the last one, whose
    /// logits are needed, and none of a query whose logits all are.
    fn reusable_rows(&self) -> usize {
        let plan = &self.plan;
        match self.reuses_query && plan.returns.prompt_logprobs.is_none() {
            _ if !plan.method.reuses_prefix() => 0,
            true => plan.total_rows() - 1,
            false => plan.leading_rows(self.reuse),
        }
    }

    /// Places it with this owner.
    fn place_on(
        &mut self,
        owner: usize,
        cached: Cached<'_>,
        shape: &ModelShape,
        (machine, profile): (&Machine, Option<&Profile>),
    ) -> Result<()> {
        self.plan.owner = owner;
        self.plan.keep_sequence = false;
        self.plan.reused_rows = cached.prefix.get(owner).map_or(0, |&rows| rows.min(self.reusable_rows()));
        let warm = self.warm(cached.chunks);
        let mut least = None;
        for exchange in self.exchanges(&warm, shape, (machine, profile)) {
            self.deal(exchange, &warm, shape);
            // Exchange and order of chunks decide whether it is exact.
            self.plan.keep_sequence = self.plan.hands_over || self.conversation.takes(&self.plan);
            self.plan.windows_from = windows_from(&self.plan, shape);
            let Err(error) = self.check_memory(shape, machine, cached.bytes) else { return Ok(()) };
            least = least.into_iter().chain([error]).min_by_key(needed_bytes);
        }
        Err(least.expect("at least one exchange was tried"))
    }

    /// Checks that it has memory as it is placed.
    fn check_memory(&mut self, shape: &ModelShape, machine: &Machine, cached_bytes: &[u64]) -> Result<()> {
        let bytes = |plan: &Plan| memory::host_bytes(plan, self.world, shape, machine, cached_bytes);
        self.memory_bytes = bytes(&self.plan);
        let at_first = self.plan.max_tokens.min(self.reserved_tokens);
        let tables = |plan: &Plan| memory::all_rotary_bytes(plan, shape, machine);
        let all_tables = tables(&self.plan);
        let all = std::mem::replace(&mut self.plan.max_tokens, at_first);
        let needed_bytes = match at_first < all {
            // Rotary tables are made up to the last token at once.
            true => (bytes(&self.plan) - tables(&self.plan)).saturating_add(all_tables),
            false => self.memory_bytes,
        };
        self.plan.max_tokens = all;
        match machine.available_bytes {
            Some(available_bytes) if needed_bytes > available_bytes => {
                Err(Error::Memory { of: machine.memory, rank: machine.of_rank, needed_bytes, available_bytes })
            }
            _ => Ok(()),
        }
    }

    /// The same with another plan, which has the settings of an earlier one.
    pub(super) fn of_plan(&self, plan: Plan, before: &Planned) -> Self {
        let lengths = plan.chunks.iter().map(|chunk| chunk.ids.len()).collect();
        let Planned { ratio, options, .. } = before.clone();
        Self { plan, lengths, ratio, options, chosen: None, ..self.clone() }
    }

    /// From now on its chunks have this order, of which a prefix is cached.
    pub(crate) fn order_chunks(&mut self, order: Vec<u32>) {
        self.plan.order = order;
    }

    /// From now on it is placed with memory for the first `tokens` tokens of its answer: memory of
    /// the others is reserved later.
    pub fn reserve_first(&mut self, tokens: usize) {
        self.reserved_tokens = tokens;
    }

    /// The plan of the last placement.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The same, ready to send.
    pub fn planned(self) -> Planned {
        let Self { plan, world, ratio, options, memory_bytes, .. } = self;
        Planned { plan: Arc::new(plan), world, ratio, options, memory_bytes }
    }

    /// The exchanges to try, the preferred one first.
    fn exchanges(
        &mut self,
        warm: &[Held],
        shape: &ModelShape,
        (machine, profile): (&Machine, Option<&Profile>),
    ) -> Vec<Exchange> {
        if let Some(exchange) = self.exchange {
            return vec![exchange];
        }
        if !self.plan.method.selects() || self.world == 1 {
            return vec![Exchange::Replicate];
        }
        let owner = self.plan.owner;
        let exchange = match &self.chosen {
            Some((of_owner, of_warm, exchange)) if (*of_owner, &**of_warm) == (owner, warm) => *exchange,
            _ => {
                let assumed = profile.is_none().then(|| Profile::assumed(machine));
                let profile = profile.or(assumed.as_ref()).expect("one or the other");
                let mut seconds = |exchange| {
                    self.deal(exchange, warm, shape);
                    exchange::seconds(&self.plan, self.world, shape, profile)
                };
                exchange::sooner(seconds(Exchange::Replicate), seconds(Exchange::PassQ))
            }
        };
        self.chosen = Some((owner, warm.to_vec(), exchange));
        match exchange {
            Exchange::Replicate => vec![Exchange::Replicate, Exchange::PassQ],
            other => vec![other],
        }
    }

    /// The places at which chunks are warm. Only the share of the cached chunks given in the
    /// settings counts; methods that do not work in chunks cannot use them.
    fn warm(&self, held: &[Held]) -> Vec<Held> {
        assert!(held.len() <= self.lengths.len(), "places of {} chunks, of {}", held.len(), self.lengths.len());
        let in_chunks = self.plan.method.in_chunks();
        let steps = |index: usize| (self.reuse * index as f64 + 1e-9).floor();
        let may_be = |index: usize| in_chunks && steps(index + 1) > steps(index);
        let of = |index: usize| match held.get(index) {
            Some(held) if may_be(index) => held.within(self.world),
            _ => Held::Nowhere,
        };
        (0..self.lengths.len()).map(of).collect()
    }

    /// Rows that a prefill would compute with these chunks cached, and these rows of the prompt's
    /// prefix on each rank: those that no cache has, and those that its method recomputes.
    pub(crate) fn rows_to_compute(&self, held: &[Held], prefix: &[usize]) -> usize {
        let warm = self.plan.chunks.iter().zip(self.warm(held)).filter(|(_, held)| *held != Held::Nowhere);
        let warm_rows: usize = warm.map(|(chunk, _)| chunk.rows()).sum();
        let reused_rows = prefix.iter().copied().max().unwrap_or(0).min(self.reusable_rows());
        let recomputed_rows = self.plan.method.selection().map_or(0, |_| self.plan.budget);
        let left_out = if self.plan.prefills_chunks() { 0 } else { self.plan.context_rows() };
        self.plan.total_rows() - left_out - warm_rows - reused_rows + recomputed_rows
    }

    /// Weights of chunks for the assignment to ranks.
    fn weights(&self, exchange: Exchange, warm: &[Held], shape: &ModelShape) -> Vec<f64> {
        let (before, after) = (self.plan.head_tokens(), self.plan.query.len());
        let rows: Vec<usize> = self.plan.chunks.iter().map(Chunk::rows).collect();
        let mut weights = dealing::chunk_weights(&rows, before, after, exchange, shape);
        if exchange != Exchange::PassQ {
            // A cached chunk needs no computation, and a read one little.
            weights.iter_mut().zip(warm).for_each(|(weight, warm)| match warm {
                Held::Nowhere => {}
                Held::Memory(_) => *weight = 0.0,
                Held::Stored(_) => *weight *= READ_SHARE,
            });
        }
        weights
    }

    /// Deals chunks to ranks for an exchange.
    fn deal(&mut self, exchange: Exchange, warm: &[Held], shape: &ModelShape) {
        let ranks = dealing::deal(&self.weights(exchange, warm, shape), warm, self.world);
        assert_eq!(ranks.len(), self.plan.chunks.len(), "chunks that are dealt to ranks");
        assert!(ranks.iter().all(|&rank| rank < self.world), "{} ranks: {ranks:?}", self.world);
        self.plan.exchange = exchange;
        self.deal_chunks(ranks, warm);
        let gather = evicting::gathers(&self.plan, self.world, shape);
        self.plan.evict.iter_mut().for_each(|evict| evict.gather = gather);
    }

    fn deal_chunks(&mut self, ranks: Vec<usize>, warm: &[Held]) {
        for ((chunk, rank), warm) in self.plan.chunks.iter_mut().zip(ranks).zip(warm) {
            (chunk.rank, chunk.warm) = (rank, *warm != Held::Nowhere);
        }
    }
}

/// Bytes that a request lacks memory for.
fn needed_bytes(error: &Error) -> u64 {
    if let Error::Memory { needed_bytes, .. } = error { *needed_bytes } else { u64::MAX }
}

fn check(tokens: &Tokens, settings: &RequestSettings, method: &PlannedMethod, shape: &ModelShape) -> Result<()> {
    let Tokens { prefix, chunks, query, .. } = tokens;
    let count = chunks.len();
    // A method that computes the whole prompt needs no context apart from the query.
    if count == 0 && !method.prefill.is_whole() {
        return Err(Error::NoDocuments);
    }
    if let Some(empty) = chunks.iter().position(Vec::is_empty) {
        return Err(Error::EmptyDocument { number: empty + 1, count });
    }
    if query.is_empty() {
        return Err(Error::EmptyQuery);
    }
    if settings.method.needs(Requirement::AuxiliaryModel) && tokens.auxiliary.is_empty() {
        let wanted = format!(
            "needs {} DIR, the folder of a small model that reads the documents for it",
            Requirement::AuxiliaryModel.flag()
        );
        return Err(setting("--method", settings.method.name, wanted));
    }
    let wants_packets = settings.chunk_packets() == Packets::On;
    if wants_packets && tokens.around.is_none() {
        let wanted =
            format!("needs {} DIR, a folder that `tributary train kv-packet` wrote", Requirement::Adapter.flag());
        let named = if settings.method.needs(Requirement::Adapter) { "" } else { ":packets" };
        return Err(setting("--method", format!("{}{named}", settings.method.name), wanted));
    }
    let context_tokens: usize = chunks.iter().map(Vec::len).sum();
    let around_rows = tokens.around.map_or(0, |around| (around.head + around.tail) as usize);
    let prompt_tokens = prefix.len() + context_tokens + chunks.len() * around_rows + query.len();
    // The rows of a look-ahead take the positions of the first generated ones.
    let max_tokens = settings.max_tokens.max(tokens.look_ahead.map_or(0, |ahead| ahead.rows as usize));
    if prompt_tokens.saturating_add(max_tokens) > shape.max_positions {
        return Err(Error::TooManyTokens { prompt_tokens, max_tokens, limit: shape.max_positions });
    }
    let ids = prefix.iter().chain(chunks.iter().flatten()).chain(query);
    match ids.copied().find(|&id| id as usize >= shape.vocab) {
        Some(id) => {
            let wanted = format!("the model knows {} ids: its tokenizer does not fit it", shape.vocab);
            Err(setting("token id", id, wanted))
        }
        None => Ok(()),
    }
}

/// Whether the first chunk is a tile of a picture whose rows keep the order of the uncut picture:
/// rows of other tiles come before some of its own.
fn begins_in_raster(pictures: &[Vec<Picture>]) -> bool {
    let first = pictures.first().and_then(|of_chunk| of_chunk.first());
    first.and_then(|picture| picture.tile).is_some_and(|tile| tile.order == TileOrder::Raster)
}

/// Number of recomputed rows if the method is given the number at the head of each chunk.
fn leading_rows(lengths: &[usize], rows: usize, from_first: bool) -> usize {
    let first = usize::from(!from_first).min(lengths.len());
    leading_counts(&lengths[first..], usize::MAX, Some(rows)).iter().sum()
}

/// Refuses a plan whose keys and values another program is to read and cannot.
fn can_be_handed_over(plan: &Plan) -> Result<()> {
    match plan.no_hand_over().filter(|_| plan.hands_over) {
        Some(cause) => Err(Error::HandOver { method: plan.method.name(), cause }),
        None => Ok(()),
    }
}

/// Refuses a plan that the model or the methods cannot compute.
fn can_be_computed(plan: &Plan, settings: &RequestSettings, shape: &ModelShape) -> Result<()> {
    has_positions(plan, shape)?;
    can_be_handed_over(plan)?;
    of_pictures::check(plan, settings, shape)
}

/// Refuses a prompt that takes more positions than the model has.
fn has_positions(plan: &Plan, shape: &ModelShape) -> Result<()> {
    let (prompt_tokens, passing, limit) = (plan.total_rows(), plan.passing_rows(), shape.max_positions);
    if prompt_tokens + passing > limit {
        return Err(Error::TooManyTokens { prompt_tokens, max_tokens: passing, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{MethodInputs, PlanInput, plan};
    use super::*;
    use crate::machine::MemoryOf;
    use crate::shape::tests::DEMO;

    /// The requested owner, the place of each chunk, bytes in chunk caches, free bytes.
    type Moment<'a> = (Option<usize>, &'a [Held], u64, Option<u64>);

    #[test]
    fn a_draft_is_placed_as_a_new_plan_would_be_and_its_tokens_stay_where_they_lie() {
        let machine = Machine {
            flops_per_s: 1e7,
            link_bytes_per_s: 1e6,
            memory: MemoryOf::Host,
            available_bytes: None,
            ranks_here: usize::MAX,
            weight_copies: 1,
            of_rank: None,
        };
        let settings = RequestSettings { world: 2, ratio: Some(0.05), reuse: 1.0, ..RequestSettings::default() };
        let chunks = vec![vec![7; 512], vec![8; 300], vec![9; 512], vec![10; 40]];
        let tokens =
            Tokens { prefix: vec![1], chunks: chunks.clone(), query: vec![3], eos: vec![2], ..Tokens::default() };
        let mut draft = Draft::new(tokens, &settings, &DEMO).expect("a request");
        let lie = |plan: &Plan| plan.chunks.iter().map(|chunk| chunk.ids.as_ptr()).collect::<Vec<_>>();
        let before = lie(&draft.plan);
        let all_warm = [1, 0, 1, 0].map(Held::Memory);
        let one_warm = [Held::Nowhere, Held::Memory(1)];
        let moments: [Moment<'_>; 5] = [
            (None, &[], 0, None),
            (Some(0), &all_warm, 1000, None),
            (Some(1), &one_warm, 0, Some(1)),
            (Some(1), &one_warm, 0, None),
            (None, &[], 0, None),
        ];
        let mut seen = Vec::new();
        for (request, (owner, chunks_held, bytes, available_bytes)) in moments.into_iter().enumerate() {
            let (request, bytes) = (request as u64, [bytes; 2]);
            let (cached, machine) = (
                Cached { chunks: chunks_held, bytes: &bytes, ..Cached::default() },
                Machine { available_bytes, ..machine },
            );
            let method_inputs = MethodInputs::default();
            let input = PlanInput {
                request,
                prefix: &[1],
                lead: &[],
                chunks: &chunks,
                cached,
                query: &[3],
                eos: &[2],
                method_inputs,
            };
            let fresh = plan(&input, &RequestSettings { owner, ..settings.clone() }, &DEMO, &machine, None);
            let placed = draft.place(request, owner, cached, &DEMO, (&machine, None)).map(|()| draft.clone().planned());
            assert_eq!(placed.as_ref().map_err(ToString::to_string), fresh.as_ref().map_err(ToString::to_string));
            seen.extend(placed.ok().map(|planned| (planned.plan.exchange, planned.plan.owner)));
        }
        seen.dedup();
        assert_eq!(seen.len(), 3, "moments that differ: {seen:?}");
        assert_eq!(lie(&draft.planned().plan), before);
    }
}
