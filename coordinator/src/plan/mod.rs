//! The plan of a request: which rank gets which chunk, how many rows are recomputed, what moves. A pure function of
//! request, settings, model and machine.

#[cfg(test)]
mod beside_tests;
mod cost;
mod exchange;
mod settings;
#[cfg(test)]
mod tests;

use tributary_protocol::deal::usual_owner;
use tributary_protocol::{Auxiliary, Chunk, Exchange, LookAhead, Method, Plan, Selection, leading_counts};

use self::exchange::Load;
use self::settings::{budget, setting};
use crate::machine::Machine;
use crate::predict::memory;
use crate::{Error, ModelShape, Result};

pub use self::settings::{Settings, method_named};

/// A request as token ids.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// Number of the request, for logs.
    pub request: u64,
    /// Before the first chunk.
    pub prefix: &'a [u32],
    /// The context, in the request's own order.
    pub chunks: &'a [Vec<u32>],
    /// What the ranks' chunk caches hold.
    pub cached: Cached<'a>,
    /// After the context.
    pub query: &'a [u32],
    /// Tokens that end the answer.
    pub eos: &'a [u32],
    /// What the method has beside the prompt.
    pub beside: Beside<'a>,
}

/// What a method has beside the prompt. Nothing for most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    /// Models beside the main one that read the context for it.
    pub auxiliary: &'a [Auxiliary],
    /// Rows that look at the cache before generation begins.
    pub look_ahead: Option<LookAhead>,
}

/// What the ranks' chunk caches hold. Empty lists stand for nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cached<'a> {
    /// For each chunk of the request the rank that holds it, if one does.
    pub ranks: &'a [Option<usize>],
    /// Bytes of keys and values that each rank keeps, of this request's chunks and others.
    pub bytes: &'a [u64],
}

/// A plan, and what the planner decided or predicts beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// For the ranks.
    pub plan: Plan,
    /// Number of ranks it is made for.
    pub world: usize,
    /// The share of the context to recompute; where EPIC is told its rows a chunk, what they come to.
    pub ratio: f64,
    /// Bytes of memory at the worst moment, all ranks and the weights together.
    pub memory_bytes: u64,
}

/// Makes the plan of a request.
///
/// Methods that recompute nothing and groups of one rank have no use for an exchange; where none is chosen theirs is
/// replicate.
///
/// # Errors
/// [`Error::Setting`], [`Error::NoDocuments`], [`Error::EmptyDocument`], [`Error::EmptyQuery`],
/// [`Error::TooManyTokens`], [`Error::Memory`] if it needs more than the machine has.
pub fn plan(input: &PlanInput<'_>, settings: &Settings, shape: &ModelShape, machine: &Machine) -> Result<Planned> {
    let method = settings.method(shape.layers, shape.kv_heads)?;
    settings.check()?;
    let ratio = settings.ratio()?;
    check_request(input, settings, shape)?;
    let context_tokens: usize = input.chunks.iter().map(Vec::len).sum();
    let (ratio, budget) = match method.selection() {
        Some(Selection::Leading { per_chunk: Some(rows) }) => {
            let budget = leading_rows(input, rows, settings.include_first_chunk);
            (budget as f64 / context_tokens as f64, budget)
        }
        _ => (ratio, budget(ratio, context_tokens)),
    };
    assert!(budget <= context_tokens, "{budget} rows of {context_tokens} to recompute");
    let candidates = exchanges(input, settings, &method, budget, shape, machine);
    let mut smallest: Option<Planned> = None;
    for exchange in candidates {
        let plan = with_exchange(input, settings, &method, budget, exchange, shape);
        let memory_bytes = memory::host_bytes(&plan, settings.world, shape, machine, input.cached.bytes);
        let planned = Planned { plan, world: settings.world, ratio, memory_bytes };
        if machine.available_bytes.is_none_or(|available| memory_bytes <= available) {
            return Ok(planned);
        }
        if smallest.as_ref().is_none_or(|other| memory_bytes < other.memory_bytes) {
            smallest = Some(planned);
        }
    }
    Err(Error::Memory {
        of: machine.memory,
        rank: machine.of_rank,
        needed_bytes: smallest.map_or(0, |planned| planned.memory_bytes),
        available_bytes: machine.available_bytes.unwrap_or(0),
    })
}

