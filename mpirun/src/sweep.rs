//! Ending processes of an attempt that have outlived their launcher.
//!
//! Ranks run in their own process groups, so a signal to the launcher's group does not reach them,
//! and they outlive a killed launcher. They are found by the attempt's id in their environment.
//! Only this host is searched: on others mpirun's daemons end their ranks when the launcher is
//! gone.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use tributary_engine::marker::LAUNCH_ID;
use tributary_system::process::{self, Namespace};

/// Kills every process of attempt `id` on this host; gives how many there were.
pub fn sweep(id: &str) -> usize {
    let others = process::all().into_iter().filter(|&pid| pid != std::process::id());
    others.filter(|&pid| end(pid, id)).count()
}

/// Kills a process if it is of attempt `id`. It is held before it is looked at, so that its number
/// cannot pass to another.
fn end(pid: u32, id: &str) -> bool {
    let held = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(held) = held.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return false };
    let of_attempt = process::has_variable(pid, LAUNCH_ID, id);
    of_attempt && is_here(pid) && pidfd_send_signal(held, Signal::KILL).is_ok()
}

/// Whether a process has our network. One with another network counts as another host, even if we
/// can see it.
fn is_here(pid: u32) -> bool {
    Namespace::Network.of(pid) == Namespace::Network.of_this_process()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use tributary_engine::marker::draw;

    #[test]
    fn only_processes_of_the_attempt_are_ended() {
        let (id, other) = (draw(), draw());
        let child = |id: &str| Command::new("sleep").arg("60").env(LAUNCH_ID, id).spawn().expect("a child");
        let mut children = [child(&id), child(&other), child(&id)];
        // A child has its environment from the moment it runs the program.
        let ids = [&id, &other, &id];
        while !children.iter().zip(ids).all(|(child, id)| process::has_variable(child.id(), LAUNCH_ID, id)) {
            std::thread::yield_now();
        }
        assert_eq!(sweep(&id), 2);
        assert_eq!(children[0].wait().expect("ended").signal(), Some(9));
        assert_eq!(children[2].wait().expect("ended").signal(), Some(9));
        assert_eq!(children[1].try_wait().expect("asked"), None, "the other attempt goes on");
        assert_eq!(sweep(&other), 1);
        children[1].wait().expect("ended");
        assert_eq!(sweep(&id), 0);
    }
}
