//! Orders that fill caches: a request up to its first token, or chunks ahead of use.

use std::cell::RefCell;

use tributary_comm::{Communicator, Traffic};
use tributary_kernels::cuda::{self, Pool};
use tributary_protocol::{
    DeviceMemory, DrawnToken, Event, Exchange, Outcome, Phase, Plan, RankReport, Refusal, ScoredQuery, ScoredToken,
};
use tributary_system::memory;

use super::Rank;
use super::check::check;
use super::decoding::Decoding;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::evict::{self, Remains};
use crate::first_token::{FirstToken, first_token, score_query};
use crate::handing::{self, Filling};
use crate::sequence::{Sequence, Start, Turned};
use crate::strategy::{self, Prefilled, Selection};
use crate::timeline::Halt;

/// Report of a rank at the end of a prefill.
#[derive(serde::Serialize, serde::Deserialize)]
enum Told {
    /// Its report, and the outcome if it is the owner.
    Filled(Box<(RankReport, Option<Outcome>)>),
    /// The request was cancelled during its prefill.
    Cancelled(Box<RankReport>),
    /// The refusal that ended the request, and the traffic up to it.
    Refused(Refusal, Traffic),
}

/// A filled cache, and the first token drawn from it.
struct Filled {
    prefilled: Prefilled,
    /// This rank's part of the sequence, if the request has gone on from a kept one.
    turned: Option<Turned>,
    first: FirstToken,
    /// Log-probabilities of the query's tokens, if requested.
    prompt: Option<Vec<ScoredToken>>,
    /// Its remainder, if rows are evicted.
    remains: Option<Remains>,
    /// The first lap after the first token.
    first_lap_after: usize,
}

impl Rank<'_, '_> {
    /// Fills the cache of a request and draws its first token.
    pub(super) fn prefill(&mut self, plan: &Plan) -> Result<()> {
        let told = match self.run(plan) {
            Ok(told) => told,
            Err(error) if error.is_the_requests() => {
                // The group lives on: messages in flight have to arrive, so that no later call
                // receives them.
                self.comm.finish_started()?;
                Told::Refused(error.refusal(), Traffic::sum(&self.comm.laps()))
            }
            Err(error) => return Err(error),
        };
        self.answer(plan, told)?;
        // A program that is about to read the keys has been told by now, and is on its way.
        if plan.hands_over { self.decoding.borrow_mut().turn(plan.request) } else { Ok(()) }
    }

    /// Fills the chunk cache with a plan's chunks.
    pub(super) fn chunks(&mut self, plan: &Plan) -> Result<()> {
        // Nothing is gathered: every rank keeps its own.
        let plan = Plan { exchange: Exchange::PassQ, budget: 0, keep_chunks: true, ..plan.clone() };
        let decoding = self.decoding;
        let mut cx = self.context(&plan)?;
        let (report, is_cancelled) = match fill_chunks(&mut cx, &plan) {
            Ok(()) => {
                cx.timeline.close(cx.comm)?;
                (report(cx, &plan, (false, usize::MAX), &decoding.borrow().halts)?, false)
            }
            Err(Error::Cancelled) => (cancelled(cx, &plan, &decoding.borrow().halts)?, true),
            Err(error) => return Err(error),
        };
        let (request, reports) = (plan.request, self.gather(&report)?);
        in_step(&reports)?;
        self.tell(|| match is_cancelled {
            true => Event::Cancelled { request, reports },
            false => Event::Kept { request, reports },
        })
    }

