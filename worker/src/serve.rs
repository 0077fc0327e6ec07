//! The loop of one rank: rank 0 takes plans from the coordinator and broadcasts them, all run them, rank 0 answers.

use std::time::Duration;

use tributary_comm::WorkerLink;
use tributary_comm::{Communicator, Traffic};
use tributary_kernels::Kernels;
use tributary_kernels::cuda::{self, Pool};
use tributary_protocol::{DeviceMemory, Event, Layout, Order, Outcome, Phase, Plan, RankReport};

use crate::chunk_cache::ChunkCache;
use crate::context::{Context, checkpoint};
use crate::error::{Error, Result};
use crate::generate::{Generated, generate};
use crate::model::Model;
use crate::placement::Placement;
use crate::progress::Progress;
use crate::strategy::{self, Selection};

/// How often rank 0 ticks when it has nothing to do.
const TICK: Duration = Duration::from_secs(1);

/// Serves plans until the coordinator is gone. `link` is rank 0's way to the coordinator; the other ranks have none.
/// `timeout` is the timeout of collectives between requests, `chunk_cache` what is kept from one request to the next.
///
/// # Errors
/// The first failure; the group is aborted before it is returned, and the coordinator told.
pub fn serve(
    model: &dyn Model,
    kernels: Kernels,
    comm: &mut dyn Communicator,
    link: Option<&WorkerLink>,
    timeout: Duration,
    chunk_cache: &mut ChunkCache,
) -> Result<()> {
    let progress = Progress::on(model.device(), comm.work()).map_err(|error| fail(comm, link, 0, error))?;
    checkpoint(comm.rank(), Phase::Idle);
    loop {
        comm.set_deadline(Phase::Idle, timeout.max(2 * TICK));
        match next_order(comm, link) {
            Ok(Order::Tick) => {}
            Ok(Order::Stop) => return Ok(()),
            Ok(Order::Run(plan)) => {
                let request = plan.request;
                run(model, kernels, comm, link, &plan, &progress, chunk_cache)
                    .map_err(|error| fail(comm, link, request, error))?;
            }
            Err(error) => return Err(fail(comm, link, 0, error)),
        }
    }
}

/// Ends the group and tells the coordinator.
fn fail(comm: &mut dyn Communicator, link: Option<&WorkerLink>, request: u64, error: Error) -> Error {
    comm.abort(&error.to_string(), error.exit_code());
    if let Some(link) = link {
        let rank = match &error {
            Error::Comm(tributary_comm::Error::Aborted { rank, .. }) => *rank,
            _ => comm.rank(),
        };
        let event = Event::Failed { request, rank, exit_code: error.exit_code(), cause: error.to_string() };
        // The coordinator may be the one that is gone: then there is nobody to tell.
        let _ = link.send(&event);
    }
    error
}

fn next_order(comm: &mut dyn Communicator, link: Option<&WorkerLink>) -> Result<Order> {
    let order = link.map(|link| match link.next(TICK) {
        Ok(Some(plan)) => Order::Run(Box::new(plan)),
        Ok(None) => Order::Tick,
        Err(_) => Order::Stop,
    });
    comm.reset_traffic();
    let bytes = order.map(|order| tributary_protocol::encode(&order)).transpose()?;
    Ok(tributary_protocol::decode(&comm.broadcast_bytes(0, bytes)?)?)
}

/// Runs one plan on this rank.
fn run(
    model: &dyn Model,
    kernels: Kernels,
    comm: &mut dyn Communicator,
    link: Option<&WorkerLink>,
    plan: &Plan,
    progress: &Progress,
    chunk_cache: &mut ChunkCache,
) -> Result<()> {
    check(plan, model, comm.size())?;
    let request_order: Vec<u32> = (0..plan.chunks.len() as u32).collect();
    let positions = Placement::new(plan, &request_order, Layout::Global).positions(plan.max_tokens);
    comm.reset_traffic();
    chunk_cache.begin();
    let mut cx = Context::new(model, comm, kernels, (plan, positions), progress, chunk_cache)?;
    let prefilled = strategy::build(&plan.method)?.prefill(&mut cx, plan)?;
    let is_owner = cx.rank() == prefilled.owner;
    let mut on_first = |token: u32| match link {
        Some(link) => Ok(link.send(&Event::FirstToken { request: plan.request, token })?),
        None => Ok(()),
    };
    let generated = generate(&mut cx, plan, &prefilled, &mut on_first)?;
    cx.timeline.close(cx.comm)?;
    // The first token is long out: copying does not count towards it.
    strategy::chunks::keep(&mut cx, plan, &prefilled.cache)?;
    let Context { comm, timeline, prefilled_rows, recomputed_rows, chunk_cache, .. } = cx;
    let spans = timeline.into_spans(comm)?;
    let (prefill_laps, decode_laps) = comm.laps().split_at(generated.decode_lap);
    let (traffic, decode_traffic) = (Traffic::sum(prefill_laps), Traffic::sum(decode_laps));
    let report = RankReport {
        rank: comm.rank(),
        drew_first_token: is_owner,
        spans,
        traffic,
        decode_traffic,
        prefilled_rows,
        recomputed_rows,
        chunk_cache: chunk_cache.report(),
        device_memory: device_memory(model, comm)?,
    };
    let outcome = is_owner.then(|| outcome(plan, prefilled.selection, generated));
    answer(comm, link, plan, report, outcome)
}

