//! What the examination came to, and whether it is good enough.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_protocol::exit;

use super::bandwidth::AllGather;
use super::facts::Facts;
use super::hosts::{Host, hosts, one_process};
use super::latency::Latency;
use super::warnings::warnings;
use crate::failure::Coded;
use tributary_system::size::Size;

/// Name and version of the report as JSON (`docs/schemas/doctor.v1.json`). A field that goes, or means something else, makes another
/// version.
const SCHEMA: &str = "tributary.doctor/1";

/// Everything that `doctor` found. `render` makes it a text, serde a JSON object.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Version of this program, on rank 0.
    pub version: String,
    /// Who started the ranks, and through which library they talk.
    pub launcher: String,
    /// Number of ranks.
    pub world: usize,
    /// Whether all ranks are threads of one process, which copy nothing to each other.
    pub one_process: bool,
    /// Every rank.
    pub ranks: Vec<Rank>,
    /// Every host, in the order of its lowest rank.
    pub hosts: Vec<Host>,
    /// What is likely to hurt, each in one line that says what would be right.
    pub warnings: Vec<String>,
    /// What the checks of the collectives came to.
    pub checks: Checks,
    /// What carried the tensors of checks and measurements from GPU to GPU; absent where they lay in the host's memory.
    pub between_gpus: Option<String>,
    /// How long a small all-gather takes; absent where nothing was copied.
    pub latency: Option<Latency>,
    /// The measured all-gathers, in the order asked for.
    pub all_gathers: Vec<AllGather>,
    /// Sizes that were not measured, and why.
    pub left_out: Vec<LeftOut>,
    /// The bus bandwidth that was demanded, in GB/s.
    pub min_busbw_gb_per_s: Option<f64>,
    /// Why the group is not fit; absent where it is.
    pub unfit: Option<Unfit>,
}

/// A row of the rank table.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Rank {
    /// The rank.
    pub rank: usize,
    /// Its host's name.
    pub host: String,
    /// Its place among the ranks of its host, from 0.
    pub local_rank: usize,
    /// Its process.
    pub pid: u32,
    /// Threads that compute on it.
    pub threads: usize,
    /// The cores that it may run on, ascending; empty where unknown.
    pub cores: BTreeSet<usize>,
    /// Free memory, in bytes.
    pub free_memory_bytes: Option<u64>,
    /// The widest instructions that the kernels use there.
    pub instructions: String,
    /// Version of this program there.
    pub version: String,
}

/// What the checks of the collectives came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Checks {
    /// Left out, as asked for.
    #[default]
    LeftOut,
    /// Every check passed on every rank.
    Passed,
    /// What did not hold.
    Failed(String),
}

/// A size that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOut {
    /// Bytes that every rank would have had in the end.
    #[schemars(with = "u64")]
    pub size_bytes: Size,
    /// Why not.
    pub reason: String,
}

/// Why a group is not fit. The exit code is 70 where collectives are wrong, 78 where they are slower than demanded, or not
/// measurable.
pub type Unfit = Coded;

/// The collectives' checks failed.
pub(super) fn failed_checks(what: &str) -> Unfit {
    Unfit { exit_code: exit::BUG, reason: format!("collectives: {what}") }
}

/// What the collectives came to on a group.
#[derive(Debug, Clone, Default)]
pub struct Collectives {
    /// The checks.
    pub checks: Checks,
    /// What carried tensors from GPU to GPU, if they lay there.
    pub between_gpus: Option<String>,
    /// A small all-gather.
    pub latency: Option<Latency>,
    /// What was measured.
    pub all_gathers: Vec<AllGather>,
    /// What was not.
    pub left_out: Vec<LeftOut>,
}