    fn run(&mut self, plan: &Plan) -> Result<Told> {
        check(plan, &self.models, self.comm.size())?;
        let (link, decoding) = (self.link, self.decoding);
        // Chunks of the last request wait to be stored until this one's first token is out.
        let computing = self.chunk_cache.store().map(|store| store.computing());
        let mut cx = self.context(plan)?;
        let tell = |drawn| {
            drop(computing);
            link.map_or(Ok(()), |link| Ok(link.send(Event::FirstToken { request: plan.request, drawn })?))
        };
        let filling = plan.hands_over.then(|| Filling::new(plan.request, cx.math.layers.clone()));
        let filled = handing::filled(filling.as_ref(), || fill(&mut cx, plan, decoding, tell));
        // It would keep the keys before RoPE.
        drop(filling);
        let filled = match filled {
            Err(Error::Cancelled) => {
                return Ok(Told::Cancelled(Box::new(cancelled(cx, plan, &decoding.borrow().halts)?)));
            }
            filled => filled?,
        };
        let Filled { prefilled, turned, first, prompt, remains, first_lap_after } = filled;
        let FirstToken { drawn, logits, sampler } = first;
        let is_owner = cx.rank() == prefilled.owner;
        let (token, margin) = (drawn.token, drawn.margin);
        let layers = cx.math.layers.clone();
        let report = report(cx, plan, (is_owner, first_lap_after), &decoding.borrow().halts)?;
        let report = RankReport { evicted: remains.as_ref().map(|remains| remains.report), ..report };
        let outcome = is_owner.then(|| outcome(plan, prefilled.selection.clone(), (token, margin), logits));
        let asked = remains.as_ref().filter(|_| plan.returns.scores);
        let outcome = outcome.map(|outcome| Outcome {
            prompt: prompt.map(|tokens| Box::new(ScoredQuery(tokens))),
            kept: asked.map(|remains| Box::new(remains.kept.clone())),
            ..outcome
        });
        if plan.leaves_sequence(token) {
            let rank = self.comm.rank();
            let sequence = match remains {
                _ if plan.continues.is_some() => {
                    Sequence::of_turned(plan, (turned, prefilled.alone), (token, sampler), rank)
                }
                Some(remains) => {
                    let (placement, tokens) = (prefilled.placement, plan.max_tokens);
                    Sequence::of_remains(plan, Start { placement, tokens, first: token, sampler }, remains, rank)
                }
                None => Sequence::new(plan, prefilled, token, sampler, rank)?,
            };
            let mut sequence = sequence;
            let has_no_step = !plan.goes_on(&[token]) && !plan.hands_over;
            if has_no_step || plan.has_pictures() || plan.windows_from > 0 {
                // No step follows, or other requests come first: it keeps what later rows see, and
                // no more. Keys of pictures are turned here, since the tables of later steps lack
                // their places.
                sequence.turn(&layers)?;
            }
            decoding.borrow_mut().sequences.insert(plan.request, sequence);
        }
        Ok(Told::Filled(Box::new((report, outcome))))
    }

    /// The tools for a request's passes.
    fn context(&mut self, plan: &Plan) -> Result<Context<'_>> {
        // As many as rows: pictures take fewer.
        let kept = plan.continues.map_or(0, |continues| self.decoding.borrow().positions(continues.request));
        let positions = plan.positions(self.models.main.config().max_positions).max(kept);
        self.comm.reset_traffic();
        self.chunk_cache.begin();
        let models = self.models.clone();
        Context::new(models, &mut self.comm, self.kernels, (plan, positions), &self.progress, self.chunk_cache)
    }

    /// Gathers every rank's report on rank 0, which answers the coordinator.
    fn answer(&mut self, plan: &Plan, told: Told) -> Result<()> {
        let gathered: Vec<Told> = self.gather(&told)?;
        let Some(link) = self.link else { return Ok(()) };
        let (request, ranks) = (plan.request, gathered.len());
        let (mut filled, mut let_go, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for told in gathered {
            match told {
                Told::Filled(told) => filled.push(*told),
                Told::Cancelled(report) => let_go.push(*report),
                Told::Refused(refusal, traffic) => refused.push((refusal, traffic)),
            }
        }
        if ![filled.len(), let_go.len(), refused.len()].contains(&ranks) {
            return Err(Error::Bug("a request ended in one way on some ranks and not on the others"));
        }
        let (refusals, traffic): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
        if let Some(refusal) = refusals.into_iter().next() {
            return Ok(link.send(Event::Refused { request, refusal, traffic })?);
        }
        let (reports, outcomes): (Vec<_>, Vec<_>) = filled.into_iter().unzip();
        let is_cancelled = !let_go.is_empty();
        let reports = if is_cancelled { let_go } else { reports };
        in_step(&reports)?;
        if is_cancelled {
            return Ok(link.send(Event::Cancelled { request, reports })?);
        }
        let mut outcomes = outcomes.into_iter().flatten();
        let outcome = outcomes.next().ok_or(Error::Bug("no rank drew the first token"))?;
        assert_eq!(outcomes.count(), 0, "outcomes besides the owner's");
        Ok(link.send(Event::Prefilled { request, outcome: Box::new(outcome), reports })?)
    }
}

/// Checks that all ranks passed the same control points.
fn in_step(reports: &[RankReport]) -> Result<()> {
    match reports.windows(2).all(|pair| pair[0].points == pair[1].points) {
        true => Ok(()),
        false => Err(Error::Bug("ranks passed different numbers of control points")),
    }
}

