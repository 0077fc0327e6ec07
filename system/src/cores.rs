//! Number of cores that this process may use, counted as launchers of MPI do: hardware threads of
//! one core count once.

use std::collections::BTreeSet;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// Cores that this process may use; at least 1.
pub fn cores() -> usize {
    let allowed = sched_getaffinity(None).map(|set| processors(&set)).unwrap_or_default();
    let counted = count(&allowed, Path::new("/sys/devices/system/cpu"));
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

fn processors(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect()
}

/// Number of cores of these processors, where the folder describes all of them.
fn count(processors: &[usize], folder: &Path) -> Option<usize> {
    let number = |processor: usize, file: &str| -> Option<i64> {
        let path = folder.join(format!("cpu{processor}/topology/{file}"));
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    let core = |&processor: &usize| Some((number(processor, "physical_package_id")?, number(processor, "core_id")?));
    let cores = processors.iter().map(core).collect::<Option<BTreeSet<_>>>()?;
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_are_one() {
        let folder = tempfile::tempdir().expect("a folder");
        for (processor, package, core) in [(0, 0, 0), (1, 0, 1), (2, 0, 0), (3, 1, 0)] {
            let topology = folder.path().join(format!("cpu{processor}/topology"));
            std::fs::create_dir_all(&topology).expect("a folder");
            std::fs::write(topology.join("physical_package_id"), format!("{package}\n")).expect("written");
            std::fs::write(topology.join("core_id"), format!("{core}\n")).expect("written");
        }
        assert_eq!(count(&[0, 1, 2, 3], folder.path()), Some(3));
        assert_eq!(count(&[0, 2], folder.path()), Some(1));
        assert_eq!(count(&[0, 9], folder.path()), None, "processor 9 is not described");
        assert_eq!(count(&[], folder.path()), None);
    }

    #[test]
    fn this_machine_has_cores() {
        let processors = sched_getaffinity(None).map(|set| processors(&set).len()).expect("a set of processors");
        assert!((1..=processors).contains(&cores()), "{} cores of {processors} processors", cores());
    }
}
