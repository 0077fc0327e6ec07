//! The metrics before any request, and with reports of ranks.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tributary_engine::{Breakage, Ended, Observer, Occupation, Prefilled, Stage};
use tributary_protocol::{
    Collective, FromStore, RankReport, StepReport, StoreError, StoreOperation, StoreReport, Tier, exit,
};

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

/// A service as most are.
fn served() -> Setup {
    Setup { method: Some("infoflow"), eviction: None, has_store: false }
}

#[test]
fn a_scrape_of_an_idle_service_is_small() {
    for world in [1, 2, 4] {
        let text = Metrics::new(world, &served()).expect("metrics").render();
        let (series, bytes) = (samples(&text).len(), text.len());
        assert!(
            series < 1000 + 50 * world && bytes < 70_000 + 4_000 * world,
            "{world} ranks: {series} series, {bytes} bytes"
        );
    }
}

#[test]
fn what_a_service_was_not_set_up_for_begins_with_its_first_observation() {
    let metrics = Metrics::new(1, &served()).expect("metrics");
    let has = |name: &str| samples(&metrics.render()).contains_key(name);
    let other = "tributary_time_to_first_token_seconds_count{method=\"relay\",cache=\"warm\"}";
    assert!(!has(other) && has(&other.replace("relay", "infoflow")));
    metrics.sheet.observe(&of::TIME_TO_FIRST_TOKEN, &["relay", "warm"], 0.1);
    assert!(has(other));
}

#[test]
fn every_label_set_stands_at_0_before_the_first_request() {
    for (is_job, world) in [(false, 2), (true, 3)] {
        let setup = if is_job { Setup::default() } else { served() };
        let metrics = if is_job { Metrics::of_job(world, "bench", "short") } else { Metrics::new(world, &setup) };
        let text = metrics.expect("metrics").render();
        let found = samples(&text);
        let mut wanted = 0;
        for metric in TABLE.iter().filter(|metric| is_job || !metric.only_jobs) {
            let name = metric.name;
            let kind = match metric.kind {
                Kind::Gauge => "gauge",
                Kind::Counter | Kind::Seconds => "counter",
                Kind::Histogram(_) => "histogram",
            };
            let starts =
                |label: &str, value: &String| !matches!(metric.kind, Kind::Histogram(_)) || setup.starts(label, value);
            let count = |label: &str, values: Vec<String>| match values.len() {
                0 => 1,
                _ => values.iter().filter(|value| starts(label, value)).count(),
            };
            let sets: usize = metric.labels.iter().map(|(label, values)| count(label, values.all(world))).product();
            if sets == 0 {
                continue;
            }
            assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name} is described");
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name} is a {kind}");
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
    let metrics = Metrics::new(2, &served()).expect("metrics");
    let report = |rank: usize| {
        let mut report = RankReport { rank, resident_bytes: 1 << 30, ..RankReport::default() };
        report.chunk_cache.used_bytes = 100 + rank as u64;
        report.traffic.count(Collective::AllGather, 0, 0);
        report.traffic.count(Collective::AllGather, 7, 9);
        report.traffic.waited(Collective::AllGather, Duration::from_millis(4));
        report
    };
    let reports = [report(0), report(1)];
    metrics.prefilled(&Prefilled { reports: &reports, chunks: 0, stores: &[] });
    metrics.moved(1, &reports[1].traffic);
    let step = |rank: usize, seconds: f64| StepReport { rank, seconds, ..StepReport::default() };
    metrics.spent(Occupation::Decode, Duration::from_millis(5));
    metrics.spent(Occupation::Decode, Duration::from_millis(2));
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
    let decode_s = of("group_seconds_total{work=\"decode\"}");
    assert!((decode_s - 0.007).abs() < 1e-12 && of("group_seconds_total{work=\"idle\"}") == 0.0, "{decode_s}");
    assert_eq!(
        (of("requests_cancelled_total{stage=\"slow\"}"), of("requests_cancelled_total{stage=\"queue\"}")),
        (1.0, 0.0)
    );
    assert_eq!(of("rank_failures_total{reason=\"deadline\"}"), 1.0);
    assert_eq!(of("collective_failures_total{collective=\"exchange\",reason=\"deadline\"}"), 1.0);
    assert_eq!(of("integrity_failures_total{artifact=\"message\",kind=\"corrupt\"}"), 1.0);
    assert_eq!((of("state{state=\"failed\"}"), of("state{state=\"serving\"}")), (1.0, 0.0));
    metrics.prefilled(&Prefilled { reports: &[], chunks: 0, stores: &[] });
    assert_eq!(metrics.state(), "starting", "others have answered since, and no service runs");
    assert_eq!(metrics.totals().used_bytes, [100, 101]);
    let recent: Vec<&str> = metrics.recent().iter().map(|finished| finished.outcome).collect();
    assert_eq!(recent, ["failed", "cancelled"]);
}

/// A prefill of two ranks that share a store: of ten chunks one is in memory, four come from the
/// store, one of them from beyond, one is damaged, one is computed because that is faster, and
/// three are in no tier.
fn from_a_store() -> [RankReport; 2] {
    let mut reports = [0, 1].map(|rank| RankReport { rank, ..RankReport::default() });
    let cache = &mut reports[0].chunk_cache;
    (cache.hits, cache.used_bytes) = (3, 100);
    cache.from_store = FromStore { loaded: 2, spoilt: 1, ..FromStore::default() };
    cache.store = Some(StoreReport {
        evicted: 5,
        operations: vec![
            (Tier::Disk, StoreOperation::Read, 400, 0.5),
            (Tier::Disk, StoreOperation::Read, 400, 0.5),
            (Tier::Disk, StoreOperation::Read, 400, 0.5),
            (Tier::Remote, StoreOperation::Read, 50, 1.0),
        ],
        errors: vec![(Tier::Disk, StoreError::Corrupt, 1)],
        used_bytes: 900,
        ..StoreReport::default()
    });
    let cache = &mut reports[1].chunk_cache;
    (cache.hits, cache.used_bytes) = (2, 10);
    cache.from_store = FromStore { loaded: 2, computed: 1, ..FromStore::default() };
    cache.store = Some(StoreReport {
        operations: vec![(Tier::Disk, StoreOperation::Write, 7, 0.25)],
        errors: vec![(Tier::Disk, StoreError::Full, 2)],
        used_bytes: 900,
        ..StoreReport::default()
    });
    reports
}

