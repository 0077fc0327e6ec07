//! Hosts with their ranks, and their resources.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;

use super::facts::{CpuLimit, Facts, Gpu, Limits, Space};
use tributary_system::network::Interface;

/// A host, as its lowest rank sees it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The kernel's id of its own start. Containers of one machine share it and differ in their
    /// names.
    pub boot_id: String,
    /// The ranks on it, ascending: a rank's place here is its local rank.
    pub ranks: Vec<usize>,
    /// Number of processes.
    pub processes: usize,
    /// Memory that is free, in bytes: the least that a rank reports.
    pub free_memory_bytes: Option<u64>,
    /// The processor time that the control group grants.
    pub cpu_limit: Option<CpuLimit>,
    /// `/dev/shm`.
    pub shared_memory: Option<Space>,
    /// Limits of a process.
    pub limits: Limits,
    /// Network interfaces.
    pub interfaces: Vec<Interface>,
    /// GPUs that its ranks see, each once.
    pub gpus: Vec<Gpu>,
}

/// The hosts of all ranks, in the order of their lowest rank. A host is known by its name and boot
/// id.
pub fn hosts(ranks: &[Facts]) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for (rank, facts) in ranks.iter().enumerate() {
        match hosts.iter_mut().find(|host| host.name == facts.host && host.boot_id == facts.boot_id) {
            Some(host) => {
                host.ranks.push(rank);
                host.free_memory_bytes = host.free_memory_bytes.into_iter().chain(facts.free_memory_bytes).min();
                for gpu in &facts.gpus {
                    if host.gpus.iter().all(|known| known.uuid != gpu.uuid) {
                        host.gpus.push(gpu.clone());
                    }
                }
            }
            None => hosts.push(Host {
                name: facts.host.clone(),
                boot_id: facts.boot_id.clone(),
                ranks: vec![rank],
                processes: 0,
                free_memory_bytes: facts.free_memory_bytes,
                cpu_limit: facts.cpu_limit.clone(),
                shared_memory: facts.shared_memory,
                limits: facts.limits,
                interfaces: facts.interfaces.clone(),
                gpus: facts.gpus.clone(),
            }),
        }
    }
    for host in &mut hosts {
        host.processes = host.ranks.iter().map(|&rank| ranks[rank].pid).collect::<BTreeSet<_>>().len();
    }
    hosts
}

/// Whether all ranks are threads of one process: they hand tensors over and copy nothing.
pub fn one_process(hosts: &[Host]) -> bool {
    matches!(hosts, [host] if host.processes == 1)
}

/// Numbers as ranges, such as `0-3,8`.
pub fn ranges<'a>(numbers: impl IntoIterator<Item = &'a usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// `rank 3`, `ranks 0-2`.
pub fn rank_list(ranks: &[usize]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, ranges(ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(host: &str, boot_id: &str, pid: u32, free_memory_bytes: u64) -> Facts {
        let free_memory_bytes = Some(free_memory_bytes);
        Facts { host: host.into(), boot_id: boot_id.into(), pid, free_memory_bytes, ..Facts::default() }
    }

    #[test]
    fn ranks_are_put_on_hosts() {
        let ranks = [
            rank("a", "1", 10, 70),
            rank("b", "2", 10, 50),
            rank("a", "1", 11, 60),
            rank("a", "3", 12, 90),
            rank("c", "1", 13, 80),
            rank("a", "1", 11, 65),
        ];
        let hosts = hosts(&ranks);
        let rows: Vec<_> = hosts
            .iter()
            .map(|host| (&host.name[..], &host.boot_id[..], &host.ranks[..], host.processes, host.free_memory_bytes))
            .collect();
        let wanted = [
            ("a", "1", &[0, 2, 5][..], 2, Some(60)),
            ("b", "2", &[1], 1, Some(50)),
            ("a", "3", &[3], 1, Some(90)),
            ("c", "1", &[4], 1, Some(80)),
        ];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn threads_of_one_process_are_known() {
        let table: [(&[(&str, u32)], bool); 4] = [
            (&[("a", 1)], true),
            (&[("a", 1), ("a", 1)], true),
            (&[("a", 1), ("a", 2)], false),
            (&[("a", 1), ("b", 1)], false),
        ];
        for (places, is_one) in table {
            let ranks: Vec<Facts> = places.iter().map(|(host, pid)| rank(host, "1", *pid, 0)).collect();
            assert_eq!(one_process(&hosts(&ranks)), is_one, "{places:?}");
        }
    }

    #[test]
    fn numbers_become_ranges() {
        let table: [(&[usize], &str); 5] =
            [(&[], ""), (&[4], "4"), (&[0, 1, 2, 3], "0-3"), (&[0, 1, 8, 10, 11], "0-1,8,10-11"), (&[2, 4], "2,4")];
        for (numbers, text) in table {
            assert_eq!(ranges(numbers), text);
        }
        assert_eq!((rank_list(&[3]), rank_list(&[0, 1, 5])), ("rank 3".to_owned(), "ranks 0-1,5".to_owned()));
    }
}
