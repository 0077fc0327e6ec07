//! A later request of a conversation: only the rows after those that it shares with the kept
//! sequence of an earlier one are computed. They attend to that sequence as rows of decoding do,
//! so everything that its method has decided stays: exact methods stay exact, and selective ones
//! keep the selection of the first turn.

use tributary_protocol::{Layout, Phase, Plan, Source};

use super::interface::{Prefilled, nothing_selected};
use super::output::{self, Output};
use crate::attention::{Decode, DecodeRun, SharedCaches};
use crate::context::Context;
use crate::error::Result;
use crate::kv::KvCache;
use crate::sequence::Turned;

/// Computes the rows after the shared ones, which are this rank's part of the sequence in `turned`;
/// `alone` says whether the owner holds all of it.
///
/// # Errors
/// Returns an error if a kernel or the communicator fails.
pub fn go_on(cx: &mut Context<'_>, plan: &Plan, turned: &mut Option<Turned>, alone: bool) -> Result<Prefilled> {
    cx.enter(Phase::ChunkPrefill, plan)?;
    let mut this = Prefilled {
        owner: plan.owner,
        output: Output::default(),
        cache: KvCache::default(),
        alone,
        placement: cx.placement(plan, &plan.request_order(), Layout::Global)?,
        selection: nothing_selected(plan),
    };
    let numbers: Vec<u32> = plan.rows_after_kept().unwrap_or_default().collect();
    let math = cx.math.sliced(plan.context_slices(numbers.len()));
    let (rank, is_owner, layers) = (cx.rank(), cx.rank() == plan.owner, cx.models.main.config().layers);
    let Some(turned) = turned else {
        math.progress.idle_layers(layers)?;
        return Ok(this);
    };
    let at = turned.begin_rows(numbers.len(), is_owner);
    let mut counts = vec![0; cx.comm.size()];
    counts[plan.owner] = numbers.len();
    let numbers = if is_owner { numbers } else { Vec::new() };
    let all = plan.sources();
    let sources: Vec<Source> = numbers.iter().map(|&row| all[row as usize]).collect();
    let rows = (cx.embed(&sources)?, &*numbers);
    cx.prefilled_rows = sources.len();
    let parts = vec![(0, at.clone())];
    let shared = (!alone).then(|| SharedCaches { comm: &mut *cx.comm, counts, parts });
    let runs = if is_owner { vec![DecodeRun { cache: 0, at: at.clone(), alone }] } else { Vec::new() };
    let mut attention = Decode { math, caches: vec![turned], runs, at, shared };
    this.output = output::run((cx.models.main, plan, rank), rows, &mut attention)?;
    Ok(this)
}