#[test]
fn chunks_are_counted_where_they_lay() {
    let metrics = Metrics::new(2, &served()).expect("metrics");
    let reports = from_a_store();
    metrics.prefilled(&Prefilled { reports: &reports, chunks: 10, stores: &[(0, 900)] });
    let found = samples(&metrics.render());
    let of = |name: &str| found[&format!("tributary_{name}")];
    let lookups = |tier: &str| {
        ["hit", "miss", "corrupt", "incompatible"]
            .map(|result| of(&format!("chunk_cache_lookups_total{{tier=\"{tier}\",result=\"{result}\"}}")))
    };
    assert_eq!(lookups("memory"), [1.0, 9.0, 0.0, 0.0]);
    assert_eq!(lookups("disk"), [3.0, 5.0, 1.0, 0.0], "together as many as memory has misses");
    assert_eq!(lookups("remote"), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(of("chunk_cache_evictions_total{tier=\"disk\"}"), 5.0);
    let used = [("0", "memory"), ("1", "memory"), ("0", "disk"), ("1", "disk"), ("0", "remote")];
    let used = used.map(|(rank, tier)| of(&format!("chunk_cache_used_bytes{{rank=\"{rank}\",tier=\"{tier}\"}}")));
    assert_eq!(used, [100.0, 10.0, 900.0, 0.0, 0.0], "a store is not counted twice");
    assert_eq!(of("chunk_store_read_bytes_total{tier=\"disk\"}"), 1200.0);
    assert_eq!(of("chunk_store_read_bytes_total{tier=\"remote\"}"), 50.0);
    assert_eq!(of("chunk_store_written_bytes_total{tier=\"disk\"}"), 7.0);
    let took = |operation: &str, what: &str| {
        let labels = format!("{{tier=\"disk\",operation=\"{operation}\"}}");
        of(&format!("chunk_store_operation_duration_seconds_{what}{labels}"))
    };
    assert_eq!((took("read", "count"), took("read", "sum"), took("write", "sum")), (3.0, 1.5, 0.25));
    let errors = |reason: &str| of(&format!("chunk_store_errors_total{{tier=\"disk\",reason=\"{reason}\"}}"));
    assert_eq!(["corrupt", "full", "missing"].map(errors), [1.0, 2.0, 0.0]);

    let totals = metrics.totals();
    assert_eq!(totals.tiers.keys().collect::<Vec<_>>(), [&Tier::Memory, &Tier::Disk, &Tier::Remote]);
    let disk = &totals.tiers[&Tier::Disk];
    assert_eq!((disk.hits, disk.misses, disk.used_bytes), (3, 6, Some(900)));
    assert_eq!((disk.read_bytes, disk.written_bytes), (1200, 7));
    assert!(disk.read_bytes_per_s().is_some_and(|rate| (rate - 800.0).abs() < 1e-9), "{disk:?}");
    assert_eq!(disk.errors.iter().collect::<Vec<_>>(), [(&"corrupt", &1), (&"full", &2)]);
    assert_eq!((totals.tiers[&Tier::Memory].hits, totals.tiers[&Tier::Memory].misses), (1, 9));
}

#[test]
fn without_a_store_there_is_memory_alone() {
    let metrics = Metrics::new(1, &served()).expect("metrics");
    let mut report = RankReport::default();
    report.chunk_cache.hits = 2;
    metrics.prefilled(&Prefilled { reports: &[report.clone()], chunks: 5, stores: &[] });
    // A method that may take nothing from the chunk cache looks for nothing.
    report.chunk_cache.hits = 0;
    metrics.prefilled(&Prefilled { reports: &[report], chunks: 0, stores: &[] });
    let found = samples(&metrics.render());
    let of = |tier: &str, result: &str| {
        found[&format!("tributary_chunk_cache_lookups_total{{tier=\"{tier}\",result=\"{result}\"}}")]
    };
    assert_eq!((of("memory", "hit"), of("memory", "miss")), (2.0, 3.0));
    assert_eq!((of("disk", "hit"), of("disk", "miss"), of("remote", "miss")), (0.0, 0.0, 0.0));
    assert_eq!(metrics.totals().tiers.keys().collect::<Vec<_>>(), [&Tier::Memory]);
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

/// The largest planned group: every rank has reported every kind of call.
#[test]
fn a_scrape_of_64_ranks_is_quick() {
    const WORLD: usize = 64;
    const LIMIT: Duration = Duration::from_millis(50);
    let metrics = Metrics::new(WORLD, &served()).expect("metrics");
    let report = |rank: usize| {
        let mut report = RankReport { rank, ..RankReport::default() };
        Collective::ALL.into_iter().for_each(|kind| report.traffic.count(kind, 1, 1));
        report
    };
    let reports: Vec<RankReport> = (0..WORLD).map(report).collect();
    let mut times: Vec<Duration> = (0..11)
        .map(|_| {
            metrics.prefilled(&Prefilled { reports: &reports, chunks: 0, stores: &[] });
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
