//! Ranks as processes: the facts that show whether the other ranks live, and the settings of a
//! backend.
//!
//! Knows no library and no launcher.

use std::time::Duration;

use candle_core::Device;
use tributary_system::host;
use tributary_system::process::{self, Namespace};

/// The settings with which a backend of processes is started.
#[derive(Debug, Clone)]
pub struct ProcessSettings {
    /// Longest time for finding the other ranks.
    pub start_timeout: Duration,
    /// Longest silence of a rank; signs of life come much more often.
    pub heartbeat_timeout: Duration,
    /// Threads that compute on this rank: with the ranks of the host, they tell whether cores are
    /// shared.
    pub threads: usize,
    /// Longest message in bytes; a longer body goes in pieces.
    pub piece_bytes: usize,
    /// The device on which received tensors are put.
    pub device: Device,
    /// Gives a number for the device (a GPU) that the rank of this number on its host holds and may
    /// share with other ranks there; 0 if it holds none. Called once this rank knows its number.
    pub holding: fn(local_rank: usize) -> u64,
}

impl Default for ProcessSettings {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(120),
            heartbeat_timeout: Duration::from_secs(10),
            threads: 1,
            piece_bytes: PIECE_BYTES,
            device: Device::Cpu,
            holding: |_| 0,
        }
    }
}

/// Longest message by default: long enough for any network's bandwidth, far below MPI's limit of 2
/// GiB.
pub const PIECE_BYTES: usize = 8 << 20;

/// The group of processes as a rank knows it after the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessGroup {
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Number of this rank among those that share memory with it.
    pub local_rank: usize,
    /// Number of ranks that share memory with it, itself included.
    pub local_size: usize,
    /// Number of those that hold the same thing (a GPU) as this rank, itself included.
    pub sharing: usize,
    /// The library that carries messages, with its version.
    pub library: String,
    /// All ranks' processes, in rank order.
    pub peers: Vec<Peer>,
}

/// A rank's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// The host it runs on.
    pub host: String,
    /// The system that counts its number: one boot of one kernel, one namespace of processes.
    pub system: String,
    /// Its process number on that system.
    pub pid: u32,
    /// The time it started, in the kernel's ticks since boot; with the number it names a process
    /// for good.
    pub started_ticks: u64,
    /// Whether this process can look at it: same host, same process numbers.
    pub visible: bool,
}

impl Peer {
    /// This process, as rank `rank`.
    pub fn me(rank: usize, host: String) -> Self {
        let pid = std::process::id();
        let started_ticks = Self::started_ticks_of(pid).unwrap_or(0);
        Self { rank, host, system: system(), pid, started_ticks, visible: true }
    }

    /// Whether the process is there and has not ended. To be asked for visible ones only.
    pub fn lives(&self) -> bool {
        Self::lives_since(self.pid, self.started_ticks)
    }

    /// Whether the process of this number that started then is there and has not ended.
    pub fn lives_since(pid: u32, started_ticks: u64) -> bool {
        process::stat(pid).is_some_and(|stat| stat.started_ticks == started_ticks && !stat.has_ended())
    }

    /// When the process of this number started, in the kernel's ticks since boot; none if there is
    /// no such process here.
    pub fn started_ticks_of(pid: u32) -> Option<u64> {
        process::stat(pid).map(|stat| stat.started_ticks)
    }

    /// The process in words that follow its rank: `process 4711 on ash`.
    pub fn words(&self) -> String {
        format!("process {} on {}", self.pid, self.host)
    }
}

/// The name of the system in which a process number is unique: one boot of one host, and one
/// namespace, since containers count alike.
fn system() -> String {
    let namespace = Namespace::Process.of_this_process().unwrap_or_default();
    format!("{} {}", host::boot_id().unwrap_or_default(), namespace.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_and_start() {
        let me = Peer::me(0, "here".to_owned());
        assert!(me.started_ticks > 0);
        assert!(me.lives());
        assert!(!Peer { started_ticks: me.started_ticks - 1, ..me.clone() }.lives(), "another process of this number");
    }

    #[test]
    fn a_process_that_has_ended_does_not_live() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        let pid = child.id();
        let started_ticks = Peer::started_ticks_of(pid).expect("it runs");
        let peer = Peer { rank: 1, host: "here".to_owned(), system: system(), pid, started_ticks, visible: true };
        assert!(peer.lives());
        child.kill().expect("it is ours");
        while peer.lives() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(process::stat(pid).map(|stat| stat.state), Some('Z'), "its exit code has not been taken yet");
        child.wait().expect("it has ended");
        assert!(!peer.lives());
    }
}
