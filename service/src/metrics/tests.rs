//! The metrics before any request, and with what ranks tell.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tributary_engine::{Breakage, Ended, Observer, Stage};
use tributary_protocol::{Collective, RankReport, StepReport, exit};

use super::table::{Kind, TABLE};
use super::*;

/// Samples by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(sample).collect()
}

#[test]
fn every_label_set_stands_at_0_before_the_first_request() {
    for (is_job, world) in [(false, 2), (true, 3)] {
        let metrics = if is_job { Metrics::of_job(world, "bench", "short") } else { Metrics::new(world) };
        let text = metrics.expect("metrics").render();
        let found = samples(&text);
        let mut wanted = 0;
        for metric in TABLE.iter().filter(|metric| is_job || !metric.only_jobs) {
            let name = metric.name;
            assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name} is described");
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter | Kind::Seconds => "counter",
                Kind::Histogram(_) => "histogram",
            };
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} is a {kind}");
            let sets: usize = metric.labels.iter().map(|(_, values)| values.all(world).len().max(1)).product();
            let a_set = match metric.kind {
                // The bounds, infinity, sum and count.
                Kind::Histogram(bounds) => bounds.len() + 3,
                _ => 1,
            };
            let own = found.keys().filter(|sample| {
                let rest = sample.strip_prefix(name).unwrap_or("_none");
                let suffixes = ["", "_bucket", "_sum", "_count"];
                suffixes.iter().any(|suffix| {
                    rest.strip_prefix(suffix).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                })
            });
            assert_eq!(own.count(), sets * a_set, "{name}");
            wanted += sets * a_set;
        }
        assert_eq!(found.len(), wanted, "nothing but the table's");
        let constant = [
            "tributary_build_info",
            "tributary_world_size",
            "tributary_job_info",
            "tributary_state{state=\"starting\"}",
        ];
        for (name, value) in found {
            assert!(value == 0.0 || constant.iter().any(|constant| name.starts_with(constant)), "{name} is {value}");
        }
    }
}

#[test]
fn what_ranks_tell_is_counted() {
    let metrics = Metrics::new(2).expect("metrics");
    let report = |rank: usize| {
        let mut report = RankReport { rank, resident_bytes: 1 << 30, ..RankReport::default() };
        report.chunk_cache.used_bytes = 100 + rank as u64;
        report.traffic.count(Collective::AllGather, 0, 0);
        report.traffic.count(Collective::AllGather, 7, 9);
        report.traffic.waited(Collective::AllGather, Duration::from_millis(4));
        report
    };
    let reports = [report(0), report(1)];
    metrics.prefilled(&reports);
    metrics.moved(1, &reports[1].traffic);
    let step = |rank: usize, seconds: f64| StepReport { rank, seconds, ..StepReport::default() };
    metrics.stepped(&[step(0, 0.002), step(1, 0.004)], &[Duration::from_millis(6); 3]);
    let ended = Ended {
        request: 1,
        method: "infoflow",
        stage: Some(Stage::Slow),
        ttft: None,
        total: Duration::from_millis(1),
        prompt_tokens: 5,
        generated_tokens: 0,
    };
    Observer::ended(&metrics, &ended);
    Observer::ended(&metrics, &Ended { request: 2, stage: None, ..ended });
    metrics.failed(exit::DEADLINE);
    metrics.broken(Breakage::Call { collective: Collective::Exchange, exit_code: exit::DEADLINE });
    metrics.broken(Breakage::Message);
    let found = samples(&metrics.render());
    let of = |name: &str| found[&format!("tributary_{name}")];
    assert_eq!(of("chunk_cache_used_bytes{rank=\"1\",tier=\"memory\"}"), 101.0);
    assert_eq!(of("device_memory_used_bytes{rank=\"0\",pool=\"process\"}"), f64::from(1 << 30));
    assert_eq!(of("collective_bytes_total{rank=\"1\",collective=\"all-gather\",direction=\"received\"}"), 9.0);
    // Two ranks, each with two calls of 2 ms on average.
    assert_eq!(of("collective_duration_seconds_count{collective=\"all-gather\"}"), 2.0);
    assert!((of("collective_duration_seconds_sum{collective=\"all-gather\"}") - 0.004).abs() < 1e-12);
    assert_eq!((of("decode_step_duration_seconds_count"), of("decode_step_duration_seconds_sum")), (1.0, 0.004));
    assert_eq!(of("inter_token_latency_seconds_count"), 3.0);
    assert_eq!(
        (of("requests_cancelled_total{stage=\"slow\"}"), of("requests_cancelled_total{stage=\"queue\"}")),
        (1.0, 0.0)
    );
    assert_eq!(of("rank_failures_total{reason=\"deadline\"}"), 1.0);
    assert_eq!(of("collective_failures_total{collective=\"exchange\",reason=\"deadline\"}"), 1.0);
    assert_eq!(of("integrity_failures_total{artifact=\"message\",kind=\"corrupt\"}"), 1.0);
    assert_eq!((of("state{state=\"failed\"}"), of("state{state=\"serving\"}")), (1.0, 0.0));
    metrics.prefilled(&[]);
    assert_eq!(metrics.state(), "starting", "others have answered since, and nobody serves");
    assert_eq!(metrics.totals().used_bytes, [100, 101]);
    let recent: Vec<&str> = metrics.recent().iter().map(|finished| finished.outcome).collect();
    assert_eq!(recent, ["failed", "cancelled"]);
}

#[test]
fn every_metric_is_in_the_documentation_and_the_reverse() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/serving.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let section = page.split("\n## Metrics\n").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the section");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let mut told: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    told.sort_unstable();
    let mut wanted: Vec<&str> = TABLE.iter().map(|metric| &metric.name["tributary_".len()..]).collect();
    wanted.sort_unstable();
    assert_eq!(told, wanted, "rows of the table in docs/serving.md, and metrics");
    for metric in TABLE {
        let name = &metric.name["tributary_".len()..];
        let row = section.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).expect("its row");
        for (label, _) in metric.labels {
            assert!(row.contains(&format!("`{label}`")), "{name} has the label {label}: {row}");
        }
    }
}

/// The largest group that is planned for: every rank has told of every kind of call.
#[test]
fn a_scrape_of_64_ranks_is_quick() {
    const WORLD: usize = 64;
    const LIMIT: Duration = Duration::from_millis(50);
    let metrics = Metrics::new(WORLD).expect("metrics");
    let report = |rank: usize| {
        let mut report = RankReport { rank, ..RankReport::default() };
        Collective::ALL.into_iter().for_each(|kind| report.traffic.count(kind, 1, 1));
        report
    };
    let reports: Vec<RankReport> = (0..WORLD).map(report).collect();
    let mut times: Vec<Duration> = (0..11)
        .map(|_| {
            metrics.prefilled(&reports);
            reports.iter().for_each(|report| metrics.moved(report.rank, &report.traffic));
            let began = Instant::now();
            let bytes = metrics.render().len();
            assert!(bytes > 100_000, "{bytes} bytes");
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("a scrape of {WORLD} ranks: {:?} (median of {}, most {:?})", times[5], times.len(), times[10]);
    assert!(times[5] < LIMIT, "{times:?}");
}
