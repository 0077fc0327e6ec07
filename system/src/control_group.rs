//! Limits of the control groups that this process is in: its own group's, and those of every group
//! above it, because each of them binds. Reads, and changes nothing.
//!
//! A batch system or systemd puts a job into a separate group, so the file system's root alone does
//! not have the job's limits. Version 2 has memory and processor time; of version 1 only memory is
//! read.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The groups of a process.
pub struct ControlGroups {
    /// A process' `/proc/PID/cgroup`.
    groups: String,
    /// Mount point of the file system of control groups.
    mount: PathBuf,
}

/// A group on the way from the process' own to the root.
struct Group {
    /// Its path below the mount.
    name: String,
    folder: PathBuf,
}

impl ControlGroups {
    /// Those that this process is in.
    pub fn of_this_process() -> Self {
        let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { groups, mount: PathBuf::from("/sys/fs/cgroup") }
    }

    /// Bytes that this process may still take before a group's limit: the least of all groups; none
    /// where no group has a limit.
    pub fn memory_left_bytes(&self) -> Option<u64> {
        let version_2 = self.version_2().into_iter().filter_map(|group| {
            let stat = group.text("memory.stat").unwrap_or_default();
            let cached = counted(&stat, "inactive_file").unwrap_or(0);
            Some(left(group.number("memory.max")?, group.number("memory.current").unwrap_or(0), cached))
        });
        let version_1 = self.version_1("memory").into_iter().filter_map(|group| {
            let stat = group.text("memory.stat").unwrap_or_default();
            let cached = counted(&stat, "total_inactive_file").unwrap_or(0);
            let limit = group.number("memory.limit_in_bytes").filter(|&limit| limit < NO_LIMIT)?;
            Some(left(limit, group.number("memory.usage_in_bytes").unwrap_or(0), cached))
        });
        version_2.chain(version_1).min()
    }

    /// The tightest grant of processor time: processors' worth of it, and the group that sets it.
    pub fn cpu_cores(&self) -> Option<(f64, String)> {
        let grants = self.version_2().into_iter().filter_map(|group| {
            let cores = quota_cores(group.text("cpu.max")?.trim())?;
            Some((cores, group.name))
        });
        grants.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Groups of version 2, which have a separate folder where version 1 is mounted too.
    fn version_2(&self) -> Vec<Group> {
        let own = self.groups.lines().find_map(|line| line.strip_prefix("0::"));
        let mounts = [self.mount.clone(), self.mount.join("unified")];
        own.into_iter().flat_map(|own| mounts.iter().flat_map(|mount| way(own, mount))).collect()
    }

    /// Groups of version 1 that a controller rules: a line is `NUMBER:CONTROLLER,..:PATH`.
    fn version_1(&self, controller: &str) -> Vec<Group> {
        let own = self.groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then_some(path)
        });
        own.into_iter().flat_map(|own| way(own, &self.mount.join(controller))).collect()
    }
}

/// Version 1 writes "no limit" as the largest number of whole pages. No machine has so much memory.
const NO_LIMIT: u64 = 1 << 60;

/// The groups from `own` to the root.
fn way(own: &str, mount: &Path) -> Vec<Group> {
    // A group outside this process's view is written with `..`: of those only the root is known.
    let own = if own.contains("..") { "/" } else { own.trim() };
    let group = |path: &Path| Group {
        name: path.display().to_string(),
        folder: mount.join(path.strip_prefix("/").unwrap_or(path)),
    };
    Path::new(own).ancestors().map(group).collect()
}

impl Group {
    fn text(&self, file: &str) -> Option<String> {
        read_to_string(self.folder.join(file)).ok()
    }

    /// A file's number; none for `max`.
    fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.trim().parse().ok()
    }
}

/// Bytes that a group may still take. Files that it has read count as used, but give way when
/// memory is asked for.
fn left(limit: u64, used: u64, cached: u64) -> u64 {
    limit.saturating_sub(used.saturating_sub(cached))
}

