//! The end of a process of this host that has been silent: it cannot end itself, and no launcher shall wait for it.
//!
//! A helper that outlives the process which names the silent one does it, a moment later: the first process to end gives a
//! job its exit code, and that must be the one that says why.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tributary_comm::process::Peer;

/// How long the launcher may take to see the end of the process that names the silent one.
const MOMENT: Duration = Duration::from_millis(300);

/// The name of the command that the helper runs; `--help` does not show it.
pub const COMMAND: &str = "reap";

/// Which process ends.
#[derive(Debug, Clone, Args)]
pub struct ReapArgs {
    /// Its number
    pid: u32,
    /// When it started, in the kernel's ticks since boot: another process of the same number is left alone
    started_ticks: u64,
}

/// Starts the helper. If there is none to be had, the launcher must do without.
pub fn soon(peer: &Peer) {
    let mut helper = Command::new("/proc/self/exe");
    helper.arg(COMMAND).arg(peer.pid.to_string()).arg(peer.started_ticks.to_string());
    // A group of its own: what the launcher does to this process's group does not meet it.
    helper.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = helper.spawn() {
        tracing::warn!(pid = peer.pid, "the silent process cannot be ended: {error}");
    }
}

/// What the helper does.
pub fn reap(args: &ReapArgs) -> ExitCode {
    std::thread::sleep(MOMENT);
    let Some(pid) = i32::try_from(args.pid).ok().and_then(Pid::from_raw) else { return ExitCode::from(64) };
    // First the handle, then the look: the number may go to another process at any time before.
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return ExitCode::SUCCESS };
    if Peer::lives_since(args.pid, args.started_ticks) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn only_the_process_that_is_meant_ends() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a child");
        let pid = child.id();
        let started_ticks = Peer::started_ticks_of(pid).expect("it runs");
        reap(&ReapArgs { pid, started_ticks: started_ticks - 1 });
        assert!(child.try_wait().expect("it is ours").is_none(), "another process had this number then");
        // A stopped process ends too.
        let number = Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("not 0");
        rustix::process::kill_process(number, Signal::STOP).expect("it is ours");
        reap(&ReapArgs { pid, started_ticks });
        assert_eq!(child.wait().expect("it is ours").signal(), Some(9));
    }
}
