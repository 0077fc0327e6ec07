//! The orders that fill caches: a request up to its first token, or chunks ahead of use.

use tributary_comm::Traffic;
use tributary_kernels::cuda::{self, Pool};
use tributary_protocol::{DeviceMemory, Event, Exchange, Layout, Outcome, Phase, Plan, RankReport, Refusal};
use tributary_system::memory;

use super::Rank;
use super::check::check;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::evict::{self, Remains};
use crate::first_token::{FirstToken, first_token, score_query};
use crate::placement::Placement;
use crate::sequence::Sequence;
use crate::strategy::{self, Prefilled, Selection};

/// A rank's result at the end of a prefill: its report, and the outcome if it is the owner; or the refusal that ended the request, and
/// the traffic until then.
type PrefillResult = std::result::Result<(RankReport, Option<Outcome>), (Refusal, Traffic)>;

impl Rank<'_> {
    /// Fills the cache of a request and draws its first token.
    pub(super) fn prefill(&mut self, plan: &Plan) -> Result<()> {
        let told = match self.run(plan) {
            Ok(told) => Ok(told),
            Err(error) if error.is_the_requests() => Err((error.refusal(), Traffic::sum(self.comm.laps()))),
            Err(error) => return Err(error),
        };
        self.answer(plan, told)
    }

    /// Fills the chunk cache with a plan's chunks.
    pub(super) fn chunks(&mut self, plan: &Plan) -> Result<()> {
        // Nothing is gathered: every rank keeps its own.
        let plan = Plan { exchange: Exchange::PassQ, budget: 0, keep_chunks: true, ..plan.clone() };
        let mut cx = self.context(&plan)?;
        let chunks = strategy::chunks::prefill(&mut cx, &plan)?;
        let (mut cache, arrivals) = chunks.receive(&mut cx, &plan)?;
        arrivals.settle(&mut cx, &plan, &mut cache)?;
        strategy::chunks::keep(&mut cx, &plan, &cache)?;
        cx.timeline.close(cx.comm)?;
        let report = report(cx, &plan, false, usize::MAX)?;
        let reports = self.gather(&report)?;
        self.tell(|| Event::Kept { request: plan.request, reports })
    }

    fn run(&mut self, plan: &Plan) -> Result<(RankReport, Option<Outcome>)> {
        check(plan, &self.models, self.comm.size())?;
        let link = self.link;
        // What the last request left to be stored waits until this one's first token is out.
        let computing = self.chunk_cache.store().map(|store| store.computing());
        let mut cx = self.context(plan)?;
        let prefilled = strategy::build(&plan.method)?.prefill(&mut cx, plan)?;
        let is_owner = cx.rank() == prefilled.owner;
        let FirstToken { drawn, logits, sampler } = first_token(&mut cx, plan, &prefilled)?;
        let (token, margin) = (drawn.token, drawn.margin);
        if let Some(link) = link {
            link.send(Event::FirstToken { request: plan.request, drawn })?;
        }
        let prompt = score_query(&mut cx, plan, &prefilled)?;
        drop(computing);
        let first_lap_behind = cx.timeline.close(cx.comm)?;
        // The first token is long out: copying does not count towards it.
        strategy::chunks::keep(&mut cx, plan, &prefilled.cache)?;
        let goes_on = plan.goes_on(&[token]);
        let remains = if goes_on { remains(&mut cx, plan, &prefilled, token)? } else { None };
        let report = report(cx, plan, is_owner, first_lap_behind)?;
        let report = RankReport { evicted: remains.as_ref().map(|remains| remains.report), ..report };
        let outcome = is_owner.then(|| outcome(plan, prefilled.selection.clone(), (token, margin), logits));
        let asked = remains.as_ref().filter(|_| plan.returns.scores);
        let outcome = outcome.map(|outcome| Outcome {
            prompt,
            kept: asked.map(|remains| Box::new(remains.kept.clone())),
            ..outcome
        });
        if goes_on {
            let rank = self.comm.rank();
            let sequence = match remains {
                Some(remains) => {
                    Sequence::of_remains((plan, plan.max_tokens), prefilled.placement, remains, (token, sampler), rank)
                }
                None => Sequence::new(plan, prefilled, token, sampler, rank)?,
            };
            self.sequences.insert(plan.request, sequence);
        }
        Ok((report, outcome))
    }

    /// The tools that a request's passes are handed.
    fn context(&mut self, plan: &Plan) -> Result<Context<'_>> {
        let request_order: Vec<u32> = (0..plan.chunks.len() as u32).collect();
        let positions =
            Placement::new(plan, &request_order, Layout::Global).positions(plan.max_tokens.max(plan.passing_rows()));
        let traced = plan.traces().map_or(0, |_| plan.traced_positions());
        let positions = positions.max(traced.min(self.models.main.config().max_positions));
        self.comm.reset_traffic();
        self.chunk_cache.begin();
        let models = self.models.clone();
        Context::new(models, self.comm, self.kernels, (plan, positions), &self.progress, self.chunk_cache)
    }

    /// Gathers what every rank has to tell on rank 0, which tells the coordinator.
    fn answer(&mut self, plan: &Plan, told: PrefillResult) -> Result<()> {
        let gathered = self.gather(&told)?;
        let Some(link) = self.link else { return Ok(()) };
        let (told, refused): (Vec<_>, Vec<_>) = gathered.into_iter().partition(|told| told.is_ok());
        let request = plan.request;
        let (refusals, traffic): (Vec<_>, Vec<_>) = refused.into_iter().filter_map(PrefillResult::err).unzip();
        if let Some(refusal) = refusals.into_iter().next() {
            if !told.is_empty() {
                return Err(Error::Bug("a request failed on some ranks and not on the others"));
            }
            return Ok(link.send(Event::Refused { request, refusal, traffic })?);
        }
        let (reports, outcomes): (Vec<_>, Vec<_>) = told.into_iter().filter_map(PrefillResult::ok).unzip();
        let mut outcomes = outcomes.into_iter().flatten();
        let outcome = outcomes.next().ok_or(Error::Bug("no rank drew the first token"))?;
        assert_eq!(outcomes.count(), 0, "outcomes besides the owner's");
        Ok(link.send(Event::Prefilled { request, outcome, reports })?)
    }
}