/// A number of a `memory.stat`.
fn counted(stat: &str, name: &str) -> Option<u64> {
    let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
    fields.find(|(field, _)| *field == name)?.1.trim().parse().ok()
}

/// Processors of a `cpu.max`, such as `150000 100000`; none for `max`.
fn quota_cores(quota: &str) -> Option<f64> {
    let (time, period) = quota.split_once(' ')?;
    let (time, period) = (time.parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
    (period > 0.0).then_some(time / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Control groups made of files, and a process in some of them.
    fn made(groups: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, ControlGroups) {
        let mount = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = mount.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let groups = ControlGroups { groups: groups.to_owned(), mount: mount.path().to_owned() };
        (mount, groups)
    }

    #[test]
    fn the_tightest_memory_limit_on_the_way_counts() {
        let files = [
            ("memory.max", "max\n"),
            ("job/memory.max", "9000\n"),
            ("job/memory.current", "5000\n"),
            ("job/memory.stat", "anon 7\nactive_file 3\ninactive_file 1000\n"),
            ("job/step/memory.max", "8000\n"),
            ("job/step/memory.current", "2000\n"),
            ("other/memory.max", "1\n"),
        ];
        let left = |groups: &str| made(groups, &files).1.memory_left_bytes();
        assert_eq!(left("0::/job/step\n"), Some(9000 - (5000 - 1000)), "the group above has less left");
        assert_eq!(left("0::/job\n"), Some(5000));
        assert_eq!(left("0::/\n"), None, "no limit at the root");
        assert_eq!(left("0::/gone/away\n"), None);
        assert_eq!(left("0::/../other\n"), None, "outside of what this process sees");
        assert_eq!(left(""), None);
    }

    #[test]
    fn more_used_than_allowed_leaves_nothing() {
        let files = [("memory.max", "10000\n"), ("memory.current", "12000\n")];
        assert_eq!(made("0::/\n", &files).1.memory_left_bytes(), Some(0));
    }

    #[test]
    fn memory_limits_of_version_1_are_read_and_its_no_limit_is_none() {
        let files = [
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/slurm/job_7/memory.limit_in_bytes", "6000\n"),
            ("memory/slurm/job_7/memory.usage_in_bytes", "2500\n"),
            ("memory/slurm/job_7/memory.stat", "inactive_file 9\ntotal_inactive_file 500\n"),
        ];
        let left = |groups: &str| made(groups, &files).1.memory_left_bytes();
        assert_eq!(left("4:memory:/slurm/job_7/step_0\n0::/\n"), Some(4000));
        assert_eq!(left("4:cpu,memory:/slurm/job_7\n"), Some(4000));
        assert_eq!(left("4:memory:/\n0::/\n"), None);
        let both = [files.as_slice(), &[("unified/a/memory.max", "3000\n")]].concat();
        assert_eq!(made("4:memory:/slurm/job_7\n0::/a\n", &both).1.memory_left_bytes(), Some(3000));
    }

    #[test]
    fn the_tightest_quota_counts() {
        assert_eq!(quota_cores("150000 100000"), Some(1.5));
        assert_eq!(quota_cores("max 100000"), None);
        assert_eq!(quota_cores("100000 0"), None);
        let files = [("job/step/cpu.max", "400000 100000\n"), ("job/cpu.max", "200000 100000\n")];
        let found = |groups: &str, files: &[(&str, &str)]| made(groups, files).1.cpu_cores();
        assert_eq!(found("0::/job/step\n", &[("job/step/cpu.stat", "")]), None);
        assert_eq!(found("3:cpu:/x\n0::/job/step\n", &files), Some((2.0, "/job".to_owned())));
        assert_eq!(found("3:cpu:/job\n", &files), None, "version 1 only");
        assert_eq!(found("0::/../other\n", &[("cpu.max", "50000 100000\n")]), Some((0.5, "/".to_owned())));
    }
}
