//! Free probes round by round, and the resulting order of chunks.
//! Readings stay on the rank of their column. Rank 0 receives those that may be sharp and their
//! reverses, follows the chains, and sends every rank the next rows. In the end it sends the
//! relevance of all probed rows and the order; then each rank sums up its own readings.

mod chains;
mod ordering;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};

use tributary_kernels::{cuda, join};
use tributary_protocol::deal::Homes;
use tributary_protocol::{Exchange, Layout, Plan, Sharpest, Trace};

use self::chains::{Chains, Read};
use super::agree::{agree, collect};
use super::chunks::Chunks;
use super::{evidence, recompute};
use crate::attention::{ChosenHeads, FreeProbe, FreeReadings};
use crate::context::Context;
use crate::error::Result;

/// Result of the free probes.
pub(super) struct Found {
    /// The attention of the probed rows weighted by their relevance, one number a context row.
    pub received: Vec<f32>,
    /// The new order of chunks.
    pub order: Vec<u32>,
    /// The probed rows, one probe after the other, each ascending.
    pub rows: Vec<u32>,
    /// Number of rows of each probe.
    pub rounds: Vec<usize>,
    /// The largest sharp readings of rows that the query finds relevant.
    pub sharpest: Sharpest,
}

/// Rank 0's decision from the readings so far.
#[derive(serde::Serialize, serde::Deserialize)]
struct Decision {
    /// The rows to probe next; empty at the end of the probes.
    next: Vec<u32>,
    /// The relevance of the probed rows, in their order.
    relevance: Vec<f32>,
    /// The order of chunks.
    order: Vec<u32>,
    /// The largest sharp reading.
    sharpest: Sharpest,
}

/// Follows chains from the best rows by `scores`. If the plan has no free probe or its positions
/// exceed the model's, the result is empty and chunks stay in the request's order.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails, or if readings are not finite.
pub(super) fn follow(cx: &mut Context<'_>, plan: &Plan, chunks: &mut Chunks, scores: &[f32]) -> Result<Found> {
    let most = cx.models.main.config().max_positions;
    let Some(trace) = plan.traces().filter(|_| plan.traced_positions() <= most) else {
        let (received, order) = (vec![0.0; plan.context_rows()], plan.request_order());
        return Ok(Found { received, order, rows: Vec::new(), rounds: Vec::new(), sharpest: Sharpest::default() });
    };
    let chains = Chains::new(plan, trace, scores.to_vec());
    let (kept, mut told) = (plan.kept_by(cx.rank()), Told::default());
    let (mut probes, mut rows, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = chains.first();
    let decision = loop {
        probes.push(probe(cx, plan, chunks, &next, &kept)?);
        rounds.push(next.len());
        rows.append(&mut next);
        told.listen(cx, &chains, &probes, &kept)?;
        let decided = (cx.rank() == 0).then(|| told.decide(&chains, trace, &rows, rounds.len()));
        let decided: Decision = agree(cx, decided)?;
        if decided.next.is_empty() {
            break decided;
        }
        next = decided.next;
    };
    let relevance: HashMap<u32, f32> = rows.iter().copied().zip(decision.relevance).collect();
    let probed: Vec<(u32, f32, &[f32])> =
        probes.iter().flat_map(|probe| by_row(probe, &kept)).map(|(row, read)| (row, relevance[&row], read)).collect();
    let own = chains.received(&probed, &kept, &decision.order);
    let own = evidence::from_host(own, cx.models.main.device())?;
    let received = evidence::gather(cx, plan, &own, 1)?;
    Ok(Found { received, order: decision.order, rows, rounds, sharpest: decision.sharpest })
}

/// The attention of `rows` to `kept` as if every other chunk stood before their own.
fn probe(cx: &mut Context<'_>, plan: &Plan, chunks: &mut Chunks, rows: &[u32], kept: &[u32]) -> Result<FreeReadings> {
    let placement = cx.placement(plan, &plan.request_order(), Layout::Global)?;
    let homes = recompute::homes(cx, plan, &placement, (rows, Vec::new()), Exchange::PassQ);
    let heads = chosen_heads(cx, plan, chunks, &homes)?;
    let embedded = recompute::embed(cx, plan, &homes)?;
    let apart = cx.apart(plan)?;
    let attention = FreeProbe::new(cx.math.clone(), &mut *cx.comm, (plan, &apart), &homes, &chunks.cache);
    let mut attention = if let Some(heads) = heads { attention.of_heads(heads) } else { attention };
    let mut awaited = chunks.arrivals.awaited(&cx.models, &|_| 0, &mut attention);
    cx.models.main.up_to_attention(cx.models.main.config().layers - 1, embedded, &mut awaited)?;
    attention.into_readings(&homes, kept)
}

/// The heads that count for each row, if not all do: a separate probe finds them. The same on every
/// rank.
fn chosen_heads(cx: &mut Context<'_>, plan: &Plan, chunks: &mut Chunks, homes: &Homes) -> Result<Option<ChosenHeads>> {
    let (layers, heads) = (cx.models.main.config().layers, cx.models.main.config().heads);
    let Some(count) = plan.traces().and_then(|trace| trace.heads.count(layers * heads)) else {
        return Ok(None);
    };
    let embedded = recompute::embed(cx, plan, homes)?;
    let apart = cx.apart(plan)?;
    let mut attention =
        FreeProbe::new(cx.math.clone(), &mut *cx.comm, (plan, &apart), homes, &chunks.cache).for_peaks();
    let mut awaited = chunks.arrivals.awaited(&cx.models, &|_| 0, &mut attention);
    cx.models.main.up_to_attention(layers - 1, embedded, &mut awaited)?;
    let own = attention.into_peaks();
    assert_eq!(own.len(), layers, "layers in which peaks were read");
    // Every rank has the attention of rows to its own columns: the largest of all ranks counts.
    let own = join(&own.iter().collect::<Vec<_>>(), 1)?;
    let rows = own.dim(0)?;
    let mut largest = vec![vec![0f32; rows * heads]; layers];
    for peaks in cx.comm.all_gather_v(&own, &vec![rows; cx.comm.size()])? {
        for (row, peaks) in cuda::download(&peaks)?.to_vec2::<f32>()?.into_iter().enumerate() {
            for (index, peak) in peaks.into_iter().enumerate() {
                let found = &mut largest[index / heads][row * heads + index % heads];
                *found = found.max(peak);
            }
        }
    }
    Ok(Some(ChosenHeads::sharpest(&largest, heads, count, cx.models.main.device())?))
}

/// Each probed row and its attention to `kept`.
fn by_row<'a>(probe: &'a FreeReadings, kept: &[u32]) -> impl Iterator<Item = (u32, &'a [f32])> {
    let width = kept.len();
    probe.rows.iter().enumerate().map(move |(index, &row)| (row, &probe.amounts[index * width..][..width]))
}

