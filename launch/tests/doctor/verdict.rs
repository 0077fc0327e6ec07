//! Verdict on a group, by the results and the demands.

use tributary::doctor::{AllGather, Checks, Collectives, Facts, LeftOut, Report, Unfit};

fn facts(places: &[(&str, u32)]) -> Vec<Facts> {
    places.iter().map(|(host, pid)| Facts { host: (*host).into(), pid: *pid, ..Facts::default() }).collect()
}

const TWO: [(&str, u32); 2] = [("a", 1), ("b", 2)];

fn gathered(size: &str, median_ms: f64, wrong_values: u64) -> AllGather {
    AllGather::new(size.parse().expect("a size"), 2, true, vec![median_ms], wrong_values)
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
        .map(|size| LeftOut { size_bytes: size.parse().expect("a size"), reason: "too little memory".into() })
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
    // 1 GB among two ranks in 1000 ms: 0.5 GB/s on the bus. The small one is slower, and does not
    // count.
    let speeds = || vec![gathered("1GB", 1000.0, 0), gathered("1MB", 1000.0, 0)];
    for demanded in [None, Some(0.4), Some(0.5)] {
        assert_eq!(report(&TWO, Checks::Passed, speeds(), &[], demanded).verdict(), Ok(()), "{demanded:?}");
    }
    let unfit = report(&TWO, Checks::LeftOut, speeds(), &[], Some(0.6)).verdict().expect_err("unfit");
    assert_eq!(unfit.exit_code, 78);
    let wanted = "the bus bandwidth of a 1000000000 B all-gather is 0.500 GB/s, --min-busbw asks for 0.6";
    assert_eq!(unfit.to_string(), wanted);
}

#[test]
fn a_demand_that_was_not_measured_is_not_met() {
    let fast = || vec![gathered("1MB", 0.001, 0)];
    let threads = vec![AllGather::new("1GB".parse().expect("a size"), 2, false, vec![0.01], 0)];
    let table = [
        (report(&[("a", 1)], Checks::Passed, Vec::new(), &[], Some(1.0)), "one rank"),
        (report(&[("a", 1), ("a", 1)], Checks::Passed, threads, &[], Some(1.0)), "threads of one process"),
        (report(&TWO, Checks::Passed, fast(), &["1GB"], Some(1.0)), "of 1000000000 B was not measured: too little"),
        (report(&TWO, Checks::Passed, Vec::new(), &["4B"], Some(1.0)), "of 4 B was not measured: too little"),
        (report(&TWO, Checks::Passed, Vec::new(), &[], Some(1.0)), "no all-gather was measured"),
    ];
    for (report, part) in table {
        let unfit = report.verdict().expect_err("unfit");
        assert!(unfit.exit_code == 78 && unfit.reason.contains(part), "`{part}`: {unfit:?}");
        assert!(unfit.reason.contains("--min-busbw 1"), "{unfit:?}");
        assert!(!unfit.reason.contains('\n'), "{unfit:?}");
    }
    assert_eq!(report(&TWO, Checks::Passed, fast(), &["1GB"], None).verdict(), Ok(()), "nothing was demanded");
    assert_eq!(report(&TWO, Checks::Passed, fast(), &["4B"], Some(1.0)).verdict(), Ok(()), "a small one is missing");
}

#[test]
fn wrong_collectives_come_before_slow_ones() {
    let failed = Checks::Failed("rank 2 gave up: all-gather: 3 parts, not 4".into());
    let unfit = report(&TWO, failed, Vec::new(), &[], Some(9.0)).verdict().expect_err("unfit");
    let reason = "collectives: rank 2 gave up: all-gather: 3 parts, not 4".to_owned();
    assert_eq!(unfit, Unfit { exit_code: 70, reason });
    let wrong = vec![gathered("1MiB", 1.0, 0), gathered("2MiB", 1.0, 5)];
    let unfit = report(&TWO, Checks::Passed, wrong, &[], Some(9.0)).verdict().expect_err("unfit");
    assert_eq!(unfit.exit_code, 70);
    assert_eq!(unfit.to_string(), "collectives: an all-gather of 2 MiB gave 5 wrong values");
}

#[test]
fn json_says_why() {
    let value = serde_json::to_value(report(&TWO, Checks::Passed, vec![gathered("1GB", 1000.0, 0)], &[], Some(0.6)));
    let value = value.expect("JSON");
    assert_eq!(value["unfit"]["exit_code"], 78);
    assert_eq!(value["checks"], "passed");
    assert_eq!(value["all_gathers"][0]["size_bytes"], 1_000_000_000);
    assert_eq!(value["all_gathers"][0]["runs_ms"], serde_json::json!([1000.0]));
    assert_eq!(value["ranks"][1]["host"], "b");
}
