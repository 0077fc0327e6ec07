//! A load on a server of the test's own, whose delays are known: times, gaps, failures by their
//! kind, and a server that stalls.

mod fake;

use std::collections::BTreeMap;
use std::time::Duration;

use fake::{Fake, Reply, options};
use tributary_charts::statistics::median;
use tributary_load::{Options, Report, run};

/// Tolerance of measured times, in milliseconds: threads wait for a core on a busy machine.
const TOLERANCE_MS: f64 = 50.0;

fn load(options: &Options) -> Report {
    let mut lines = Vec::new();
    let report = run(options, &mut |line| lines.push(line.to_owned())).expect("a result");
    assert_eq!(lines.len(), report.windows.len(), "a line a window");
    report
}

fn near(found: Option<f64>, wanted: f64, what: &str) {
    let found = found.unwrap_or_else(|| panic!("{what} is there"));
    println!("{what}: {found:.1} ms, the server took {wanted:.1} ms");
    assert!((found - wanted).abs() <= TOLERANCE_MS, "{what}: {found}, not {wanted}");
}

fn counts(report: &Report) -> BTreeMap<&str, usize> {
    report.windows[0].outcomes.iter().map(|(name, count)| (name.as_str(), *count)).collect()
}

#[test]
fn times_are_those_that_the_server_takes() {
    let fake =
        Fake::start(|_| Reply { first_ms: 120, gaps_ms: vec![30, 90, 30], queue_ms: Some(17.5), ..Reply::default() });
    let report = load(&options(&fake, &["clients=2", "requests=12"]));
    let window = &report.windows[0];
    assert_eq!(counts(&report), BTreeMap::from([("answered", 12)]));
    let spent = fake.spent();
    let of = |value: fn(&[f64]) -> f64| median(&spent.iter().map(|texts| value(texts)).collect::<Vec<f64>>());
    let (first, total) = (of(|texts| texts[0]), of(|texts| texts[3]));
    near(window.ttft_ms.p50, first, "time to first token");
    near(window.total_ms.p50, total, "total");
    near(window.longest_gap_ms.p50, of(|texts| texts[2] - texts[1]), "longest gap");
    let gaps: Vec<f64> = spent.iter().flat_map(|texts| texts.windows(2).map(|pair| pair[1] - pair[0])).collect();
    near(window.inter_token_ms.p50, median(&gaps), "between tokens");
    // The client's times contain the server's.
    assert!(first >= 120.0 && total >= 270.0, "the server sleeps: {first}, {total}");
    assert!(window.ttft_ms.p50 >= Some(first) && window.total_ms.p50 >= Some(total), "{window:?}");
    assert_eq!((window.inter_token_ms.count, window.longest_gap_ms.count), (36, 12), "every gap is kept");
    assert_eq!((window.queue_ms.count, window.queue_ms.p50), (12, Some(17.5)), "as the server says");
    assert_eq!(window.mean_generated_tokens, Some(4.0));
    // Two clients at a time, 270 ms each at least.
    assert!((1.0..=7.5).contains(&window.answers_per_second), "{window:?}");
    assert_eq!((report.model.as_str(), window.clients, window.rate), ("fake", Some(2), None));
}

#[test]
fn a_server_that_stalls_does_not_slow_arrivals() {
    // The server takes one request at a time, and stalls for a second at the fifth.
    let fake = Fake::start_serial(|number| Reply { first_ms: if number == 4 { 1000 } else { 1 }, ..Reply::default() });
    let report = load(&options(&fake, &["rate=50", "duration=2", "seed=3"]));
    let window = &report.windows[0];
    assert!(window.planned >= 70, "{} arrivals", window.planned);
    assert_eq!(window.answered, window.planned);
    let late = window.late_ms.max.expect("requests were sent");
    println!("{} requests, at most {late:.1} ms late", window.planned);
    // A generator that waited for the server would be late by that second; a busy machine makes it
    // late by some milliseconds.
    assert!(late < 400.0, "sent {late} ms late");
    // Arrivals during the stall waited for the rest of that second: half of all arrivals, and a
    // quarter of all for half of it.
    let waited = window.ttft_ms.p90.expect("enough requests");
    assert!((500.0..1100.0).contains(&waited), "90th percentile {waited}");
    let most = window.over_time[0].in_flight;
    assert!(most > 5.0, "requests pile up: {most} in flight");
}

