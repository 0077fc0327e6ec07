//! Report of the examination, and its verdict.

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

/// Name and version of the report as JSON (`docs/schemas/doctor.v1.json`). A field that goes, or
/// means something else, makes another version.
const SCHEMA: &str = "tributary.doctor/1";

/// Everything that `doctor` found. `render` makes it a text, serde a JSON object.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// Version of this program, on rank 0.
    pub version: String,
    /// Launcher of the ranks, and the library of their messages.
    pub launcher: String,
    /// Number of ranks.
    pub world: usize,
    /// Whether all ranks are threads of one process, which copy nothing to each other.
    pub one_process: bool,
    /// Every rank.
    pub ranks: Vec<Rank>,
    /// Every host, in the order of its lowest rank.
    pub hosts: Vec<Host>,
    /// Likely problems, each in one line with its remedy.
    pub warnings: Vec<String>,
    /// Result of the checks of the collectives.
    pub checks: Checks,
    /// Carrier of the tensors of checks and measurements from GPU to GPU; absent where they were in
    /// the host's memory.
    pub between_gpus: Option<String>,
    /// Latency of a small all-gather; absent where nothing was copied.
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

/// Result of the checks of the collectives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Checks {
    /// Left out, as asked for.
    #[default]
    LeftOut,
    /// Every check passed on every rank.
    Passed,
    /// Claim that did not hold.
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

/// Why a group is not fit. The exit code is 70 where collectives are wrong, 78 where they are
/// slower than demanded, or not measurable.
pub type Unfit = Coded;

/// The collectives' checks failed.
pub(super) fn failed_checks(what: &str) -> Unfit {
    Unfit { exit_code: exit::BUG, reason: format!("collectives: {what}") }
}

/// Results of the collectives on a group.
#[derive(Debug, Clone, Default)]
pub struct Collectives {
    /// The checks.
    pub checks: Checks,
    /// Carrier of tensors from GPU to GPU, if they were there.
    pub between_gpus: Option<String>,
    /// A small all-gather.
    pub latency: Option<Latency>,
    /// Measured sizes.
    pub all_gathers: Vec<AllGather>,
    /// Sizes that were left out.
    pub left_out: Vec<LeftOut>,
}

impl Report {
    /// The report of a group from its ranks' facts and the results of its collectives.
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
    /// Returns the first reason: wrong collectives, then a bandwidth below the demanded one, or one
    /// that was demanded and not measured.
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

    /// Reason why the largest all-gather misses the demand. A size that was not measured does not
    /// meet it.
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
