//! Facts of one process and its machine. Reads, and changes nothing.
//!
//! Unreadable facts are absent, never guessed. Facts travel as JSON, and fields that an older or
//! newer build does not know are skipped, so that ranks of different builds still get a report.

use std::collections::BTreeSet;

use rustix::process::{Resource, getrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_engine::available_bytes;
use tributary_kernels::cuda;
use tributary_system::{ControlGroups, host, processor};

use super::site::GpuInUse;
use tributary_system::network::{Interface, interfaces};

/// Report of one rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The machine's name.
    pub host: String,
    /// The kernel's id of its own start: one a machine, shared by its containers.
    pub boot_id: String,
    /// The process.
    pub pid: u32,
    /// Threads that compute on this rank.
    pub threads: usize,
    /// The cores that this rank's thread may run on, ascending; empty where unknown.
    pub cores: BTreeSet<usize>,
    /// The processor time that the control group grants.
    pub cpu_limit: Option<CpuLimit>,
    /// Memory that is free, in bytes, the control group's limit considered.
    pub free_memory_bytes: Option<u64>,
    /// The widest instructions that the kernels use here.
    pub instructions: String,
    /// Version of this program.
    pub version: String,
    /// `/dev/shm`.
    pub shared_memory: Option<Space>,
    /// Limits of the process.
    pub limits: Limits,
    /// Network interfaces, in the order of their names.
    pub interfaces: Vec<Interface>,
    /// GPUs that this process may use, in the driver's order; none in a build without CUDA.
    pub gpus: Vec<Gpu>,
    /// The one that this rank measures with.
    pub gpu_in_use: Option<GpuInUse>,
}

/// A GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gpu {
    /// The maker's name for it.
    pub name: String,
    /// The name that no other GPU has.
    pub uuid: String,
    /// PCI address on the host.
    pub bus_id: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// The newest CUDA that the driver knows, as 13.0.
    pub driver: String,
}

/// A control group's limit of processor time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CpuLimit {
    /// Processors' worth of time.
    pub cores: f64,
    /// The group that sets it.
    pub group: String,
}

/// Space of a file system, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Space {
    /// Free bytes.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// Soft limits of a process; absent: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Open files.
    pub open_files: Option<u64>,
    /// Memory that may be locked.
    pub locked_memory_bytes: Option<u64>,
    /// Size of a core file.
    pub core_file_bytes: Option<u64>,
    /// Stack of the first thread.
    pub stack_bytes: Option<u64>,
}

impl Facts {
    /// Facts on the calling thread, for a rank of `threads` threads.
    pub fn collect(threads: usize) -> Self {
        let soft = |resource: Resource| getrlimit(resource).current;
        Self {
            host: host::name(),
            boot_id: host::boot_id().unwrap_or_default(),
            pid: std::process::id(),
            threads,
            cores: processor::allowed_cores().unwrap_or_default(),
            cpu_limit: ControlGroups::of_this_process().cpu_cores().map(|(cores, group)| CpuLimit { cores, group }),
            free_memory_bytes: available_bytes(),
            instructions: tributary_kernels::instructions().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            shared_memory: rustix::fs::statvfs("/dev/shm").ok().map(|fs| Space {
                free_bytes: fs.f_bavail.saturating_mul(fs.f_frsize),
                total_bytes: fs.f_blocks.saturating_mul(fs.f_frsize),
            }),
            limits: Limits {
                open_files: soft(Resource::Nofile),
                locked_memory_bytes: soft(Resource::Memlock),
                core_file_bytes: soft(Resource::Core),
                stack_bytes: soft(Resource::Stack),
            },
            interfaces: interfaces(),
            gpus: gpus(),
            gpu_in_use: None,
        }
    }
}

/// GPUs that the driver shows. None is a fact too.
fn gpus() -> Vec<Gpu> {
    let known = (0..cuda::count().unwrap_or(0)).filter_map(|ordinal| cuda::identity(ordinal).ok());
    let gpu = |known: cuda::Identity| {
        let (major, minor) = known.driver;
        let cuda::Identity { name, uuid, bus_id, memory_bytes, .. } = known;
        Gpu { name, uuid, bus_id, memory_bytes, driver: format!("{major}.{minor}") }
    };
    known.map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_knows_itself() {
        let facts = Facts::collect(3);
        assert_eq!((facts.threads, facts.pid), (3, std::process::id()));
        assert_eq!(facts.version, env!("CARGO_PKG_VERSION"));
        assert!(!facts.host.is_empty() && !facts.boot_id.is_empty());
        assert!(!facts.cores.is_empty());
        assert!(facts.free_memory_bytes.is_some_and(|bytes| bytes > 1 << 20), "{facts:?}");
        assert!(facts.limits.open_files.is_none_or(|files| files > 3), "{facts:?}");
        let text = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<Facts>(&text).unwrap(), facts);
    }

    #[test]
    fn facts_of_other_builds_are_read() {
        let facts: Facts = serde_json::from_str(r#"{"host": "a", "pid": 7, "altitude_m": 500}"#).unwrap();
        assert_eq!(facts, Facts { host: "a".into(), pid: 7, ..Facts::default() });
        assert!(serde_json::from_str::<Facts>(r#"{"pid": "seven"}"#).is_err());
    }
}
