//! The last step of a method with parallel contexts and no recompute: the query's rows, on the
//! owner.

use tributary_protocol::{Ape, Plan};

use super::arrivals::Arrivals;
use super::output::{self, Output};
use crate::attention::{Parallel, Placed};
use crate::context::Context;
use crate::error::Result;
use crate::kv::KvCache;
use crate::placement::Placement;

/// Runs the query's rows, which join the cache.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub(super) fn query(
    cx: &mut Context<'_>,
    plan: &Plan,
    (cache, arrivals): (&mut KvCache, &mut Arrivals),
    placement: &Placement,
    ape: Ape,
) -> Result<Output> {
    let (rank, is_owner) = (cx.rank(), cx.rank() == plan.owner);
    let rows = cx.embed(&if is_owner { plan.query_sources() } else { Vec::new() })?;
    cx.recomputed_rows = rows.len();
    let models = cx.models.clone();
    let placed = Placed { cache, placement, hidden: &[] };
    let mut pass = Parallel::new(cx.math.clone(), &mut *cx.comm, plan, ape, placed);
    let numbers: Vec<u32> = if is_owner { plan.query_rows().collect() } else { Vec::new() };
    let output = output::run_arriving((&models, plan, rank), arrivals, (rows, &numbers), &mut pass)?;
    cache.tail = pass.into_tail().complete(models.main.config().layers);
    Ok(output)
}
