//! The table of evictions, which terminal and page share.

use crate::points::{ALL, Point};
use crate::report::Report;
use crate::suite::Cell;

/// Legend of the table of evictions.
pub const EVICTIONS: &str = "kept: rows of the prompt in a layer and KV head, of those that there were, means. less all kept: score less that of the \
    same method without eviction, and its 95 % interval (as above). by formula, of the longest prompt: operations, weights and \
    keys and values that are read, bytes between ranks. evict: between the first token and the second; of TTFT: beside the time to first token. \
    token: each one after the first, without the eviction. recall: share of the rows kept that the eviction `ideal` keeps of as many after the same method.";

/// A row for each eviction after a method, over all tasks, below the names of columns; also a row
/// for each of these methods.
pub fn evictions(report: &Report) -> Vec<Vec<String>> {
    let names = [
        "method",
        "evict",
        "score",
        "less all kept",
        "kept",
        "of",
        "KV [KiB]",
        "of",
        "by formula: [MFLOP]",
        "traffic [KiB]",
    ];
    let names =
        names.into_iter().chain(["moved [KiB]", "moved [KiB]", "evict [ms]", "of TTFT [%]", "token [ms]", "recall"]);
    let mut rows = vec![names.map(str::to_owned).collect::<Vec<_>>()];
    let all: Vec<&Point> = report.points.iter().filter(|point| point.cell() == Cell::of(ALL)).collect();
    let stands_behind = |point: &Point| {
        let of = |other: &&Point| other.eviction.as_ref().is_some_and(|own| own.behind == point.method);
        all.iter().any(|other| of(other) && other.ratio == point.ratio)
    };
    for point in all.iter().filter(|point| point.eviction.is_some() || stands_behind(point)) {
        rows.push(row(point));
    }
    rows
}

fn row(point: &Point) -> Vec<String> {
    let none = || "-".to_owned();
    let kib = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0);
    let at = point.ratio.map_or_else(String::new, |ratio| format!(" at {ratio}"));
    let own = point.eviction.as_ref();
    let formula = own.map(|own| own.formula);
    let real = |value: Option<f64>, digits: usize| value.map_or_else(none, |value| format!("{value:.digits$}"));
    let bytes = |value: Option<u64>| value.map_or_else(none, kib);
    let difference = own.and_then(|own| own.difference);
    vec![
        format!("{}{at}", own.map_or(&point.method, |own| &own.behind)),
        own.map_or_else(none, |own| format!("{} {}", own.evict, own.keep)),
        format!("{:.3} [{:.3} to {:.3}]", point.score.mean, point.score.low, point.score.high),
        difference.map_or_else(none, |mean| format!("{:.3} [{:.3} to {:.3}]", mean.mean, mean.low, mean.high)),
        real(point.kept_rows, 0),
        real(own.map(|own| own.rows), 0),
        bytes(own.map(|own| own.median_bytes_kept)),
        bytes(own.map(|own| own.median_bytes_before)),
        real(formula.map(|formula| formula.flops / 1e6), 1),
        bytes(formula.map(|formula| formula.memory_traffic_bytes)),
        bytes(formula.map(|formula| formula.received_bytes)),
        bytes(own.map(|own| own.median_received_bytes)),
        real(own.map(|own| own.median_ms), 2),
        real(own.map(|own| 100.0 * own.share_of_ttft), 1),
        real(point.median_token_ms, 2),
        real(own.and_then(|own| own.recall), 2),
    ]
}

#[cfg(test)]
mod tests {
    use tributary_engine::RunConfig;
    use tributary_methods::Keep;
    use tributary_planner::{EvictionWish, RequestSettings};
    use tributary_protocol::Eviction;

    use super::*;
    use crate::answers::{Answer, Answers, Outcome, Reply};
    use crate::design::Arm;
    use crate::kit;

    /// Full prefill that keeps `keep` rows.
    fn evicting(keep: usize) -> Arm {
        let eviction =
            EvictionWish { method: Some(Eviction::SnapKv), keep: Some(Keep::Rows(keep)), ..EvictionWish::default() };
        let settings = RequestSettings { eviction, ..RequestSettings::default() };
        let arm = Arm::new(format!("full:evict=[snapkv:window=4]:keep={keep}"), RunConfig { settings, threads: 1 });
        Arm { ratio: None, ..arm }
    }

    /// Two requests: full prefill is right twice, and of the evictions the larger budget once.
    fn report() -> Report {
        let evaluation = kit::evaluation(vec![kit::arm("full", None), evicting(16), evicting(64)], 2);
        let mut answers = Answers::default();
        for request in &evaluation.requests {
            for (arm, kept, right) in [(0, None, true), (1, Some(16.0), false), (2, Some(64.0), request.number == 0)] {
                let decoding = Some(kit::decoding(kept.unwrap_or(100.0), kept.map(|_| 100.0)));
                let answer = if right { "1 2 3" } else { "4" }.to_owned();
                let reply = Reply { answer, decoding, ..kit::reply() };
                answers.add(Answer::new(request, &evaluation.arms[arm], Outcome::Answered(Box::new(reply))));
            }
        }
        crate::report::report(&evaluation, (kit::origin(), kit::environment()), &answers, 0, None)
    }

    #[test]
    fn an_eviction_stands_beside_the_same_method_without_it() {
        let report = report();
        let points: Vec<&Point> = report.points.iter().filter(|point| point.task == ALL).collect();
        assert_eq!((points[0].kept_rows, &points[0].eviction), (Some(100.0), &None));
        let least = points[1].eviction.as_ref().unwrap();
        assert_eq!((least.behind.as_str(), least.evict.as_str(), least.keep.as_str()), ("full", "snapkv", "16"));
        assert_eq!((least.difference.unwrap().mean, least.formula.flops, points[1].kept_rows), (-1.0, 5e7, Some(16.0)));
        let most = points[2].eviction.as_ref().unwrap();
        assert_eq!((most.difference.unwrap().mean, most.formula.memory_traffic_bytes), (-0.5, 2048));
        assert_eq!((most.median_bytes_before, most.median_bytes_kept, most.median_received_bytes), (10_000, 6400, 7));
        assert_eq!((most.median_ms, most.share_of_ttft, points[2].median_token_ms), (0.5, 0.5, Some(0.25)));
        let rows = evictions(&report);
        let evict: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(evict, ["evict", "-", "snapkv 16", "snapkv 64"]);
        assert_eq!(rows[3][8..12], ["50.0", "2.0", "1.0", "0.0"]);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
        assert!(crate::render(&report).contains("# kept: rows of the prompt"));
    }

    #[test]
    fn budgets_are_a_curve_and_memory_has_a_front() {
        let report = report();
        let charts = crate::page::charts(&report);
        let of = |name: &str| charts.iter().find(|chart| chart.name == name).map(|chart| &chart.body);
        let kept = of("quality-kept").expect("a curve");
        assert_eq!((kept.matches("class=\"curve").count(), kept.matches("full, snapkv, 64 rows: ").count()), (1, 1));
        // One family in the legend, and a name at each point.
        let memory = of("quality-rows").expect("a front");
        assert_eq!(memory.matches("class=\"dot").count(), 3 + 1);
        assert_eq!(memory.matches("class=\"small\"").count(), 3, "{memory}");
        let without = Report { points: report.points[..2].to_vec(), ..report.clone() };
        assert!(
            crate::page::charts(&without)
                .iter()
                .all(|chart| !["quality-kept", "quality-rows"].contains(&chart.name.as_str()))
        );
        assert_eq!(evictions(&without).len(), 1, "names of columns alone");
    }
}