#[test]
fn failures_are_counted_by_their_kind() {
    let fake = Fake::start(|number| match number % 6 {
        0 => Reply { status: 429, ..Reply::default() },
        1 => Reply { status: 503, ..Reply::default() },
        2 => Reply { error_after: Some(1), gaps_ms: vec![1, 1], ..Reply::default() },
        3 => Reply { cut_after: Some(1), gaps_ms: vec![1, 1], ..Reply::default() },
        4 => Reply { first_ms: 3000, ..Reply::default() },
        _ => Reply::default(),
    });
    let report = load(&options(&fake, &["rate=200", "requests=60", "timeout=1"]));
    let wanted =
        [("answered", 10), ("cut", 10), ("http_429", 10), ("http_503", 10), ("stream_error", 10), ("timeout", 10)];
    assert_eq!(counts(&report), BTreeMap::from(wanted));
    let window = &report.windows[0];
    assert_eq!((window.planned, window.answered, window.ttft_ms.count), (60, 10, 10), "times are those of answers");
    assert!(
        window.growth.is_some_and(|growth| growth.grows && growth.turned_away == 50.0 / 60.0),
        "{:?}",
        window.growth
    );
}

#[test]
fn requests_beyond_the_bound_are_counted_and_not_sent() {
    let fake = Fake::start(|_| Reply { first_ms: 800, ..Reply::default() });
    let report = load(&options(&fake, &["rate=1000", "requests=50", "max-in-flight=7"]));
    assert_eq!(counts(&report), BTreeMap::from([("answered", 7), ("not_sent", 43)]));
    assert_eq!((report.windows[0].planned, report.windows[0].not_sent), (50, 43));
    assert_eq!(fake.asked(), 7 + 2, "two requests count tokens");
}

#[test]
fn a_server_that_is_gone_ends_the_load_before_it_begins() {
    let fake = Fake::start(|_| Reply::default());
    let mut options = options(&fake, &["requests=1"]);
    options.url = "http://127.0.0.1:1".to_owned();
    options.timeout = Duration::from_secs(2);
    let error = run(&options, &mut |_| {}).expect_err("no server is there");
    assert_eq!(error.exit_code(), 78);
    assert!(error.to_string().starts_with("http://127.0.0.1:1/v1/models: cannot connect"), "{error}");
    options.url = fake.url();
    options.csv = Some("/nowhere/samples.csv".into());
    let error = run(&options, &mut |_| {}).expect_err("no such folder");
    assert_eq!((error.exit_code(), fake.asked()), (74, 0), "known before anything is sent: {error}");
}

#[test]
fn the_saturation_of_a_server_is_found() {
    // One request at a time, 20 ms each: fifty a second.
    let fake = Fake::start_serial(|_| Reply { first_ms: 20, ..Reply::default() });
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = options(&fake, &["find-saturation", "rate=20", "duration=1.5"]);
    options.plot = Some(folder.path().join("load.svg"));
    let report = load(&options);
    let saturation = report.saturation.as_ref().expect("it was asked for");
    let (growing, steady) = (saturation.growing_rate.expect("too much"), saturation.steady_rate.expect("enough"));
    println!("the queue grows at {growing:.1} requests/s, and does not at {steady:.1}, of 50 that the server takes");
    assert!(steady >= 25.0 && growing <= 90.0, "{saturation:?}");
    assert!(growing <= steady * 1.1 + 1e-9);
    let drawn = std::fs::read_to_string(folder.path().join("load.svg")).expect("a picture");
    assert!(drawn.starts_with("<svg") && drawn.contains("the queue grows") && drawn.contains("p95 at "), "{drawn}");
}

