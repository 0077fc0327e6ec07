//! `tributary launch`: runs the mpirun line around this very program; its end becomes one of our
//! exit codes ([`tributary_mpirun`]).

mod options;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tributary_engine::marker::LAUNCH_ID;
use tributary_mpirun::attempts::{Series, run};
use tributary_mpirun::flavour::{self, Flavour};
use tributary_mpirun::line::{Here, Launcher, build};
use tributary_mpirun::supervise::{Limits, Out};
use tributary_protocol::exit;

pub use self::options::LaunchArgs;
use self::options::{LauncherChoice, wish};

/// Why nothing is started: an exit code, and one line.
struct Refusal(u8, String);

/// Something on this machine that must be set up differently.
fn configuration(line: impl Into<String>) -> Refusal {
    Refusal(exit::CONFIGURATION, line.into())
}

/// Runs the command. Gives the exit code; the failure has been reported.
pub fn launch(args: &LaunchArgs) -> u8 {
    let done = match args.exec_under {
        Some(parent) => exec_under(parent, &args.command),
        None => start(args),
    };
    done.unwrap_or_else(|Refusal(exit_code, line)| {
        say(&line);
        exit_code
    })
}

/// One line on standard error. If that cannot be written, the exit code alone must do.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "tributary: {line}");
}

fn start(args: &LaunchArgs) -> Result<u8, Refusal> {
    let program = std::env::current_exe().map_err(|error| configuration(format!("this program's path: {error}")))?;
    let program = program.to_str().ok_or_else(|| configuration("this program's path is no text"))?;
    let wish = wish(args, program).map_err(|line| Refusal(exit::USAGE, line))?;
    let (launcher, flavour) = launcher(args)?;
    let line = build(&wish, &launcher, &here(args.dry_run));
    if args.dry_run {
        let printed = crate::stdout::print(&format!("{line}\n"));
        return printed.map(|()| 0).map_err(|error| Refusal(exit::DISK, format!("{error:#}")));
    }
    let library = flavour::of_this_program().map_err(configuration)?;
    if let Some(flavour) = flavour {
        flavour::check(&flavour, &library).map_err(configuration)?;
    }
    if args.verbose {
        say(&line.to_string());
    }
    // The launcher is started through this program, which asks the kernel for a signal at our end,
    // for any cause.
    let parent = std::process::id().to_string();
    let under = ["launch", "--exec-under", &parent, "--"].map(str::to_owned);
    let launcher = Path::new(&line.program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let series = Series {
        line: line.under(program, &under),
        launcher,
        restarts: args.restarts,
        verbose: args.verbose,
        limits: Limits::default(),
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| configuration(format!("signals cannot be handled: {error}")))?;
    let stderr: Out = Arc::new(Mutex::new(Box::new(std::io::stderr())));
    run(&series, &stderr, &mut || signals.pending().next())
        .map_err(|error| Refusal(exit::OUT_OF_MEMORY, format!("{} cannot be run: {error}", series.launcher)))
}

/// Launcher of the ranks, and its flavour where known.
fn launcher(args: &LaunchArgs) -> Result<(Launcher, Option<Flavour>), Refusal> {
    if args.launcher == LauncherChoice::Srun {
        let found = Command::new("srun").arg("--version").output();
        found.map_err(|error| {
            configuration(format!("srun: {error}; --launcher srun is for the nodes of a Slurm cluster"))
        })?;
        return Ok((Launcher::Srun, None));
    }
    let program = args.mpirun.display().to_string();
    let flavour = flavour::of_launcher(&args.mpirun).map_err(configuration)?;
    let major = flavour.open_mpi(&program).map_err(configuration)?;
    Ok((Launcher::Mpirun { program, major }, Some(flavour)))
}

/// This machine. The line of a dry run has no markers, since it may be run by hand.
fn here(dry_run: bool) -> Here {
    let text = |name: OsString| name.into_string().ok();
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let mut environment: BTreeMap<String, String> = variables.collect();
    environment.remove(LAUNCH_ID);
    if !dry_run {
        environment.insert(LAUNCH_ID.to_owned(), String::new()); // each attempt sets its own
    }
    Here {
        cores: tributary_system::cores::cores(),
        is_root: rustix::process::geteuid().is_root(),
        host: tributary_system::host::name(),
        environment,
    }
}

/// Becomes `command`, after asking the system for SIGTERM when the parent ends: a launcher that is
/// killed cannot send it.
fn exec_under(parent: u32, command: &[String]) -> Result<u8, Refusal> {
    let asked = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    asked.map_err(|error| configuration(format!("the parent's death signal: {error}")))?;
    let now = rustix::process::getppid().map(|pid| pid.as_raw_pid());
    if now.and_then(|pid| u32::try_from(pid).ok()) != Some(parent) {
        return Ok(143); // the parent ended before we asked
    }
    let (program, arguments) = command.split_first().expect("the option requires one");
    let error = Command::new(program).args(arguments).exec();
    Err(configuration(format!("{program} cannot be run: {error}")))
}
