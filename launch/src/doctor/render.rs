//! The report as a text.

use tributary_charts::table::{Layout, table};

use super::bandwidth::WARM_UPS;
use super::facts::{Gpu, Limits};
use super::hosts::{Host, ranges, rank_list};
use super::latency::Latency;
use super::report::{Checks, Report};
use tributary_system::network::Interface;
use tributary_system::size::rounded;

/// Characters of a boot id that are shown.
const BOOT_ID_CHARS: usize = 8;

impl Report {
    /// The report for a reader, ended by a line break.
    pub fn render(&self) -> String {
        let mut text = format!("tributary {}\nlauncher: {}\n\n", self.version, self.launcher);
        text += &self.rank_table();
        for host in &self.hosts {
            text.push('\n');
            text += &describe(host);
        }
        text.push('\n');
        if !self.warnings.is_empty() {
            text += "warnings:\n";
            text.extend(self.warnings.iter().map(|warning| format!("  {warning}\n")));
            text.push('\n');
        }
        text += &match &self.checks {
            Checks::LeftOut => "collectives: not checked\n".to_owned(),
            Checks::Passed => format!("collectives: every check passed on {}\n", count(self.world, "rank")),
            Checks::Failed(what) => format!("collectives: FAILED: {what}\n"),
        };
        text += &self.bandwidth();
        text += &match (&self.unfit, self.warnings.len()) {
            (Some(unfit), _) => format!("\nunfit: {unfit}\n"),
            (None, 0) => "\nfit\n".to_owned(),
            (None, warnings) => format!("\nfit, with {}\n", count(warnings, "warning")),
        };
        text
    }

    fn rank_table(&self) -> String {
        let names = [
            "rank",
            "host",
            "local rank",
            "pid",
            "threads",
            "cores",
            "which cores",
            "free memory",
            "instructions",
            "version",
        ];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        for rank in &self.ranks {
            let known = !rank.cores.is_empty();
            rows.push(vec![
                rank.rank.to_string(),
                rank.host.clone(),
                rank.local_rank.to_string(),
                rank.pid.to_string(),
                rank.threads.to_string(),
                if known { rank.cores.len().to_string() } else { unknown() },
                if known { ranges(&rank.cores) } else { unknown() },
                rank.free_memory_bytes.map_or_else(unknown, rounded),
                rank.instructions.clone(),
                rank.version.clone(),
            ]);
        }
        table(&rows, Layout::PLAIN)
    }

    fn bandwidth(&self) -> String {
        if self.world == 1 {
            return "all-gather: one rank has nothing to measure\n".to_owned();
        }
        let mut text = String::new();
        if let Some(first) = self.all_gathers.first() {
            let runs = first.runs_ms.len();
            let between =
                self.between_gpus.as_ref().map_or_else(String::new, |name| format!(" between GPUs over {name}"));
            text += &format!(
                "\nall-gather{between}: {} after {WARM_UPS} warm-ups, each as long as its slowest rank's\n",
                count(runs, "run")
            );
            text += &self.all_gather_table();
            text += if self.one_process && self.between_gpus.is_none() {
                "Ranks are threads of one process and hand tensors over without a copy: no bandwidth to speak of.\n"
            } else {
                "algorithm: size / median time; bus: (n - 1) / n of it, as nccl-tests has them.\n"
            };
        }
        if let Some(Latency { rank_bytes, median_us, min_us, max_us, .. }) = &self.latency {
            text += &format!(
                "latency: an all-gather of {rank_bytes} B a rank takes {median_us:.1} µs (min {min_us:.1}, max {max_us:.1})\n"
            );
        }
        for missing in &self.left_out {
            text += &format!("all-gather of {}: not measured: {}\n", missing.size_bytes, missing.reason);
        }
        text
    }

    fn all_gather_table(&self) -> String {
        let names = ["size", "median [ms]", "min [ms]", "max [ms]", "algorithm [GB/s]", "bus [GB/s]", "wrong values"];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        let speed = |speed: Option<f64>| speed.map_or_else(unknown, |speed| format!("{speed:.3}"));
        for result in &self.all_gathers {
            rows.push(vec![
                result.size_bytes.to_string(),
                format!("{:.3}", result.median_ms),
                format!("{:.3}", result.min_ms),
                format!("{:.3}", result.max_ms),
                speed(result.algorithm_gb_per_s),
                speed(result.bus_gb_per_s),
                result.wrong_values.to_string(),
            ]);
        }
        table(&rows, Layout::PLAIN)
    }
}

fn describe(host: &Host) -> String {
    let boot_id: String = host.boot_id.chars().take(BOOT_ID_CHARS).collect();
    let boot_id = if boot_id.is_empty() { unknown() } else { boot_id };
    let mut text = format!("{} (boot id {boot_id}): {}\n", host.name, rank_list(&host.ranks));
    text += &indented(&interface_table(&host.interfaces));
    text += &match host.shared_memory {
        Some(space) => format!("  /dev/shm: {} free of {}\n", rounded(space.free_bytes), rounded(space.total_bytes)),
        None => "  /dev/shm: none\n".to_owned(),
    };
    text += &format!("  limits: {}\n", limits(&host.limits));
    text.extend(host.gpus.iter().map(|gpu| {
        let Gpu { name, uuid, bus_id, memory_bytes, driver } = gpu;
        format!("  GPU {bus_id}: {name}, {}, {uuid}, driver for CUDA {driver}\n", rounded(*memory_bytes))
    }));
    if let Some(limit) = &host.cpu_limit {
        text += &format!("  control group {}: {} cores\n", limit.group, limit.cores);
    }
    text
}

fn interface_table(interfaces: &[Interface]) -> String {
    let names = ["interface", "state", "MTU", "speed [Gbit/s]", "addresses"];
    let mut rows = vec![names.map(str::to_owned).to_vec()];
    for interface in interfaces {
        let addresses = interface.addresses.join(" ");
        rows.push(vec![
            interface.name.clone(),
            interface.state.clone(),
            interface.mtu_bytes.map_or_else(unknown, |mtu| mtu.to_string()),
            interface.speed_mbit_per_s.map_or_else(unknown, |speed| (f64::from(speed) / 1000.0).to_string()),
            if addresses.is_empty() { unknown() } else { addresses },
        ]);
    }
    table(&rows, Layout::PLAIN)
}

fn limits(limits: &Limits) -> String {
    let size = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), rounded);
    format!(
        "{} open files, {} locked memory, {} stack, {} core file",
        limits.open_files.map_or_else(|| "unlimited".to_owned(), |files| files.to_string()),
        size(limits.locked_memory_bytes),
        size(limits.stack_bytes),
        size(limits.core_file_bytes),
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn unknown() -> String {
    "-".to_owned()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
