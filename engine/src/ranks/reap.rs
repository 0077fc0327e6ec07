//! The end of a process of this host that has been silent: it cannot end itself, and no launcher
//! shall wait for it.
//!
//! A helper that outlives the process which names the silent one does it, a moment later: the first
//! process to end gives a job its exit code, and that must be the one that says why.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tributary_comm::process::Peer;
use tributary_protocol::exit;

/// Time for the launcher to see the end of the process that names the silent one.
const MOMENT: Duration = Duration::from_millis(300);

/// The name of the command of this program that the helper runs, with the process's number and
/// start: a program with an engine must answer it with [`reap`].
pub const COMMAND: &str = "reap";

/// Starts the helper. If there is none to be had, the launcher must do without.
pub fn soon(peer: &Peer) {
    let mut helper = Command::new("/proc/self/exe");
    helper.arg(COMMAND).arg(peer.pid.to_string()).arg(peer.started_ticks.to_string());
    // A separate group: signals of the launcher to this process's group do not reach it.
    helper.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Err(error) = helper.spawn() {
        tracing::warn!(pid = peer.pid, "the silent process cannot be ended: {error}");
    }
}

/// Work of the helper: ends the process `pid`, if it started at `started_ticks` of the kernel's
/// ticks since boot; another process of the same number is not touched. Gives the helper's exit
/// code.
pub fn reap(pid: u32, started_ticks: u64) -> u8 {
    std::thread::sleep(MOMENT);
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return exit::USAGE };
    // First the handle, then the look: the number may go to another process at any time before.
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { return 0 };
    if Peer::lives_since(pid, started_ticks) {
        let _ = pidfd_send_signal(&handle, Signal::KILL);
    }
    0
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
        reap(pid, started_ticks - 1);
        assert!(child.try_wait().expect("it is ours").is_none(), "another process had this number then");
        // A stopped process ends too.
        let number = Pid::from_raw(i32::try_from(pid).expect("a process number")).expect("not 0");
        rustix::process::kill_process(number, Signal::STOP).expect("it is ours");
        reap(pid, started_ticks);
        assert_eq!(child.wait().expect("it is ours").signal(), Some(9));
    }
}