/// Readings that rank 0 has received; empty on the other ranks.
#[derive(Default)]
struct Told {
    /// Readings that may be sharp.
    reads: Vec<Read>,
    /// The readings in the other direction, by row and the row that it attends to.
    reverse: HashMap<(u32, u32), f32>,
}

impl Told {
    /// Adds the readings of the last of `probes`, and their reverses.
    fn listen(&mut self, cx: &mut Context<'_>, chains: &Chains, probes: &[FreeReadings], kept: &[u32]) -> Result<()> {
        let last = probes.last().map(|probe| by_row(probe, kept)).into_iter().flatten();
        let read = |(row, amounts): (u32, &[f32])| {
            let reads = kept.iter().zip(amounts).map(move |(&of, &amount)| Read { row, of, amount });
            reads.filter(|read| chains.may_be_sharp(read)).collect::<Vec<Read>>()
        };
        let own: Vec<Read> = last.flat_map(read).collect();
        self.reads.extend(collect(cx, &own)?.concat());
        let probed: HashSet<u32> = probes.iter().flat_map(|probe| probe.rows.iter().copied()).collect();
        let unknown = |read: &&Read| probed.contains(&read.of) && !self.reverse.contains_key(&(read.of, read.row));
        let asked = self.reads.iter().filter(unknown).map(|read| (read.of, read.row)).collect();
        let asked: Vec<(u32, u32)> = agree(cx, (cx.rank() == 0).then_some(asked))?;
        let mut wanted: HashMap<u32, Vec<u32>> = HashMap::new();
        asked.into_iter().for_each(|(row, of)| wanted.entry(row).or_default().push(of));
        let answer = |(row, amounts): (u32, &[f32])| {
            let of = wanted.get(&row).map_or(&[][..], Vec::as_slice);
            let place = |of: u32| kept.iter().position(|&other| other == of);
            let found = |&of: &u32| Some(Read { row, of, amount: amounts[place(of)?] });
            of.iter().filter_map(found).collect::<Vec<Read>>()
        };
        let own: Vec<Read> = probes.iter().flat_map(|probe| by_row(probe, kept)).flat_map(answer).collect();
        let answers = collect(cx, &own)?.concat();
        self.reverse.extend(answers.into_iter().map(|read| ((read.row, read.of), read.amount)));
        Ok(())
    }

    /// The next rows, and relevance and order if there are none.
    fn decide(&self, chains: &Chains, trace: Trace, probed: &[u32], rounds: usize) -> Decision {
        let sharp = chains.sharp(&self.reads, &self.reverse);
        let relevance = chains.relevance(&sharp);
        let next = if rounds < trace.rounds { chains.frontier(&relevance, probed) } else { Vec::new() };
        let order = chains.order(&sharp, &relevance);
        let sharpest = chains.sharpest(&sharp);
        Decision { next, relevance: chains.of_rows(&relevance, probed), order, sharpest }
    }
}
