//! The table, and the same as JSON.

use std::fmt::Write as _;

use tributary_kernels::cuda::LaunchCost;

use crate::{Bound, Case};

/// A number of PyTorch's in milliseconds.
fn pytorch_ms(name: &str) -> Option<f64> {
    let text = std::fs::read_to_string(std::env::var("PYTORCH_JSON").ok()?).ok()?;
    let entry = text.split(&format!("\"{name}\": {{")).nth(1)?;
    let value = entry.split('}').next()?.split("\"ms\": ").nth(1)?;
    value.split([',', '}']).next()?.trim().parse().ok()
}

/// What a launch costs the host, as a line of the table; and as JSON.
fn launches(cost: &LaunchCost) -> (String, String) {
    let graph = cost.in_graph_us.as_ref();
    let told = match graph {
        Ok(us) => format!("{us:.2} in a graph"),
        Err(why) => format!("not in a graph ({})", why.lines().next().unwrap_or_default()),
    };
    let (with, without) = (cost.with_events_us, cost.without_events_us);
    let line = format!("# host, microseconds a launch: {with:.2}; without events {without:.2}; {told}");
    let graph = graph.map_or("null".to_owned(), |us| us.to_string());
    (line, format!("{{\"with_events\": {with}, \"without_events\": {without}, \"in_graph\": {graph}}}"))
}

/// A case as a line of the table, beside the device's own rates in operations and bytes a millisecond.
fn line(case: &Case, theirs: Option<f64>, products: f64, memory: f64) -> String {
    let ms = case.median_ms();
    let (least, most) = case.times_ms.iter().fold((f64::MAX, 0f64), |(a, b), &t| (a.min(t), b.max(t)));
    let share = match case.bound {
        Bound::Products => format!("{:.2}", case.operations / ms / products),
        Bound::Memory => format!("{:.2}", case.bytes / ms / memory),
        Bound::Nothing => "-".to_owned(),
    };
    let or_dash = |x: Option<f64>, digits: usize| x.map_or("-".to_owned(), |x| format!("{x:.digits$}"));
    format!(
        "{:20} {:>10.4} {:>20} {:>9.1} {:>9.3} {:>9} {:>9} {:>9} {:>10} {:>9}",
        case.name,
        ms,
        format!("{least:.4} to {most:.4}"),
        case.operations / ms / 1e9,
        case.bytes / ms / 1e9,
        share,
        or_dash(case.visible, 3),
        case.error.map_or("-".to_owned(), |error| format!("{error:.1e}")),
        or_dash(theirs, 4),
        or_dash(theirs.map(|theirs| theirs / ms), 2),
    )
}

/// A case as JSON.
fn entry(case: &Case, theirs: Option<f64>) -> String {
    let or_null = |x: Option<f64>| x.map_or("null".to_owned(), |x| x.to_string());
    let (operations, bytes) = (case.operations, case.bytes);
    format!(
        "{{\"name\": {:?}, \"ms\": {:?}, \"operations\": {operations}, \"bytes\": {bytes}, \"error\": {}, \"visible\": {}, \
         \"late\": {}, \"pytorch_ms\": {}}}",
        case.name,
        case.times_ms,
        or_null(case.error),
        or_null(case.visible),
        case.late,
        or_null(theirs),
    )
}

/// Prints the table and leaves the JSON; with PyTorch's numbers if they are of the same sizes.
pub fn report(cases: &[Case], keys: usize, comparable: bool, cost: &LaunchCost) {
    let products = cases[0].operations / cases[0].median_ms();
    let memory = cases[1].bytes / cases[1].median_ms();
    let dense = cases[2].operations / cases[2].median_ms();
    println!(
        "{:20} {:>10} {:>20} {:>9} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9}",
        "case", "median ms", "range ms", "TFLOP/s", "TB/s", "of bound", "visible", "error", "PyTorch ms", "x PyTorch"
    );
    let mut json = format!("{{\"keys\": {keys}, \"cases\": [");
    for (index, case) in cases.iter().enumerate() {
        let theirs = case.pytorch.filter(|_| comparable).and_then(pytorch_ms);
        println!("{}", line(case, theirs, products, memory));
        json += if index == 0 { "" } else { ", " };
        json += &entry(case, theirs);
    }
    let (cost, launches) = launches(cost);
    println!("{cost}");
    writeln!(json, "], \"host_us_a_launch\": {launches}}}").unwrap();
    // The goal: at most 1.15 times its share of the dense kernel's time.
    let stairs = &cases[3];
    println!(
        "# staircase: {:.3} x its share of the dense kernel's time",
        stairs.median_ms() * dense / stairs.operations
    );
    if let Ok(path) = std::env::var("GPU_BENCH_JSON") {
        std::fs::write(path, json).unwrap();
    }
}
