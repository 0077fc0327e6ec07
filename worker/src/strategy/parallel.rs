//! The last step of a method that recomputes nothing and lets contexts stand beside each other: the query's rows, on the owner.

use tributary_protocol::{Ape, Plan};

use super::arrivals::Arrivals;
use crate::attention::Parallel;
use crate::context::Context;
use crate::error::Result;
use crate::kv::KvCache;
use crate::model::Rows;
use crate::placement::Placement;

/// Runs the query's rows, which join the cache. The last of them on the owner.
///
/// # Errors
/// Kernels' and communicator's.
pub(super) fn query(
    cx: &mut Context<'_>,
    plan: &Plan,
    (cache, arrivals): (&mut KvCache, &mut Arrivals),
    placement: &Placement,
    ape: Ape,
) -> Result<Option<Rows>> {
    let is_owner = cx.rank() == plan.owner;
    let rows = cx.embed(&if is_owner { plan.query_sources() } else { Vec::new() })?;
    cx.recomputed_rows = rows.len();
    let models = cx.models.clone();
    let mut pass = Parallel::new(cx.math.clone(), &mut *cx.comm, plan, ape, cache, placement);
    let last = arrivals.prompt(&models, rows, &mut pass)?;
    cache.tail = pass.into_tail().complete(models.main.config().layers);
    Ok(is_owner.then_some(last))
}
