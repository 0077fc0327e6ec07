//! Likely problems on these hosts, each in one line with its remedy. Pure functions of the facts.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::Facts;
use super::hosts::{Host, ranges, rank_list};
use tributary_system::network::Interface;
use tributary_system::size::rounded;

/// Shared memory that MPI and NCCL may take for each process of a host.
const SHARED_MEMORY_BYTES: u64 = 64 << 20;

/// Open files that a rank with many connections may need.
const OPEN_FILES: u64 = 1024;

/// All warnings about `ranks` on their `hosts`.
pub fn warnings(ranks: &[Facts], hosts: &[Host]) -> Vec<String> {
    let mut found = shared_cores(ranks);
    found.extend(tight_groups(ranks, hosts));
    for host in hosts {
        found.extend(shared_memory(host));
        found.extend(open_files(ranks, host));
        if hosts.len() > 1 {
            found.extend(unreachable(host));
        }
    }
    found.extend(same_names(hosts));
    found.extend(differences(ranks));
    found
}

/// Ranks with fewer cores than threads. For every set of cores that some rank is bound to, and for
/// all of a machine's together: the threads that may run nowhere else must fit. Containers of one
/// machine are counted together.
fn shared_cores(ranks: &[Facts]) -> Vec<String> {
    let mut machines: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (rank, facts) in ranks.iter().enumerate().filter(|(_, facts)| !facts.cores.is_empty()) {
        let machine = if facts.boot_id.is_empty() { &facts.host } else { &facts.boot_id };
        machines.entry(machine).or_default().push(rank);
    }
    let mut found = Vec::new();
    for members in machines.values() {
        let mut sets: Vec<BTreeSet<usize>> = members.iter().map(|&rank| ranks[rank].cores.clone()).collect();
        sets.push(sets.iter().flatten().copied().collect());
        sets.sort_by_key(BTreeSet::len);
        let mut reported: Vec<BTreeSet<usize>> = Vec::new();
        for cores in sets {
            let inside: Vec<usize> =
                members.iter().copied().filter(|&rank| ranks[rank].cores.is_subset(&cores)).collect();
            let threads: usize = inside.iter().map(|&rank| ranks[rank].threads).sum();
            if threads > cores.len() && !reported.iter().any(|smaller| smaller.is_subset(&cores)) {
                found.push(format!(
                    "{}: {threads} threads of {} share {} core{} ({}), timings are functional only; start fewer, or bind \
                     to more cores (mpirun --bind-to none)",
                    names(ranks, &inside),
                    rank_list(&inside),
                    cores.len(),
                    plural(cores.len()),
                    ranges(&cores),
                ));
                reported.push(cores);
            }
        }
    }
    found
}

/// Control groups that grant less processor time than their ranks' threads would use.
fn tight_groups(ranks: &[Facts], hosts: &[Host]) -> Vec<String> {
    let mut found = Vec::new();
    for host in hosts {
        let mut groups: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
        for facts in host.ranks.iter().map(|&rank| &ranks[rank]) {
            if let Some(limit) = &facts.cpu_limit {
                groups.entry(&limit.group).or_insert((limit.cores, 0)).1 += facts.threads;
            }
        }
        for (group, (cores, threads)) in groups.into_iter().filter(|(_, (cores, threads))| *threads as f64 > *cores) {
            found.push(format!(
                "{}: {threads} threads under a control group's limit of {cores} cores ({group}), timings are functional \
                 only; raise the limit or start fewer",
                host.name
            ));
        }
    }
    found
}

fn shared_memory(host: &Host) -> Option<String> {
    let wanted_bytes = SHARED_MEMORY_BYTES * host.processes as u64;
    let name = &host.name;
    let Some(space) = host.shared_memory else { return Some(format!("{name}: no /dev/shm; ranks need it to talk")) };
    (space.free_bytes < wanted_bytes).then(|| {
        format!(
            "{name}: /dev/shm has {} free for {} process{}; {} would do (docker run --shm-size)",
            rounded(space.free_bytes),
            host.processes,
            if host.processes == 1 { "" } else { "es" },
            rounded(wanted_bytes),
        )
    })
}

fn open_files(ranks: &[Facts], host: &Host) -> Option<String> {
    let least = host.ranks.iter().filter_map(|&rank| ranks[rank].limits.open_files).min()?;
    (least < OPEN_FILES)
        .then(|| format!("{}: {least} open files allowed; {OPEN_FILES} would do (ulimit -n)", host.name))
}

fn unreachable(host: &Host) -> Option<String> {
    let reachable = host.interfaces.iter().any(Interface::leads_out);
    (!reachable).then(|| {
        let name = &host.name;
        format!("{name}: no interface but loopback is up with an address; the other hosts need one to reach it")
    })
}

fn same_names(hosts: &[Host]) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for host in hosts {
        *counts.entry(&host.name).or_default() += 1;
    }
    let several = counts.into_iter().filter(|(_, count)| *count > 1);
    several.map(|(name, count)| format!("{count} machines are called {name}; give each a name of its own")).collect()
}

/// Ranks that are not alike: the slowest sets the pace.
fn differences(ranks: &[Facts]) -> Vec<String> {
    let cores = ranks.iter().map(|facts| facts.cores.len().to_string()).collect();
    let instructions = ranks.iter().map(|facts| facts.instructions.clone()).collect();
    let versions = ranks.iter().map(|facts| facts.version.clone()).collect();
    [
        difference("cores", cores, "the slowest rank sets the pace; give all the same"),
        difference("instructions", instructions, "the slowest rank sets the pace; use machines of one kind"),
        difference("version", versions, "install the same build everywhere"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn difference(what: &str, values: Vec<String>, right: &str) -> Option<String> {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (rank, value) in values.into_iter().enumerate() {
        groups.entry(value).or_default().push(rank);
    }
    if groups.len() < 2 {
        return None;
    }
    let mut groups: Vec<(String, Vec<usize>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, ranks)| ranks[0]);
    let parts: Vec<String> = groups.iter().map(|(value, ranks)| format!("{value} on {}", rank_list(ranks))).collect();
    Some(format!("{what}: {}; {right}", parts.join(", ")))
}

/// The hosts of these ranks.
fn names(ranks: &[Facts], members: &[usize]) -> String {
    let mut names: Vec<&str> = members.iter().map(|&rank| &ranks[rank].host[..]).collect();
    names.dedup();
    names.join(", ")
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