impl Report {
    /// The report of a group from its ranks' facts and what its collectives came to.
    pub fn new(launcher: &str, facts: &[Facts], collectives: Collectives, min_busbw: Option<f64>) -> Self {
        let hosts = hosts(facts);
        let Collectives { checks, between_gpus, latency, all_gathers, left_out } = collectives;
        let mut report = Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            launcher: launcher.to_owned(),
            world: facts.len(),
            one_process: one_process(&hosts),
            ranks: rows(facts, &hosts),
            warnings: warnings(facts, &hosts),
            hosts,
            checks,
            between_gpus,
            latency,
            all_gathers,
            left_out,
            min_busbw_gb_per_s: min_busbw,
            unfit: None,
        };
        report.unfit = report.find_unfit();
        report
    }

    /// Whether the group is fit. Warnings do not make it unfit.
    ///
    /// # Errors
    /// The first reason why not: wrong collectives, then a bandwidth below what was demanded, or demanded and not measured.
    pub fn verdict(&self) -> Result<(), Unfit> {
        self.unfit.clone().map_or(Ok(()), Err)
    }

    fn find_unfit(&self) -> Option<Unfit> {
        if let Checks::Failed(what) = &self.checks {
            return Some(failed_checks(what));
        }
        if let Some(wrong) = self.all_gathers.iter().find(|result| result.wrong_values > 0) {
            let (size, count) = (wrong.size_bytes, wrong.wrong_values);
            return Some(failed_checks(&format!("an all-gather of {size} gave {count} wrong values")));
        }
        let reason = self.below(self.min_busbw_gb_per_s?)?;
        Some(Unfit { exit_code: exit::CONFIGURATION, reason })
    }

    /// How the largest all-gather misses the demand. What was not measured does not meet it.
    fn below(&self, demanded: f64) -> Option<String> {
        if self.world == 1 {
            let right = "start several, such as with mpirun -n 4";
            return Some(format!("--min-busbw {demanded}: one rank has no bandwidth to measure; {right}"));
        }
        if self.one_process && self.between_gpus.is_none() {
            let right = "start processes, such as with mpirun";
            return Some(format!("--min-busbw {demanded}: ranks are threads of one process and copy nothing; {right}"));
        }
        let measured = self.all_gathers.iter().max_by_key(|result| result.size_bytes);
        let measured_size = measured.map(|result| result.size_bytes);
        let missing = self.left_out.iter().max_by_key(|missing| missing.size_bytes);
        if let Some(missing) = missing.filter(|missing| Some(missing.size_bytes) > measured_size) {
            let LeftOut { size_bytes, reason } = missing;
            return Some(format!("--min-busbw {demanded}: an all-gather of {size_bytes} was not measured: {reason}"));
        }
        let Some((size, bus)) = measured.and_then(|result| Some((result.size_bytes, result.bus_gb_per_s?))) else {
            return Some(format!("--min-busbw {demanded}: no all-gather was measured"));
        };
        let is_below = bus < demanded;
        is_below.then(|| {
            format!("the bus bandwidth of a {size} all-gather is {bus:.3} GB/s, --min-busbw asks for {demanded}")
        })
    }
}