#[test]
fn what_is_asked_is_what_was_said() {
    let fake = Fake::start(|_| Reply::default());
    let words = ["documents-per-request=3", "document-tokens=40", "corpus=6", "requests=20", "max-tokens=5"];
    load(&options(&fake, &[&words[..], &["warm-up", "zipf=0"]].concat()));
    let bodies = fake.bodies();
    assert_eq!(bodies.len(), 2 + 2 + 20, "two count tokens, two warm six documents up");
    // The server counts two tokens a word.
    let lengths = |body: &serde_json::Value| -> Vec<usize> {
        let documents = body["documents"].as_array().expect("documents");
        documents.iter().map(|text| text.as_str().expect("a text").split(' ').count()).collect()
    };
    let mut seen = std::collections::BTreeSet::new();
    for body in &bodies[4..] {
        assert_eq!(lengths(body), [20, 20, 20]);
        assert_eq!((&body["stream"], &body["max_tokens"]), (&true.into(), &5.into()));
        body["documents"].as_array().expect("documents").iter().for_each(|text| _ = seen.insert(text.to_string()));
    }
    assert_eq!(seen.len(), 6, "all documents of the corpus, and no other");
    let warmed: std::collections::BTreeSet<String> = bodies[2..4]
        .iter()
        .flat_map(|body| body["documents"].as_array().expect("documents"))
        .map(ToString::to_string)
        .collect();
    assert_eq!(warmed, seen, "the same were warmed up");

    let fresh = Fake::start(|_| Reply::default());
    let set = options(&fresh, &["requests=5", "fresh", "form=prompt", "documents-per-request=8", "document-tokens=40"]);
    load(&set);
    load(&set);
    let prompts: Vec<String> = fresh
        .bodies()
        .iter()
        .filter(|body| body["stream"] == true)
        .map(|body| {
            assert!(body.get("documents").is_none(), "a plain prompt: {body}");
            body["messages"][0]["content"].as_str().expect("a text").to_owned()
        })
        .collect();
    let documents: Vec<&str> = prompts
        .iter()
        .flat_map(|prompt| {
            let parts: Vec<&str> = prompt.split("\n\n").collect();
            assert_eq!(parts.len(), 9, "eight documents and a question");
            parts[..8].to_vec()
        })
        .collect();
    let different: std::collections::BTreeSet<&&str> = documents.iter().collect();
    assert_eq!((documents.len(), different.len()), (80, 80), "in the second load too, every document is new");
}

#[test]
fn a_mean_with_a_fraction_gives_requests_of_two_lengths() {
    for fresh in [&[][..], &["fresh"]] {
        let fake = Fake::start(|_| Reply::default());
        load(&options(&fake, &[&["clients=4", "requests=200", "document-tokens=8"], fresh].concat()));
        let bodies = fake.bodies();
        let of = |body: &serde_json::Value| body["documents"].as_array().expect("documents").clone();
        let documents: Vec<_> = bodies.iter().filter(|body| body["stream"] == true).map(of).collect();
        assert!(documents.iter().all(|all| (4..=5).contains(&all.len())), "{fresh:?}");
        let texts: Vec<_> = documents.iter().flatten().map(ToString::to_string).collect();
        let mean = texts.len() as f64 / documents.len() as f64;
        // Four standard deviations of the mean of 200 draws.
        assert!((mean - 4.7).abs() < 0.13, "{mean} documents a request, {fresh:?}");
        let different = std::collections::BTreeSet::from_iter(&texts).len();
        assert_eq!(different, if fresh.is_empty() { 64 } else { texts.len() }, "{fresh:?}");
    }
}

#[test]
fn requests_are_written_a_line_each() {
    let fake = Fake::start(|_| Reply { gaps_ms: vec![5, 5], ..Reply::default() });
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = options(&fake, &["rate=100,200", "requests=9"]);
    (options.csv, options.plot) = (Some(folder.path().join("all.csv")), Some(folder.path().join("all.svg")));
    let report = load(&options);
    let text = std::fs::read_to_string(folder.path().join("all.csv")).expect("written");
    assert_eq!(text.lines().count(), 1 + 18, "{text}");
    assert!(text.lines().skip(1).all(|line| line.contains(",answered,")), "{text}");
    assert_eq!(report.windows.iter().map(|window| window.rate).collect::<Vec<_>>(), [Some(100.0), Some(200.0)]);
    assert!(tributary_load::text(&report).contains("time to first token"));
}
