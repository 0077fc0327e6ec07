//! `tributary doctor`: a check of a machine or a cluster. Every rank reports its host, the
//! collectives are checked and an all-gather is timed; rank 0 has all of it in one report.
//!
//! Works on any [`Communicator`] and needs no model. It changes nothing and mends nothing: a report
//! ends in advice.

mod args;
mod bandwidth;
mod command;
mod facts;
mod hosts;
mod latency;
mod render;
mod report;
mod site;
mod warnings;

use anyhow::Context;
use tributary_comm::{Communicator, conformance};
use tributary_protocol::exit;

pub use args::DoctorArgs;
pub use bandwidth::AllGather;
pub use command::{DoctorCommand, doctor};
pub use facts::{CpuLimit, Facts, Gpu, Limits, Space};
pub use hosts::Host;
pub use latency::Latency;
pub use report::{Checks, Collectives, LeftOut, Rank, Report, Unfit};
pub use site::{GpuInUse, Site};
pub use tributary_system::network::Interface;

use bandwidth::{measure, too_large, too_large_for_gpus};
use hosts::{hosts, one_process};
use latency::latency;

use tributary_system::size::Size;

/// Examines the group of `comm`. To be called on every rank with the same arguments; rank 0 gets
/// the report, the others nothing. `threads` are those that would compute on this rank; `launcher`
/// says in one line who started the ranks; `site` is the place of tensors.
///
/// If checks of the collectives fail, rank 0 still has a report with that verdict. The group is
/// then no longer usable: a rank other than 0 has ended it with [`Communicator::abort`]; rank 0
/// leaves that to its caller, who prints the report first.
///
/// # Errors
/// Returns an error if the communicator fails or facts or times cannot be read, and [`Unfit`] on a
/// rank other than 0 whose checks failed. The caller then ends the group.
pub fn examine(
    args: &DoctorArgs,
    threads: usize,
    launcher: &str,
    site: &Site,
    comm: &mut dyn Communicator,
) -> anyhow::Result<Option<Report>> {
    let facts = gather_facts(threads, site, comm)?;
    let reasons = agree(&args.sizes, &facts, comm)?;
    let report = |collectives| Report::new(launcher, &facts, collectives, args.min_busbw);
    let checks = check(args.skip_checks, site, comm)?;
    let between_gpus = site.gpu.as_ref().map(|gpu| gpu.library.clone());
    let mut collectives = Collectives { checks, between_gpus, ..Collectives::default() };
    if matches!(collectives.checks, Checks::Failed(_)) {
        return Ok(Some(report(collectives)));
    }
    let copied = site.gpu.is_some() || !one_process(&hosts(&facts));
    if comm.size() > 1 {
        collectives.latency = latency(comm, &site.device, args.repeat)?.filter(|_| copied);
    }
    for (&size, reason) in args.sizes.iter().zip(reasons) {
        if let Some(reason) = reason {
            collectives.left_out.push(LeftOut { size_bytes: size, reason });
        } else if comm.size() > 1
            && let Some((runs_ms, wrong_values)) = measure(comm, &site.device, size, args.repeat)?
        {
            collectives.all_gathers.push(AllGather::new(size, comm.size(), copied, runs_ms, wrong_values));
        }
    }
    // A rank that is done waits for the others: one that leaves early may look lost to those that
    // still have a call to make.
    comm.barrier()?;
    Ok((comm.rank() == 0).then(|| report(collectives)))
}

/// Every rank's facts on rank 0, nothing on the others.
fn gather_facts(threads: usize, site: &Site, comm: &mut dyn Communicator) -> anyhow::Result<Vec<Facts>> {
    let mine = serde_json::to_vec(&Facts { gpu_in_use: site.gpu.clone(), ..Facts::collect(threads) })?;
    let gathered = comm.gather_bytes(0, mine)?;
    let read =
        |(rank, text): (usize, &Vec<u8>)| serde_json::from_slice(text).with_context(|| format!("facts of rank {rank}"));
    gathered.iter().enumerate().map(read).collect()
}

/// Sizes that are not measured, with reasons: rank 0 knows all hosts' memory and sends the list to
/// the others, so that all make the same calls.
fn agree(sizes: &[Size], facts: &[Facts], comm: &mut dyn Communicator) -> anyhow::Result<Vec<Option<String>>> {
    let decided = match comm.rank() {
        0 => {
            let hosts = hosts(facts);
            let gpus: Vec<Option<GpuInUse>> = facts.iter().map(|facts| facts.gpu_in_use.clone()).collect();
            let reason = |&size: &Size| too_large(size, &hosts).or_else(|| too_large_for_gpus(size, &gpus));
            let reasons: Vec<Option<String>> = sizes.iter().map(reason).collect();
            Some(serde_json::to_vec(&reasons)?)
        }
        _ => None,
    };
    let decided = comm.broadcast_bytes(0, decided)?;
    let reasons: Vec<Option<String>> = serde_json::from_slice(&decided).context("the sizes to measure")?;
    anyhow::ensure!(reasons.len() == sizes.len(), "rank 0 measures {} sizes, this rank {}", reasons.len(), sizes.len());
    Ok(reasons)
}

/// Checks the collectives' results. A failure is a result on rank 0; another rank reports it to the
/// group and gives up.
fn check(skip: bool, site: &Site, comm: &mut dyn Communicator) -> Result<Checks, Unfit> {
    if skip {
        return Ok(Checks::LeftOut);
    }
    match conformance::check_on(comm, &site.device) {
        Ok(()) => Ok(Checks::Passed),
        Err(what) if comm.rank() == 0 => Ok(Checks::Failed(what)),
        Err(what) => {
            comm.abort(&what, exit::BUG);
            Err(report::failed_checks(&what))
        }
    }
}
