//! The oracle's number for every context row: the query's rows attend to the cache as it is, then
//! to a full prefill of the same rows, which is computed in addition and discarded.

use tributary_model::Attention;
use tributary_protocol::{Evidence, Exchange, Layout, Plan};

use super::chunks::Chunks;
use super::evidence::{from_host, gather, look};
use super::recompute;
use crate::attention::{OraclePass, Placed};
use crate::context::Context;
use crate::error::{Error, Result};

/// The difference of each context row's contribution to the query's rows between the cache and a
/// full prefill, with chunks in `order`: one number a context row, the same on every rank.
/// In each layer it is the norm of the difference between the values, each times the mean attention
/// of the query's rows over rows and heads. The number is the mean over the layers.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails, or if numbers are not finite.
pub(super) fn differences(
    cx: &mut Context<'_>,
    plan: &Plan,
    chunks: &mut Chunks,
    evidence: Evidence,
    order: &[u32],
) -> Result<Vec<f32>> {
    let paid = look(cx, plan, chunks, evidence, order, Some(Vec::new()))?.of_layers;
    let paid = paid.ok_or(Error::Bug("a probe keeps the layers that it is asked for"))?;
    let placement = cx.placement(plan, order, Layout::Global)?;
    let context = plan.context_row_numbers();
    let homes = recompute::homes(cx, plan, &placement, (&context, plan.query_rows().collect()), Exchange::PassQ);
    let rows = recompute::embed(cx, plan, &homes)?;
    let (model, math) = (cx.models.main, cx.math.clone());
    let layers = model.config().layers;
    assert_eq!(paid.len(), layers, "layers in which the query looked at the cache");
    // The probe has waited for every layer of chunks that are read.
    let placed = Placed { cache: &chunks.cache, placement: &placement, hidden: &context };
    let mut pass = OraclePass::new(math, &mut *cx.comm, (plan, &homes), placed, paid);
    let rows = model.layers(0..layers - 1, rows, &mut pass)?;
    let progress = pass.progress().clone();
    progress.layer(layers - 1, || {
        let asking = pass.last_layer(rows.len());
        pass.attend(layers - 1, model.qkv_in_slices(layers - 1, &rows, asking)?)
    })?;
    let mut of_row = vec![0.0; plan.total_rows()];
    pass.into_measured().for_each(|(row, difference)| of_row[row as usize] = difference);
    let own: Vec<f32> = plan.kept_by(cx.rank()).iter().map(|&row| of_row[row as usize]).collect();
    let own = from_host(own, model.device())?;
    gather(cx, plan, &own, layers * plan.query_tokens())
}
