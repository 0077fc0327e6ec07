//! Selective recompute: chunks are prefilled on their own, the query (or a rule) selects rows, and
//! those are recomputed at their global positions.
//! *Approximate*; exact where every row is selected, or with one chunk. One pipeline for every
//! selector.

use tributary_methods::{Candidates, Need, REORDER, Selector};
use tributary_protocol::{Evidence, Layout, OrderFor, Phase, Plan, Sharpest};

use super::agree::agree;
use super::candidates::{candidates, chunk_order};
use super::chunks::Chunks;
use super::interface::{Prefilled, Selection, Strategy};
use super::{auxiliary, chunks, drift, evidence, oracle, parallel, recompute, trace};
use crate::context::Context;
use crate::error::{Error, Result};

/// The pipeline around a selector.
pub struct Selective {
    /// Selector of the rows to recompute.
    pub selector: Box<dyn Selector>,
}

impl Strategy for Selective {
    fn prefill(&mut self, cx: &mut Context<'_>, plan: &Plan) -> Result<Prefilled> {
        let (mut chunks, read) = auxiliary::beside(cx, plan, |cx| chunks::prefill(cx, plan))?;
        let read = read?;
        let order = reorder(cx, plan, &mut chunks)?;
        let mut selection = self.select(cx, plan, &mut chunks, (order, read))?;
        let layout = if plan.method.parallel().is_some() { Layout::HlHp } else { Layout::Global };
        let placement = cx.placement(plan, &selection.order, layout)?;
        let apart = plan.order_for == OrderFor::Selection && selection.order != plan.request_order();
        let reading = apart.then(|| cx.placement(plan, &plan.request_order(), layout)).transpose()?;
        cx.enter(Phase::Recompute, plan)?;
        let (mut cache, mut arrivals) = chunks.receive(cx, plan)?;
        selection.held = chunks::kept_rows(cx, plan, &cache)?;
        let filled = (&mut cache, &mut arrivals);
        let output = match plan.method.parallel() {
            Some(ape) => parallel::query(cx, plan, filled, &placement, ape)?,
            None => {
                let placements = (&placement, reading.as_ref());
                recompute::recompute(cx, plan, filled, placements, &selection.rows)?
            }
        };
        arrivals.settle(cx, plan, &mut cache)?;
        Ok(Prefilled {
            owner: plan.owner,
            output,
            cache,
            alone: plan.decodes_alone(cx.comm.size()),
            placement: reading.unwrap_or(placement),
            selection,
        })
    }
}

impl Selective {
    /// Runs the selector stage by stage, given the order of the chunks and the readings of
    /// auxiliary models. Rank 0 takes the best rows and broadcasts them.
    pub(super) fn select(
        &mut self,
        cx: &mut Context<'_>,
        plan: &Plan,
        chunks: &mut Chunks,
        (mut order, read): (Vec<u32>, Vec<Vec<f32>>),
    ) -> Result<Selection> {
        let mut candidates = candidates(plan, &order, read);
        let mut count = candidates.rows.len();
        if plan.budget == 0 {
            return Ok(Selection { order, candidates: count, ..Selection::default() });
        }
        let (mut seen, mut measured, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sharpest, mut asked) = (Sharpest::default(), None);
        let evidence = || plan.method.evidence().ok_or(Error::Bug("the method does not probe the query"));
        loop {
            clear_around(plan, &mut seen);
            match self.selector.next(&candidates, &seen) {
                Need::Probe => {
                    cx.enter(Phase::Probe, plan)?;
                    let probed = evidence::probe(cx, plan, chunks, evidence()?, &order)?;
                    (seen, asked) = (probed.scores, probed.asked);
                }
                Need::Within(wanted) => {
                    let asked =
                        asked.take().ok_or(Error::Bug("rows of chunks are scored after a probe of their anchors"))?;
                    seen = evidence::within(cx, plan, chunks, (evidence()?, &order), (asked, &wanted))?;
                }
                Need::Pass { rows, weights } => {
                    cx.enter(Phase::Probe, plan)?;
                    candidates.check(&rows, candidates.measured);
                    seen = evidence::pass(cx, plan, chunks, &order, &rows, &weights)?;
                    measured = rows;
                }
                Need::Trace(scores) => {
                    cx.enter(Phase::Probe, plan)?;
                    let found = trace::follow(cx, plan, chunks, &scores)?;
                    (seen, measured, rounds, order) = (found.received, found.rows, found.rounds, found.order);
                    sharpest = found.sharpest;
                    candidates = self::candidates(plan, &order, std::mem::take(&mut candidates.auxiliary));
                    count = candidates.rows.len();
                }
                Need::Oracle => {
                    cx.enter(Phase::Probe, plan)?;
                    seen = oracle::differences(cx, plan, chunks, evidence()?, &order)?;
                }
                Need::Drift => {
                    cx.enter(Phase::Probe, plan)?;
                    let drift = plan.method.drift().ok_or(Error::Bug("the method does not measure drift"))?;
                    (seen, measured) = drift::measure(cx, plan, chunks, &candidates, &order, drift)?;
                }
                answer => {
                    cx.enter(Phase::Select, plan)?;
                    let (rows, scores) = decide(cx, plan, &candidates, answer)?;
                    let held = None;
                    return Ok(Selection { order, rows, measured, rounds, sharpest, candidates: count, scores, held });
                }
            }
        }
    }
}