/// What remains of a filled cache that another token is to be drawn from, where rows are evicted; else a look-ahead looks at it.
fn remains(cx: &mut Context<'_>, plan: &Plan, prefilled: &Prefilled, first: u32) -> Result<Option<Remains>> {
    let remains = evict::evict(cx, plan, prefilled, first)?;
    if remains.is_none() {
        strategy::ahead::look_ahead(cx, plan, prefilled)?;
    }
    Ok(remains)
}

/// The report of this rank. The laps from `first_lap_behind` on are behind the first token.
fn report(cx: Context<'_>, plan: &Plan, drew_first_token: bool, first_lap_behind: usize) -> Result<RankReport> {
    let device_memory = device_memory(&cx)?;
    let Context { comm, timeline, prefilled_rows, recomputed_rows, auxiliary_s, chunk_cache, .. } = cx;
    let spans = timeline.into_spans(comm)?;
    if plan.method.selection().is_some() {
        let of_chunks = spans.iter().filter(|span| span.phase == Phase::ChunkPrefill);
        chunk_cache.computed(prefilled_rows, of_chunks.map(|span| span.seconds - span.waited_s).sum());
    }
    let laps = comm.laps();
    let (prefill_laps, laps_behind) = laps.split_at(first_lap_behind.min(laps.len()));
    let (traffic, decode_traffic) = (Traffic::sum(prefill_laps), Traffic::sum(laps_behind));
    Ok(RankReport {
        rank: comm.rank(),
        drew_first_token,
        spans,
        traffic,
        decode_traffic,
        prefilled_rows,
        recomputed_rows,
        auxiliary_s,
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