/// Checks that a machine has room for the weights, before they are read.
///
/// # Errors
/// [`Error::MemoryOfWeights`].
pub fn check_weights(shape: &ModelShape, machine: &Machine) -> Result<()> {
    let needed_bytes = memory::weights_bytes(shape, machine);
    let (of, rank) = (machine.memory, machine.of_rank);
    match machine.available_bytes {
        Some(available_bytes) if needed_bytes > available_bytes => {
            Err(Error::MemoryOfWeights { of, rank, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

fn check_request(input: &PlanInput<'_>, settings: &Settings, shape: &ModelShape) -> Result<()> {
    let count = input.chunks.len();
    if count == 0 {
        return Err(Error::NoDocuments);
    }
    if let Some(empty) = input.chunks.iter().position(Vec::is_empty) {
        return Err(Error::EmptyDocument { number: empty + 1, count });
    }
    if input.query.is_empty() {
        return Err(Error::EmptyQuery);
    }
    let context_tokens: usize = input.chunks.iter().map(Vec::len).sum();
    let prompt_tokens = input.prefix.len() + context_tokens + input.query.len();
    // The rows of a look-ahead stand where the first generated ones will.
    let max_tokens = settings.max_tokens.max(input.beside.look_ahead.map_or(0, |ahead| ahead.rows as usize));
    if prompt_tokens.saturating_add(max_tokens) > shape.max_positions {
        return Err(Error::TooManyTokens { prompt_tokens, max_tokens, limit: shape.max_positions });
    }
    let ids = input.prefix.iter().chain(input.chunks.iter().flatten()).chain(input.query);
    match ids.copied().find(|&id| id as usize >= shape.vocab) {
        Some(id) => {
            let wanted = format!("the model knows {} ids: its tokenizer does not fit it", shape.vocab);
            Err(setting("token id", id, wanted))
        }
        None => Ok(()),
    }
}

/// Rows that are recomputed where the method is told how many at the head of each chunk.
fn leading_rows(input: &PlanInput<'_>, rows: usize, include_first_chunk: bool) -> usize {
    let first = usize::from(!include_first_chunk);
    let lengths: Vec<usize> = input.chunks.iter().skip(first).map(Vec::len).collect();
    leading_counts(&lengths, usize::MAX, Some(rows)).iter().sum()
}

/// The exchanges to try, the preferred one first.
fn exchanges(
    input: &PlanInput<'_>,
    settings: &Settings,
    method: &Method,
    budget: usize,
    shape: &ModelShape,
    machine: &Machine,
) -> Vec<Exchange> {
    if let Some(exchange) = settings.exchange {
        return vec![exchange];
    }
    if method.is_exact() || settings.world == 1 {
        return vec![Exchange::Replicate];
    }
    let lengths: Vec<usize> = input.chunks.iter().map(Vec::len).collect();
    let (before, after) = (input.prefix.len(), input.query.len());
    let warm = warm(input, settings, method);
    let flops = weights(&lengths, (before, after), Exchange::Replicate, &warm, shape);
    let mut loads = vec![0.0; settings.world];
    for (rank, flops) in cost::deal(&flops, &warm, settings.world).into_iter().zip(&flops) {
        loads[rank] += flops;
    }
    let load = Load {
        world: settings.world,
        context_tokens: lengths.iter().sum(),
        recomputed_rows: budget + input.query.len(),
        prefill_flops: loads.into_iter().fold(0.0, f64::max),
    };
    match exchange::choose(&load, shape, machine) {
        Exchange::Replicate => vec![Exchange::Replicate, Exchange::PassQ],
        other => vec![other],
    }
}

/// For each chunk the rank that has it warm. Of the cached chunks those count that the settings' share falls on; exact methods
/// have no use for chunks.
fn warm(input: &PlanInput<'_>, settings: &Settings, method: &Method) -> Vec<Option<usize>> {
    let steps = |index: usize| (settings.reuse * index as f64 + 1e-9).floor();
    let may_be = |index: usize| !method.is_exact() && steps(index + 1) > steps(index);
    let rank = |index: usize| input.cached.ranks.get(index).copied().flatten().filter(|&rank| rank < settings.world);
    (0..input.chunks.len()).map(|index| rank(index).filter(|_| may_be(index))).collect()
}

/// What chunks weigh when they are dealt, between `before` and `after` tokens.
fn weights(
    lengths: &[usize],
    (before, after): (usize, usize),
    exchange: Exchange,
    warm: &[Option<usize>],
    shape: &ModelShape,
) -> Vec<f64> {
    let mut weights = cost::chunk_weights(lengths, before, after, exchange, shape);
    if exchange != Exchange::PassQ {
        // Nothing is left to compute for a chunk that is there.
        weights.iter_mut().zip(warm).filter(|(_, warm)| warm.is_some()).for_each(|(weight, _)| *weight = 0.0);
    }
    weights
}

fn with_exchange(
    input: &PlanInput<'_>,
    settings: &Settings,
    method: &Method,
    budget: usize,
    exchange: Exchange,
    shape: &ModelShape,
) -> Plan {
    let lengths: Vec<usize> = input.chunks.iter().map(Vec::len).collect();
    let (before, after) = (input.prefix.len(), input.query.len());
    let warm = warm(input, settings, method);
    let weights = weights(&lengths, (before, after), exchange, &warm, shape);
    let ranks = cost::deal(&weights, &warm, settings.world);
    assert_eq!(ranks.len(), input.chunks.len(), "chunks that are dealt to ranks");
    assert!(ranks.iter().all(|&rank| rank < settings.world), "{} ranks: {ranks:?}", settings.world);
    let chunks = input.chunks.iter().zip(ranks).zip(&warm);
    Plan {
        request: input.request,
        prefix: input.prefix.to_vec(),
        chunks: chunks
            .map(|((ids, rank), warm)| Chunk { ids: ids.clone(), rank, warm: warm.is_some(), around: None })
            .collect(),
        query: input.query.to_vec(),
        method: method.clone(),
        owner: settings.owner.unwrap_or_else(|| usual_owner(method.prefill(), settings.world)),
        exchange,
        budget,
        keep_chunks: settings.keep_chunks && !method.is_exact(),
        include_first_chunk: settings.include_first_chunk,
        reorder: settings.reorder,
        max_tokens: settings.max_tokens,
        eos: input.eos.to_vec(),
        sampling: settings.sampling,
        timeout_ms: settings.timeout_ms,
        returns: settings.returns,
        auxiliary: input.beside.auxiliary.to_vec(),
        look_ahead: input.beside.look_ahead,
    }
}
