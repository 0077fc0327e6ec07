//! Load of this host, and its sources: load averages, the time of its processors, and the
//! processes' shares of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::file::text;
use crate::process;

/// Ticks a second in the kernel's reports to processes (`USER_HZ`, time(7)): 100 on every
/// architecture that this program is built for.
const TICKS_A_SECOND: f64 = 100.0;

/// Variables that a launcher gives each rank of a group.
const LAUNCHERS: [&str; 3] = ["PMIX_NAMESPACE", "PMI_RANK", "SLURM_PROCID"];

/// The load averages of the last minute, of five and of fifteen: processes that compute or wait for
/// a disk.
pub fn load_average() -> Option<[f64; 3]> {
    parse_load_average(&text("/proc/loadavg")?)
}

/// A reading of clocks that only go forward, in ticks. Two of them give the work in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Of all processors, idle or not.
    all: u64,
    /// Of all processors, in which some process of this host computed.
    busy: u64,
    /// Of all processors, that a host of virtual machines gave to others.
    stolen: u64,
    /// Of the processes of this program's run, those that have ended included.
    own: u64,
}

/// Work between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    /// Seconds of processors that this run took.
    pub own_s: f64,
    /// Share of all processors' time that other processes of this host took, from 0 to 1.
    pub others_share: f64,
    /// Share of it that other virtual machines took.
    pub stolen_share: f64,
}

impl Reading {
    /// Now; none where `/proc` does not tell.
    ///
    /// Reads the current counters. The run is this process with its descendants. A launcher's ranks
    /// are its siblings: those of the same program are part of the run too.
    pub fn now() -> Option<Self> {
        let (all, busy, stolen) = parse_processors(&text("/proc/stat")?)?;
        let processes: BTreeMap<u32, Times> =
            process::all().into_iter().filter_map(|pid| Some((pid, times(pid)?))).collect();
        let own_pid = std::process::id();
        let mut roots = BTreeSet::from([own_pid]);
        if LAUNCHERS.iter().any(|name| std::env::var_os(name).is_some()) {
            let (own, program) = (processes.get(&own_pid)?, program(own_pid));
            let beside = processes.iter().filter(|(_, times)| times.parent == own.parent);
            roots.extend(beside.map(|(pid, _)| *pid).filter(|&pid| program.is_some() && self::program(pid) == program));
        }
        Some(Self { all, busy, stolen, own: of_trees(&processes, &roots) })
    }

    /// Work since an earlier reading; none where less than a tick has passed.
    pub fn since(&self, earlier: &Self) -> Option<Work> {
        let between = |of: fn(&Self) -> u64| of(self).saturating_sub(of(earlier)) as f64;
        let all = between(|reading| reading.all);
        if all <= 0.0 {
            return None;
        }
        let own = between(|reading| reading.own);
        Some(Work {
            own_s: own / TICKS_A_SECOND,
            others_share: ((between(|reading| reading.busy) - own) / all).clamp(0.0, 1.0),
            stolen_share: (between(|reading| reading.stolen) / all).clamp(0.0, 1.0),
        })
    }
}

/// A process's parent, and its ticks with those of the children that it has waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    parent: u32,
    ticks: u64,
}

fn times(pid: u32) -> Option<Times> {
    parse_times(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn program(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// The ticks of some processes and of all that descend from them.
fn of_trees(processes: &BTreeMap<u32, Times>, roots: &BTreeSet<u32>) -> u64 {
    let mut found = roots.clone();
    loop {
        let before = found.len();
        found.extend(
            processes
                .iter()
                .filter(|(_, times)| found.contains(&times.parent))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == before {
            return found.iter().filter_map(|pid| processes.get(pid)).map(|times| times.ticks).sum();
        }
    }
}

/// Parent (field 4) and ticks (fields 14 to 17) of a line of `/proc/PID/stat` (proc(5)). The name
/// in field 2 may hold anything.
fn parse_times(stat: &str) -> Option<Times> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
    Some(Times { parent: fields.get(1)?.parse().ok()?, ticks: ticks.sum::<Result<u64, _>>().ok()? })
}

/// Ticks of all processors together, those in which they computed, and those that others took (the
/// line `cpu` of `/proc/stat`, proc(5)): user, nice, system, idle, iowait, irq, softirq, steal.
/// Guests are part of user.
fn parse_processors(stat: &str) -> Option<(u64, u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let &[user, nice, system, idle, waiting, interrupts, soft_interrupts, stolen, ..] = ticks.as_slice() else {
        return None;
    };
    let busy = user + nice + system + interrupts + soft_interrupts;
    Some((busy + idle + waiting + stolen, busy, stolen))
}

fn parse_load_average(text: &str) -> Option<[f64; 3]> {
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    let mut next = || numbers.next()?.ok();
    Some([next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert_eq!(parse_load_average("15.51 13.24 10.90 3/412 999"), Some([15.51, 13.24, 10.9]));
        assert_eq!(parse_load_average("15.51 x"), None);
        let stat = "cpu  100 10 50 700 20 5 5 110 40 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_processors(stat), Some((1000, 170, 110)));
        assert_eq!(parse_processors("cpu0 1 2 3 4 5 6 7 8\n"), None, "not the sum of all");
        let line = "12 (a) b) S 7 2 3 4 5 6 7 8 9 10 20 30 4 5 20 0 1 0 4711";
        assert_eq!(parse_times(line), Some(Times { parent: 7, ticks: 59 }));
    }

    #[test]
    fn others_are_what_the_run_did_not_take() {
        let earlier = Reading { all: 1000, busy: 200, stolen: 10, own: 100 };
        let later = Reading { all: 1400, busy: 500, stolen: 50, own: 300 };
        let work = later.since(&earlier).expect("time has gone by");
        assert_eq!((work.own_s, work.others_share, work.stolen_share), (2.0, 0.25, 0.1));
        assert_eq!(earlier.since(&earlier), None);
        let coarse = Reading { own: 420, ..later }.since(&earlier).expect("time has gone by");
        assert_eq!(coarse.others_share, 0.0, "ticks of a process may run ahead of the processors'");
    }

    #[test]
    fn children_and_theirs_belong_to_a_run() {
        let of = |parent, ticks| Times { parent, ticks };
        let processes =
            BTreeMap::from([(1, of(0, 1000)), (5, of(1, 10)), (9, of(5, 3)), (3, of(9, 2)), (6, of(1, 500))]);
        assert_eq!(of_trees(&processes, &BTreeSet::from([5])), 15);
        assert_eq!(of_trees(&processes, &BTreeSet::from([5, 6])), 515);
    }

    #[test]
    fn this_process_is_seen_to_work() {
        let earlier = Reading::now().expect("`/proc` tells");
        let mut sum = 0u64;
        let work = loop {
            for number in 0..10_000_000u64 {
                sum = std::hint::black_box(sum.wrapping_add(number));
            }
            let work = Reading::now().expect("`/proc` tells").since(&earlier);
            if let Some(work) = work.filter(|work| work.own_s >= 0.05) {
                break work;
            }
        };
        assert!((0.0..=1.0).contains(&work.others_share) && (0.0..=1.0).contains(&work.stolen_share), "{work:?}");
        assert!(load_average().expect("`/proc` tells").iter().all(|load| *load >= 0.0));
    }
}
