//! The command: the examination on the ranks of this run.

use std::process::ExitCode;

use clap::Args;
use tributary_comm::nccl;
use tributary_engine::{GroupConfig, Ranks, Seat, check_threads};
use tributary_protocol::Phase;

use super::{Checks, DoctorArgs, Report, Site, examine};
use crate::args::GroupArgs;
use crate::failure::{exit_code, explained};
use crate::ranks;
use crate::stdout::{print, print_json};

/// Check this machine or cluster: ranks, hosts, limits, collectives, bandwidth; with --backend nccl
/// between GPUs
#[derive(Debug, Args)]
pub struct DoctorCommand {
    #[command(flatten)]
    doctor: DoctorArgs,
    #[command(flatten)]
    group: GroupArgs,
}

/// Outcome of a rank: the verdict where it had a report, which has been shown; a failure without
/// one.
type Outcome = anyhow::Result<Option<anyhow::Result<()>>>;

/// Runs the command; reports the failure.
pub fn doctor(args: &DoctorCommand) -> ExitCode {
    let group = GroupConfig::from(&args.group);
    ranks::run(&group, |ranks| examine_all(args, &group, ranks))
}

/// The examination on every rank of this process, each on its own thread.
fn examine_all(args: &DoctorCommand, group: &GroupConfig, ranks: &mut Ranks) -> anyhow::Result<()> {
    let own = ranks.in_process(ranks.world());
    if ranks.fixed_world().is_none() {
        check_threads(own, group.threads)?;
    }
    let launcher = format!("{}{}", ranks.origin(), beside());
    let alone = own == 1;
    // A failure on all ranks is found before any rank takes a seat: then one rank reports it.
    let sites = ranks.numbers_here(own).map(|number| Site::of(group, number, alone));
    let sites = sites.collect::<anyhow::Result<Vec<_>>>()?;
    let seats = ranks.seats(own)?;
    let launcher = launcher.as_str();
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let one = |(seat, site)| scope.spawn(move || examine_one(args, group, launcher, site, seat));
        let ranks: Vec<_> = seats.into_iter().zip(&sites).map(one).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    conclude(outcomes).map_err(|error| explained(error, sites.iter().map(|site| &site.device)))
}

/// Rank 0's report covers another rank's failed checks; without a report, the first failure of its
/// own counts.
fn conclude(outcomes: Vec<Outcome>) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(Some(verdict)) => return verdict,
            Ok(None) => {}
            Err(error) => failures.push(error),
        }
    }
    let own = failures.iter().position(|error| !is_consequence(error)).unwrap_or(0);
    if failures.is_empty() { Ok(()) } else { Err(failures.swap_remove(own)) }
}

fn is_consequence(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(tributary_comm::Error::Aborted { .. }))
}

fn examine_one(args: &DoctorCommand, group: &GroupConfig, launcher: &str, site: &Site, seat: Seat) -> Outcome {
    let mut comm = seat.take(&site.carrier, &site.device)?;
    comm.set_deadline(Phase::Idle, group.collective_timeout);
    let examined = examine(&args.doctor, group.threads, launcher, site, &mut *comm);
    // A rank that leaves without a word would be taken for done.
    let report = examined.inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))?;
    let Some(report) = report else {
        comm.leave();
        return Ok(None);
    };
    if !matches!(report.checks, Checks::Failed(_)) {
        comm.leave();
        return Ok(Some(show(args, &report)));
    }
    // Collectives that fail are of no more use: the group ends once the report is printed.
    let verdict = show(args, &report);
    if let Err(error) = &verdict {
        comm.abort(&error.to_string(), exit_code(error));
    }
    Ok(Some(verdict))
}

/// Prints the report; gives its verdict.
fn show(args: &DoctorCommand, report: &Report) -> anyhow::Result<()> {
    match args.doctor.json {
        true => print_json(report)?,
        false => print(&report.render())?,
    }
    Ok(report.verdict()?)
}

/// The library that would carry tensors between GPUs, where this program has one.
fn beside() -> String {
    nccl::library_version().map_or_else(|_| String::new(), |version| format!("; {version} between GPUs"))
}