fn rows(facts: &[Facts], hosts: &[Host]) -> Vec<Rank> {
    let local_rank = |rank: usize| hosts.iter().find_map(|host| host.ranks.iter().position(|&member| member == rank));
    let row = |(rank, facts): (usize, &Facts)| Rank {
        rank,
        host: facts.host.clone(),
        local_rank: local_rank(rank).expect("every rank is on a host"),
        pid: facts.pid,
        threads: facts.threads,
        cores: facts.cores.clone(),
        free_memory_bytes: facts.free_memory_bytes,
        instructions: facts.instructions.clone(),
        version: facts.version.clone(),
    };
    facts.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(places: &[(&str, u32)]) -> Vec<Facts> {
        places.iter().map(|(host, pid)| Facts { host: (*host).into(), pid: *pid, ..Facts::default() }).collect()
    }

    const TWO: [(&str, u32); 2] = [("a", 1), ("b", 2)];

    fn gathered(size: &str, median_ms: f64, wrong_values: u64) -> AllGather {
        AllGather::new(size.parse().unwrap(), 2, true, vec![median_ms], wrong_values)
    }

    fn report(
        places: &[(&str, u32)],
        checks: Checks,
        all_gathers: Vec<AllGather>,
        left_out: &[&str],
        min_busbw: Option<f64>,
    ) -> Report {
        let left_out = left_out
            .iter()
            .map(|size| LeftOut { size_bytes: size.parse().unwrap(), reason: "too little memory".into() })
            .collect();
        let collectives = Collectives { checks, all_gathers, left_out, ..Collectives::default() };
        Report::new("mpirun", &facts(places), collectives, min_busbw)
    }

    #[test]
    fn local_ranks_are_counted_on_each_host() {
        let places = [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)];
        let rows = report(&places, Checks::Passed, Vec::new(), &[], None).ranks;
        let found: Vec<_> = rows.iter().map(|row| (row.rank, &row.host[..], row.local_rank)).collect();
        assert_eq!(found, [(0, "a", 0), (1, "b", 0), (2, "a", 1), (3, "a", 2), (4, "b", 1)]);
    }

    #[test]
    fn a_demand_is_met_by_the_largest_size() {
        // 1 GB among two ranks in 1000 ms: 0.5 GB/s on the bus. The small one is slower, and does not count.
        let speeds = || vec![gathered("1GB", 1000.0, 0), gathered("1MB", 1000.0, 0)];
        for demanded in [None, Some(0.4), Some(0.5)] {
            assert_eq!(report(&TWO, Checks::Passed, speeds(), &[], demanded).verdict(), Ok(()), "{demanded:?}");
        }
        let unfit = report(&TWO, Checks::LeftOut, speeds(), &[], Some(0.6)).verdict().unwrap_err();
        assert_eq!(unfit.exit_code, 78);
        let wanted = "the bus bandwidth of a 1000000000 B all-gather is 0.500 GB/s, --min-busbw asks for 0.6";
        assert_eq!(unfit.to_string(), wanted);
    }

    #[test]
    fn a_demand_that_was_not_measured_is_not_met() {
        let fast = || vec![gathered("1MB", 0.001, 0)];
        let threads = vec![AllGather::new("1GB".parse().unwrap(), 2, false, vec![0.01], 0)];
        let table = [
            (report(&[("a", 1)], Checks::Passed, Vec::new(), &[], Some(1.0)), "one rank"),
            (report(&[("a", 1), ("a", 1)], Checks::Passed, threads, &[], Some(1.0)), "threads of one process"),
            (report(&TWO, Checks::Passed, fast(), &["1GB"], Some(1.0)), "of 1000000000 B was not measured: too little"),
            (report(&TWO, Checks::Passed, Vec::new(), &["4B"], Some(1.0)), "of 4 B was not measured: too little"),
            (report(&TWO, Checks::Passed, Vec::new(), &[], Some(1.0)), "no all-gather was measured"),
        ];
        for (report, part) in table {
            let unfit = report.verdict().unwrap_err();
            assert!(unfit.exit_code == 78 && unfit.reason.contains(part), "`{part}`: {unfit:?}");
            assert!(unfit.reason.contains("--min-busbw 1"), "{unfit:?}");
            assert!(!unfit.reason.contains('\n'), "{unfit:?}");
        }
        assert_eq!(report(&TWO, Checks::Passed, fast(), &["1GB"], None).verdict(), Ok(()), "nothing was demanded");
        assert_eq!(
            report(&TWO, Checks::Passed, fast(), &["4B"], Some(1.0)).verdict(),
            Ok(()),
            "a small one is missing"
        );
    }

    #[test]
    fn wrong_collectives_come_before_slow_ones() {
        let failed = Checks::Failed("rank 2 gave up: all-gather: 3 parts, not 4".into());
        let unfit = report(&TWO, failed, Vec::new(), &[], Some(9.0)).verdict().unwrap_err();
        let reason = "collectives: rank 2 gave up: all-gather: 3 parts, not 4".to_owned();
        assert_eq!(unfit, Unfit { exit_code: 70, reason });
        let wrong = vec![gathered("1MiB", 1.0, 0), gathered("2MiB", 1.0, 5)];
        let unfit = report(&TWO, Checks::Passed, wrong, &[], Some(9.0)).verdict().unwrap_err();
        assert_eq!(unfit.exit_code, 70);
        assert_eq!(unfit.to_string(), "collectives: an all-gather of 2 MiB gave 5 wrong values");
    }

    #[test]
    fn json_says_why() {
        let value =
            serde_json::to_value(report(&TWO, Checks::Passed, vec![gathered("1GB", 1000.0, 0)], &[], Some(0.6)));
        let value = value.unwrap();
        assert_eq!(value["unfit"]["exit_code"], 78);
        assert_eq!(value["checks"], "passed");
        assert_eq!(value["all_gathers"][0]["size_bytes"], 1_000_000_000);
        assert_eq!(value["all_gathers"][0]["runs_ms"], serde_json::json!([1000.0]));
        assert_eq!(value["ranks"][1]["host"], "b");
    }
}
