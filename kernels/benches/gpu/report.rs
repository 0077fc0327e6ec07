//! The lines of the table, as they come and again in the end, and the same as JSON.

use std::fs;

use serde_json::{Value, json};
use tributary_kernels::cuda::LaunchCost;

use crate::case::{Bound, Measured};

/// The relative error from which on a result is wrong.
const TOLERANCE: f64 = 1e-2;

struct Entry {
    name: &'static str,
    /// PyTorch's milliseconds for the same.
    theirs_ms: Option<f64>,
    /// Or the failure.
    measured: Result<Measured, String>,
}

impl Entry {
    /// Why the result does not count, if so.
    fn wrong(&self) -> Option<String> {
        match &self.measured {
            Err(why) => Some(format!("FAILED: {}", why.lines().next().unwrap_or_default())),
            Ok(Measured { error: Some(error), .. }) if error.is_nan() || *error >= TOLERANCE => {
                Some(format!("WRONG: error {error:e}"))
            }
            Ok(_) => None,
        }
    }

    fn as_json(&self) -> Value {
        let Ok(case) = &self.measured else { return json!({"name": self.name, "failed": self.wrong()}) };
        json!({
            "name": self.name,
            "ms": case.times_ms,
            "operations": case.operations,
            "bytes": case.bytes,
            "error": case.error,
            "wrong": self.wrong(),
            "visible": case.visible,
            "late": case.late,
            "pool_grown_bytes": case.grown_bytes,
            "pytorch_ms": self.theirs_ms,
        })
    }
}

/// All cases so far, in the order in which they ran.
pub struct Report {
    keys: usize,
    /// Whether the sizes are PyTorch's.
    comparable: bool,
    entries: Vec<Entry>,
}

impl Report {
    pub fn new(keys: usize, comparable: bool) -> Self {
        Self { keys, comparable, entries: Vec::new() }
    }

    /// Adds a case and prints its line.
    pub fn add(&mut self, name: &'static str, pytorch: Option<&str>, measured: Result<Measured, String>) {
        let theirs_ms = pytorch.filter(|_| self.comparable).and_then(pytorch_ms);
        self.entries.push(Entry { name, theirs_ms, measured });
        if let Some(entry) = self.entries.last() {
            println!("{}", self.line(entry));
        }
    }

    /// Measurement of a case, if it counts.
    fn of(&self, name: &str) -> Option<&Measured> {
        let entry = self.entries.iter().find(|entry| entry.name == name)?;
        entry.measured.as_ref().ok()
    }

    /// Line of a case, compared with the device's own rates in operations and bytes a millisecond.
    fn line(&self, entry: &Entry) -> String {
        let Ok(case) = &entry.measured else {
            return format!("{:20} {}", entry.name, entry.wrong().unwrap_or_default());
        };
        let ms = case.median_ms();
        let (least, most) = case.times_ms.iter().fold((f64::MAX, 0f64), |(a, b), &t| (a.min(t), b.max(t)));
        let products = self.of("matrix product").map(|of| of.operations / of.median_ms());
        let memory = self.of("copy").map(|of| of.bytes / of.median_ms());
        let share = match case.bound {
            Bound::Products => products.map(|rate| case.operations / ms / rate),
            Bound::Memory => memory.map(|rate| case.bytes / ms / rate),
            Bound::Nothing => None,
        };
        let or_dash = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
        format!(
            "{:20} {:>9.4} {:>18} {:>8.1} {:>6.3} {:>8} {:>7} {:>8} {:>10} {:>9}{}",
            entry.name,
            ms,
            format!("{least:.4} to {most:.4}"),
            case.operations / ms / 1e9,
            case.bytes / ms / 1e9,
            or_dash(share, 2),
            or_dash(case.visible, 3),
            case.error.map_or("-".to_owned(), |error| format!("{error:.1e}")),
            or_dash(entry.theirs_ms, 4),
            or_dash(entry.theirs_ms.map(|theirs| theirs / ms), 2),
            entry.wrong().map_or(String::new(), |why| format!("  {why}")),
        )
    }

    /// Prints the table.
    pub fn print(&self) {
        let grown: u64 = self.measured().map(|case| case.grown_bytes).sum();
        println!("# memory pool: {grown} bytes grown after the first run of each case");
        let late = self.entries.iter().filter(|entry| entry.measured.as_ref().is_ok_and(|case| case.late > 0));
        let late: Vec<_> = late.map(|entry| entry.name).collect();
        println!("# cases for which the device had to wait for the host, so that launches count: {late:?}");
        println!(
            "{:20} {:>9} {:>18} {:>8} {:>6} {:>8} {:>7} {:>8} {:>10} {:>9}",
            "case",
            "median ms",
            "range ms",
            "TFLOP/s",
            "TB/s",
            "of bound",
            "visible",
            "error",
            "PyTorch ms",
            "x PyTorch"
        );
        self.entries.iter().for_each(|entry| println!("{}", self.line(entry)));
        // The goal: at most 1.15 times its share of the dense kernel's time.
        if let (Some(stairs), Some(dense)) = (self.of("staircase, 15 %"), self.of("dense, causal")) {
            let share = stairs.operations / dense.operations;
            println!(
                "# staircase: {:.3} x its share of the dense kernel's time",
                stairs.median_ms() / dense.median_ms() / share
            );
        }
    }

    /// Leaves all numbers in the file of GPU_BENCH_JSON.
    pub fn write(&self, cost: Option<&LaunchCost>) {
        let Ok(path) = std::env::var("GPU_BENCH_JSON") else { return };
        let launch = cost.map(|cost| {
            let graph = cost.in_graph_us.as_ref().ok();
            json!({"with_events": cost.with_events_us, "without_events": cost.without_events_us, "in_graph": graph})
        });
        let cases: Vec<Value> = self.entries.iter().map(Entry::as_json).collect();
        let all = json!({"keys": self.keys, "cases": cases, "host_us_a_launch": launch});
        fs::write(path, format!("{all}\n")).unwrap();
    }

    /// Whether every case has run and none was wrong.
    pub fn is_right(&self) -> bool {
        self.entries.iter().all(|entry| entry.wrong().is_none())
    }

    fn measured(&self) -> impl Iterator<Item = &Measured> {
        self.entries.iter().filter_map(|entry| entry.measured.as_ref().ok())
    }
}

/// A number of PyTorch's in milliseconds: PYTORCH_JSON has an object a line.
fn pytorch_ms(name: &str) -> Option<f64> {
    let text = fs::read_to_string(std::env::var("PYTORCH_JSON").ok()?).ok()?;
    let cases = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    cases.filter(|case| case["case"] == name).find_map(|case| case["ms"].as_f64())
}

/// The host's cost of a launch, or the reason why it is unknown, as a line of the table.
pub fn launches(cost: &tributary_kernels::Result<LaunchCost>) -> String {
    let cost = match cost {
        Ok(cost) => cost,
        Err(error) => return format!("# host, microseconds a launch: not measured ({error})"),
    };
    let told = match &cost.in_graph_us {
        Ok(us) => format!("{us:.2} in a graph"),
        Err(why) => format!("not in a graph ({})", why.lines().next().unwrap_or_default()),
    };
    let (with, without) = (cost.with_events_us, cost.without_events_us);
    format!("# host, microseconds a launch: {with:.2}; without events {without:.2}; {told}")
}