/// What the model's device holds, if it has a memory of its own.
fn device_memory(model: &dyn Model, comm: &dyn Communicator) -> Result<Option<DeviceMemory>> {
    if model.device().is_cpu() {
        return Ok(None);
    }
    let Pool { used_bytes, used_high_bytes, reserved_bytes } = cuda::pool(model.device())?;
    let message_bytes = comm.message_bytes();
    Ok(Some(DeviceMemory { used_bytes, high_bytes: used_high_bytes, reserved_bytes, message_bytes }))
}

fn outcome(plan: &Plan, selection: Selection, generated: Generated) -> Outcome {
    Outcome {
        tokens: generated.tokens,
        order: selection.order,
        selected: selection.rows,
        measured: selection.measured,
        candidates: selection.candidates,
        logits: generated.logits.filter(|_| plan.returns.logits),
        scores: selection.scores.filter(|_| plan.returns.scores),
    }
}

/// Gathers every rank's report, and the owner's outcome, on rank 0, which sends them to the coordinator.
fn answer(
    comm: &mut dyn Communicator,
    link: Option<&WorkerLink>,
    plan: &Plan,
    report: RankReport,
    outcome: Option<Outcome>,
) -> Result<()> {
    let gathered = comm.gather_bytes(0, tributary_protocol::encode(&(report, outcome))?)?;
    let Some(link) = link else { return Ok(()) };
    let (mut reports, mut found) = (Vec::new(), None);
    for bytes in gathered {
        let (report, outcome): (RankReport, Option<Outcome>) = tributary_protocol::decode(&bytes)?;
        reports.push(report);
        found = found.or(outcome);
    }
    let outcome = found.ok_or(Error::Bug("no rank drew the first token"))?;
    Ok(link.send(&Event::Done { request: plan.request, outcome, reports })?)
}

/// What a plan must satisfy for this model and world; the coordinator has checked it, a wrong one must not hang the group.
fn check(plan: &Plan, model: &dyn Model, world: usize) -> Result<()> {
    let bad = |what: String| Err(Error::Plan(what));
    let config = model.config();
    if let Some(chunk) = plan.chunks.iter().find(|chunk| chunk.rank >= world) {
        return bad(format!("a chunk is given to rank {} of {world}", chunk.rank));
    }
    if plan.owner >= world {
        return bad(format!("its owner is rank {} of {world}", plan.owner));
    }
    if plan.query.is_empty() || plan.chunks.is_empty() || plan.chunks.iter().any(|chunk| chunk.ids.is_empty()) {
        return bad("query, context and every chunk need at least one token".to_owned());
    }
    if plan.max_tokens == 0 {
        return bad("at least one token must be generated".to_owned());
    }
    // Ids here, and not only where they are embedded: the rank that speaks to the coordinator should know the cause.
    if let Some(id) = plan.all_ids().into_iter().find(|&id| id as usize >= config.vocab) {
        return bad(format!("token id {id} is outside the vocabulary of {}", config.vocab));
    }
    config.check_length(plan.total_tokens(), plan.max_tokens)?;
    strategy::check(&plan.method, config)
}

/// The failure that a group's end should be blamed on: the first that is not a consequence of another rank's.
pub fn root_cause(results: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<Error> = results.into_iter().filter_map(Result::err).collect();
    let Some(first) = errors.iter().position(|error| !error.is_consequence()) else {
        return errors.into_iter().next().map_or(Ok(()), Err);
    };
    Err(errors.swap_remove(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;

    type Change = fn(&mut Plan);

    #[test]
    fn an_answer_without_a_first_token_is_a_bug() {
        let mut comm = tributary_comm::local::seats(1).remove(0).take();
        let (_coordinator, worker) = tributary_comm::link(1);
        let plan = kit::plan(0, &[3], 1, 1);
        let error = answer(&mut comm, Some(&worker), &plan, RankReport::default(), None).expect_err("no outcome");
        assert_eq!((error.exit_code(), error.to_string().as_str()), (70, "a bug: no rank drew the first token"));
    }

    fn refusal(change: impl FnOnce(&mut Plan)) -> (u8, String) {
        let mut config = kit::config();
        config["architectures"] = serde_json::json!(["MistralForCausalLM"]);
        config["sliding_window"] = 30.into();
        let mut plan = kit::plan(2, &[9, 8], 4, 2);
        change(&mut plan);
        match check(&plan, &*kit::model(&config), 2) {
            Ok(()) => (0, String::new()),
            Err(error) => (error.exit_code(), error.to_string()),
        }
    }

    #[test]
    fn a_plan_that_cannot_run_is_refused_by_every_rank() {
        assert_eq!(refusal(|_| ()).0, 0);
        let table: [(Change, &str); 8] = [
            (|plan| plan.owner = 2, "plan: its owner is rank 2 of 2"),
            (|plan| plan.chunks[1].rank = 2, "plan: a chunk is given to rank 2 of 2"),
            (|plan| plan.query.clear(), "plan: query, context and every chunk need at least one token"),
            (|plan| plan.chunks[0].ids.clear(), "plan: query, context and every chunk need at least one token"),
            (|plan| plan.max_tokens = 0, "plan: at least one token must be generated"),
            (|plan| plan.query[1] = 61, "plan: token id 61 is outside the vocabulary of 61"),
            (
                |plan| plan.max_tokens = 8,
                "23 prompt tokens and 8 to generate exceed the model's sliding window of 30 tokens",
            ),
            (
                |plan| plan.max_tokens = 490,
                "23 prompt tokens and 490 to generate exceed the model's positions of 512 tokens",
            ),
        ];
        for (change, message) in table {
            assert_eq!(refusal(change), (64, message.to_owned()));
        }
        assert_eq!(refusal(|plan| plan.max_tokens = 7).0, 0, "the window holds everything");
    }
}
