//! Ending processes of an attempt that have outlived their launcher.
//!
//! Ranks run in process groups of their own, so a signal to the launcher's group does not reach them, and a launcher that
//! was killed leaves them behind. They are found by the attempt's id in their environment. Only this host is looked at:
//! on others mpirun's daemons end their ranks when the launcher is gone.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use tributary_engine::marker::LAUNCH_ID;

/// Kills every process of attempt `id` on this host; gives how many there were.
pub fn sweep(id: &str) -> usize {
    let entry = format!("{LAUNCH_ID}={id}");
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let names = processes.flatten().filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    names.filter(|&pid| u32::try_from(pid) != Ok(std::process::id())).filter(|&pid| end(pid, &entry)).count()
}

/// Kills a process if it is of the attempt. It is held before it is looked at, so that its number cannot pass to another.
fn end(pid: i32, entry: &str) -> bool {
    let Some(held) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return false };
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let environment = std::fs::read(folder.join("environ")).unwrap_or_default();
    let of_attempt = environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes());
    of_attempt && is_here(&folder) && pidfd_send_signal(held, Signal::KILL).is_ok()
}

/// Whether a process has our network. One that has another stands for another host, even if we can see it.
fn is_here(process: &Path) -> bool {
    let network = |folder: &Path| std::fs::read_link(folder.join("ns/net")).ok();
    network(process) == network(Path::new("/proc/self"))
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
        let runs = |child: &std::process::Child| {
            let environment = std::fs::read(format!("/proc/{}/environ", child.id())).expect("it lives");
            String::from_utf8_lossy(&environment).contains(LAUNCH_ID)
        };
        while !children.iter().all(runs) {
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
