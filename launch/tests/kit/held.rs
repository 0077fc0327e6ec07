//! Resources of a process.

/// Open files and memory of a process.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Open files, sockets among them.
    pub files: usize,
    /// Resident memory.
    pub resident_bytes: u64,
}

impl Held {
    /// Resources of this process; none if there is no such process.
    pub fn by(pid: u32) -> Option<Self> {
        let process = format!("/proc/{pid}");
        let status = std::fs::read_to_string(format!("{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(Self { files: std::fs::read_dir(format!("{process}/fd")).ok()?.count(), resident_bytes: kib << 10 })
    }
}