/// Fills a request's cache, draws its first token, keeps its chunks, and evicts rows that decoding
/// does not keep. The token goes to `tell` as soon as it is drawn.
fn fill(
    cx: &mut Context<'_>,
    plan: &Plan,
    decoding: &RefCell<Decoding<'_, '_>>,
    tell: impl FnOnce(DrawnToken) -> Result<()>,
) -> Result<Filled> {
    strategy::vision::look(cx, plan)?;
    let (prefilled, turned) = match plan.continues {
        None => (strategy::build(&plan.method)?.prefill(cx, plan)?, None),
        Some(continues) => {
            // Not borrowed while the pass runs, which may halt.
            let (mut turned, alone) = decoding.borrow_mut().going_on(plan, continues, &cx.math.layers)?;
            (strategy::going_on::go_on(cx, plan, &mut turned, alone)?, turned)
        }
    };
    let first = first_token(cx, plan, &prefilled)?;
    tell(first.drawn.clone())?;
    let prompt = score_query(cx, plan, &prefilled)?;
    let first_lap_after = cx.timeline.close(cx.comm)?;
    // The first token is out already: copying does not count towards it.
    if plan.continues.is_none() {
        strategy::chunks::keep(cx, plan, &prefilled.cache)?;
        strategy::prefix::keep(cx, plan, &prefilled.cache)?;
    }
    let token = first.drawn.token;
    let remains = if plan.goes_on(&[token]) { remains(cx, plan, &prefilled, token)? } else { None };
    Ok(Filled { prefilled, turned, first, prompt, remains, first_lap_after })
}

/// Fills the chunk cache with a plan's chunks.
fn fill_chunks(cx: &mut Context<'_>, plan: &Plan) -> Result<()> {
    strategy::vision::look(cx, plan)?;
    let chunks = strategy::chunks::prefill(cx, plan)?;
    let (mut cache, arrivals) = chunks.receive(cx, plan)?;
    arrivals.settle(cx, plan, &mut cache)?;
    strategy::chunks::keep(cx, plan, &cache)
}

/// The report of this rank on a cancelled request. Messages in flight arrive first, so that no
/// later call receives them: at a control point all ranks have begun the same calls.
fn cancelled(cx: Context<'_>, plan: &Plan, halts: &[Halt]) -> Result<RankReport> {
    let mut cx = cx;
    cx.comm.finish_started()?;
    cx.timeline.close(cx.comm)?;
    tracing::debug!(request = plan.request, rank = cx.rank(), points = cx.math.progress.point_count(), "cancelled");
    report(cx, plan, (false, usize::MAX), halts)
}

/// The remainder of a filled cache if rows are evicted and another token follows; otherwise a
/// look-ahead attends to it.
fn remains(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled, first: u32) -> Result<Option<Remains>> {
    let remains = evict::evict(cx, plan, prefilled, first)?;
    if remains.is_none() {
        strategy::ahead::look_ahead(cx, plan, prefilled)?;
    }
    Ok(remains)
}

/// The report of this rank. Laps from `first_lap_after` on come after the first token; `halts` are
/// times of other work.
fn report(
    cx: Context<'_>,
    plan: &Plan,
    (drew_first_token, first_lap_after): (bool, usize),
    halts: &[Halt],
) -> Result<RankReport> {
    let (device_memory, points) = (device_memory(&cx)?, cx.math.progress.point_count());
    let Context { comm, timeline, prefilled_rows, recomputed_rows, auxiliary_s, chunk_cache, .. } = cx;
    let spans = timeline.into_spans(comm, halts)?;
    if plan.method.in_chunks() && plan.continues.is_none() {
        let of_chunks = spans.iter().filter(|span| span.phase == Phase::ChunkPrefill);
        chunk_cache.computed(prefilled_rows, of_chunks.map(|span| span.seconds - span.waited_s).sum());
    }
    let laps = comm.laps();
    let (prefill_laps, laps_after) = laps.split_at(first_lap_after.min(laps.len()));
    let (traffic, decode_traffic) = (Traffic::sum(prefill_laps), Traffic::sum(laps_after));
    Ok(RankReport {
        rank: comm.rank(),
        drew_first_token,
        spans,
        traffic,
        decode_traffic,
        prefilled_rows,
        recomputed_rows,
        auxiliary_s,
        points,
        evicted: None,
        chunk_cache: chunk_cache.report(),
        device_memory,
        resident_bytes: memory::resident_bytes().unwrap_or(0),
    })
}

/// The memory in use on the model's device, if it has a memory of its own.
fn device_memory(cx: &Context<'_>) -> Result<Option<DeviceMemory>> {
    if cx.models.main.device().is_cpu() {
        return Ok(None);
    }
    let Pool { used_bytes, used_high_bytes, reserved_bytes } = cuda::pool(cx.models.main.device())?;
    let message_bytes = cx.comm.message_bytes();
    Ok(Some(DeviceMemory { used_bytes, high_bytes: used_high_bytes, reserved_bytes, message_bytes }))
}

fn outcome(plan: &Plan, selection: Selection, (token, margin): (u32, f32), logits: Option<Vec<f32>>) -> Outcome {
    Outcome {
        tokens: vec![token],
        margins: vec![margin],
        order: selection.order,
        selected: selection.rows,
        measured: selection.measured,
        rounds: selection.rounds,
        sharpest: selection.sharpest,
        candidates: selection.candidates,
        logits: logits.filter(|_| plan.returns.logits),
        scores: selection.scores.filter(|_| plan.returns.scores),
        prompt: None,
        kept: None,
        kept_of_chunks: selection.held.map(Box::new),
    }
}