/// Clears the numbers of rows around chunks' tokens, in a list of one a context row: attention to
/// them says nothing about any token.
pub(super) fn clear_around(plan: &Plan, numbers: &mut [f32]) {
    if numbers.is_empty() || plan.chunks.iter().all(|chunk| chunk.around.is_none()) {
        return;
    }
    let (first, mut tokens) = (plan.prefix_tokens() as u32, plan.token_rows().into_iter().peekable());
    for (row, number) in (first..).zip(numbers) {
        if tokens.next_if_eq(&row).is_none() {
            *number = 0.0;
        }
    }
}

/// The rows of a selector's answer, the same on every rank, and their scores. For scores, rank 0
/// takes the best rows and broadcasts them.
fn decide(
    cx: &mut Context<'_>,
    plan: &Plan,
    candidates: &Candidates,
    answer: Need,
) -> Result<(Vec<u32>, Option<Vec<f32>>)> {
    let (rows, scores, most) = match answer {
        Need::Scores(scores) => {
            let best = (cx.rank() == 0).then(|| candidates.top(&scores, plan.budget));
            let rows = agree(cx, best)?;
            assert_eq!(rows.len(), plan.budget.min(candidates.rows.len()), "selected rows");
            (rows, Some(scores), plan.budget)
        }
        Need::Chosen { rows, scores } => (rows, Some(scores), plan.budget),
        Need::Rows(rows) => (rows, None, candidates.rows.len()),
        need => unreachable!("{need:?} is no answer"),
    };
    candidates.check(&rows, most);
    Ok((rows, scores))
}

/// The order of the chunks: the request's own, or by importance, which the query's probe in the
/// HL-TP layout decides.
pub(super) fn reorder(cx: &mut Context<'_>, plan: &Plan, chunks: &mut Chunks) -> Result<Vec<u32>> {
    let given = plan.request_order();
    let Some(importance) = plan.reorder else {
        return Ok(given);
    };
    let Some(evidence) = plan.method.evidence() else {
        return Err(Error::Plan(format!("method {} cannot reorder: it does not probe the query", plan.method.name())));
    };
    if !plan.method.takes(&REORDER) {
        return Err(Error::Plan(format!("method {} finds an order by itself", plan.method.name())));
    }
    if !plan.reorders() {
        return Ok(given);
    }
    cx.enter(Phase::Reorder, plan)?;
    let evidence = Evidence { layout: Layout::HlTp, ..evidence };
    let mut scores = evidence::probe(cx, plan, chunks, evidence, &given)?.scores;
    clear_around(plan, &mut scores);
    let order = (cx.rank() == 0).then(|| chunk_order(plan, &scores, importance));
    let order = agree(cx, order)?;
    assert_eq!(order.len(), plan.chunks.len(), "chunks in the order {order:?}");
    Ok(order)
}
