//! The command: the examination on the ranks of this run, threads of this process or processes of which this is one.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tributary_comm::{Communicator, local, nccl};
use tributary_protocol::Phase;

use super::{Checks, DoctorArgs, Report, Site, examine};
use crate::args::GroupArgs;
use crate::failure::exit_code;
use crate::machine::check_threads;
use crate::ranks::{self, Process, Ranks};
use crate::spoilt::judged;
use crate::stdout::{print, print_json};

/// Says whether this machine or cluster is fit: ranks, hosts, limits, collectives and their bandwidth; with --backend nccl
/// those between GPUs
#[derive(Debug, Args)]
pub struct DoctorCommand {
    #[command(flatten)]
    doctor: DoctorArgs,
    #[command(flatten)]
    group: GroupArgs,
}

/// Runs the command; says what went wrong.
pub fn doctor(args: &DoctorCommand) -> ExitCode {
    ranks::run(&args.group, |ranks| match ranks {
        Ranks::Threads { .. } => show(args, on_threads(args, ranks)?),
        Ranks::Process(_) => {
            let site = Site::of(&args.group, ranks, 0)?;
            let Ranks::Process(process) = ranks else { unreachable!("it is one") };
            on_process(args, process, &site).map_err(|error| judged(error, [&site.device]))
        }
    })
}

/// Prints rank 0's report; gives its verdict.
fn show(args: &DoctorCommand, report: Option<Report>) -> anyhow::Result<()> {
    let Some(report) = report else { return Ok(()) };
    match args.doctor.json {
        true => print_json(&report)?,
        false => print(&report.render())?,
    }
    Ok(report.verdict()?)
}

fn on_threads(args: &DoctorCommand, ranks: &Ranks) -> anyhow::Result<Option<Report>> {
    let world = ranks.world();
    check_threads(world, args.group.threads)?;
    let launcher = format!("none: {world} ranks are threads of this process{}", beside());
    let sites = (0..world).map(|thread| Site::of(&args.group, ranks, thread)).collect::<anyhow::Result<Vec<_>>>()?;
    let examine_one = |seat: local::Seat, site: &Site| {
        let mut comm = site.carrier.on_thread(seat, &site.device)?;
        set_deadline(args, &mut *comm);
        let examined = examine(&args.doctor, args.group.threads, &launcher, site, &mut *comm);
        examined.inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))
    };
    let examined: Vec<_> = std::thread::scope(|scope| {
        let seats = local::seats(world).into_iter().zip(&sites);
        let ranks: Vec<_> = seats.map(|(seat, site)| scope.spawn(|| examine_one(seat, site))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    // Rank 0's report tells of another rank's failed checks; without it, the first failure of its own counts.
    let mut failures = Vec::new();
    for examined in examined {
        match examined {
            Ok(Some(report)) => return Ok(Some(report)),
            Ok(None) => {}
            Err(error) => failures.push(error),
        }
    }
    let own = failures.iter().position(|error| !is_consequence(error)).unwrap_or(0);
    if failures.is_empty() {
        return Ok(None);
    }
    Err(judged(failures.swap_remove(own), sites.iter().map(|site| &site.device)))
}

fn is_consequence(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(tributary_comm::Error::Aborted { .. }))
}

fn on_process(args: &DoctorCommand, process: &mut Process, site: &Site) -> anyhow::Result<()> {
    let Process { launcher, facts, .. } = &*process;
    let launcher = format!("{}, {} ranks; {}{}", launcher.name, facts.size, facts.library, beside());
    let mut comm = site.carrier.on_process(process.seat()?.take(), &site.device)?;
    set_deadline(args, &mut *comm);
    let examined = examine(&args.doctor, args.group.threads, &launcher, site, &mut *comm);
    // Whoever leaves without a word would be taken for done.
    let report = examined.inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))?;
    if report.as_ref().is_none_or(|report| !matches!(report.checks, Checks::Failed(_))) {
        process.leave(comm);
        return show(args, report);
    }
    // Collectives that fail are of no more use: the group ends once the report is printed.
    show(args, report).inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))
}

/// The library that would carry tensors between GPUs, where this program has one.
fn beside() -> String {
    nccl::library_version().map_or_else(|_| String::new(), |version| format!("; {version} between GPUs"))
}

fn set_deadline(args: &DoctorCommand, comm: &mut dyn Communicator) {
    comm.set_deadline(Phase::Idle, Duration::from_secs(args.group.collective_timeout));
}
