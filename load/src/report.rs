//! Result of a load: the object that `--json` prints, made of samples.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{P95_SAMPLES, P99_SAMPLES, median, percentile, sorted};

use crate::growth::{Growth, growth, in_flight};
use crate::options::{Form, Options, Pace};
use crate::requests::Requests;
use crate::sample::{Sample, outcomes};
use crate::search::Found;
use crate::window::Window;

/// Name and version of the report as JSON (`docs/schemas/load.v1.json`). A field that goes, or
/// means something else, makes another version.
pub const SCHEMA: &str = "tributary.load/1";

/// Samples that a 90th percentile needs.
const P90_SAMPLES: usize = 10;

/// Seconds of an interval in the report's series over time.
const INTERVAL_SECONDS: f64 = 5.0;

/// Result of a load.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// Name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: &'static str,
    /// The server.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// Shape of the requests.
    pub requests: Shape,
    /// Every window, in its order.
    pub windows: Vec<WindowReport>,
    /// Rate at which the queue begins to grow; absent where it was not searched for.
    pub saturation: Option<Saturation>,
}

/// Shape of the requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Shape {
    /// `documents` beside the messages, or all in one `prompt`.
    pub form: &'static str,
    /// Seed of arrivals, texts and draws.
    pub seed: u64,
    /// Mean number of documents of a request that was asked for; each has one of the two nearest
    /// whole numbers.
    pub documents: f64,
    /// Tokens of a document that were asked for.
    pub document_tokens: usize,
    /// Tokens of a question that were asked for.
    pub query_tokens: usize,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Documents that there were; absent where every document was new.
    pub corpus: Option<usize>,
    /// Exponent of Zipf's law; absent likewise.
    pub zipf: Option<f64>,
    /// Tokens of a word, as the server counts them; absent where it counts none, and a word was
    /// taken for a token.
    pub tokens_per_word: Option<f64>,
    /// Seconds that one request might take.
    pub timeout_seconds: f64,
    /// Maximum in-flight requests.
    pub max_in_flight: usize,
    /// The trace whose requests were sent; then the fields on documents, questions and answers
    /// above do not hold. Absent where requests were drawn.
    pub trace: Option<TraceShape>,
}

/// A replayed trace.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TraceShape {
    /// Its file or folder.
    pub path: String,
    /// Its format.
    pub format: &'static str,
    /// Number of its requests in the window.
    pub requests: usize,
    /// Number of requests that were not in the order of their times, and were sorted.
    pub unordered: usize,
    /// Divisor of its times.
    pub speed: f64,
    /// Factor of its lengths.
    pub scale: f64,
}

/// Result of one window.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WindowReport {
    /// Planned requests a second; absent in a closed loop.
    pub rate: Option<f64>,
    /// Clients; absent in an open loop.
    pub clients: Option<usize>,
    /// Divisor of a trace's times; absent where no trace gives the times.
    pub speed: Option<f64>,
    /// Its length in seconds: the time in which requests were sent, or until the last was over
    /// where their number ended it.
    pub seconds: f64,
    /// Requests that were planned.
    pub planned: usize,
    /// Number of requests that were not sent: too many were in flight.
    pub not_sent: usize,
    /// Requests that were answered as a whole.
    pub answered: usize,
    /// Number of requests by outcome: `answered`, `http_STATUS`, `not_sent`, `timeout`, `connect`,
    /// `cut`, `incomplete`, `stream_error`, `malformed`.
    pub outcomes: BTreeMap<String, usize>,
    /// Answers a second that ended in the window.
    pub answers_per_second: f64,
    /// Tokens a second that came in the window, of requests that were answered.
    pub tokens_per_second: f64,
    /// Mean tokens of a prompt, as the server counts them.
    pub mean_prompt_tokens: Option<f64>,
    /// Mean tokens of a prompt that came from a cache, likewise.
    pub mean_cached_tokens: Option<f64>,
    /// Mean tokens of an answer.
    pub mean_generated_tokens: Option<f64>,
    /// From the planned time of a request to its first text.
    pub ttft_ms: Percentiles,
    /// The same, of requests that found the server idle: no other request of the window was in
    /// flight at their planned time.
    pub ttft_alone_ms: Percentiles,
    /// Time from each part of an answer to the next.
    pub inter_token_ms: Percentiles,
    /// The longest of them in each answer.
    pub longest_gap_ms: Percentiles,
    /// Queueing time of requests, as the server reports it.
    pub queue_ms: Percentiles,
    /// Time from the planned time of a request to its end.
    pub total_ms: Percentiles,
    /// Delay of sending after the planned time: the generator's own lateness, which is part of all
    /// other times.
    pub late_ms: Percentiles,
    /// Intervals of five seconds, the last perhaps shorter, until the last request was over.
    pub over_time: Vec<Interval>,
    /// Whether requests came faster than they were answered; absent in a closed loop, where they
    /// cannot.
    pub growth: Option<Growth>,
}

/// Percentiles in milliseconds (nearest rank; the median of an even number is the mean of two). Of
/// requests that were answered, but for lateness, which is that of all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Percentiles {
    /// Number of samples.
    pub count: usize,
    /// Median; absent without samples.
    pub p50: Option<f64>,
    /// 90th percentile; absent below 10 samples.
    pub p90: Option<f64>,
    /// 95th percentile; absent below 30 samples.
    pub p95: Option<f64>,
    /// 99th percentile; absent below 100 samples.
    pub p99: Option<f64>,
    /// The largest; absent without samples.
    pub max: Option<f64>,
}

/// Requests and answers in an interval of some seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Interval {
    /// When it began, in seconds since the window began.
    pub from_seconds: f64,
    /// Mean number of requests in flight.
    pub in_flight: f64,
    /// Mean number of them that waited for their first text.
    pub waiting: f64,
    /// Median time to first token of requests that were planned in it.
    pub ttft_median_ms: Option<f64>,
}

/// Rate at which the queue begins to grow.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Saturation {
    /// The least rate at which the queue grew, in requests a second: the saturation; absent where
    /// it grew at none.
    pub growing_rate: Option<f64>,
    /// The largest rate below at which it did not; absent where it grew at all.
    pub steady_rate: Option<f64>,
    /// When a queue is said to grow.
    pub rule: String,
}

impl Saturation {
    /// Result of a search.
    pub fn new(found: Found) -> Self {
        Self { growing_rate: found.growing, steady_rate: found.steady, rule: crate::growth::RULE.to_owned() }
    }
}

impl Shape {
    /// Shape of the requests, by the options and the server's answers.
    pub fn new(options: &Options, requests: &Requests) -> Self {
        let is_drawn = !options.fresh && options.trace.is_none();
        Self {
            form: match options.form {
                Form::Documents => "documents",
                Form::Prompt => "prompt",
            },
            seed: options.seed,
            documents: options.documents_per_request,
            document_tokens: options.document_tokens,
            query_tokens: options.query_tokens,
            max_tokens: options.max_tokens,
            corpus: is_drawn.then_some(options.corpus),
            zipf: is_drawn.then_some(options.zipf),
            tokens_per_word: requests.tokens_per_word,
            timeout_seconds: options.timeout.as_secs_f64(),
            max_in_flight: options.max_in_flight,
            trace: requests.trace().zip(options.trace.as_ref()).map(|(trace, path)| TraceShape {
                path: path.display().to_string(),
                format: trace.format,
                requests: trace.requests.len(),
                unordered: trace.unordered,
                speed: options.paces.iter().find_map(|pace| pace.speed()).unwrap_or(1.0),
                scale: options.scale,
            }),
        }
    }
}

impl WindowReport {
    /// Result of a window at some pace.
    pub fn new(pace: Pace, window: &Window) -> Self {
        let (samples, seconds) = (&window.samples, window.seconds);
        let answered: Vec<&Sample> = samples.iter().filter(|sample| sample.is_answered()).collect();
        let of = |value: fn(&Sample) -> Option<f64>| percentiles(answered.iter().filter_map(|sample| value(sample)));
        let mean = |value: fn(&Sample) -> Option<u64>| mean(answered.iter().filter_map(|sample| value(sample)));
        let (rate, clients) = match pace {
            Pace::Open(rate) => (Some(rate), None),
            Pace::Replay(_) => (None, None),
            Pace::Closed(clients) => (None, Some(clients)),
        };
        let in_time = answered.iter().filter(|sample| sample.ended <= seconds).count();
        let tokens: f64 = answered.iter().map(|sample| tokens_until(sample, seconds)).sum();
        Self {
            rate,
            clients,
            speed: pace.speed(),
            seconds,
            planned: samples.len(),
            not_sent: samples.iter().filter(|sample| sample.sent.is_none()).count(),
            answered: answered.len(),
            outcomes: outcomes(samples),
            answers_per_second: in_time as f64 / seconds.max(1e-9),
            tokens_per_second: tokens / seconds.max(1e-9),
            mean_prompt_tokens: mean(|sample| sample.prompt_tokens),
            mean_cached_tokens: mean(|sample| sample.cached_tokens),
            mean_generated_tokens: mean(|sample| Some(sample.generated_tokens)),
            ttft_ms: of(Sample::ttft_ms),
            ttft_alone_ms: percentiles(alone(samples).filter_map(Sample::ttft_ms)),
            inter_token_ms: percentiles(answered.iter().flat_map(|sample| sample.gaps_ms())),
            longest_gap_ms: of(|sample| sample.gaps_ms().reduce(f64::max)),
            queue_ms: of(|sample| sample.queue_ms),
            total_ms: of(|sample| Some(sample.total_ms())),
            late_ms: percentiles(samples.iter().filter_map(Sample::late_ms)),
            over_time: over_time(samples),
            growth: rate.map(|_| growth(samples, window.sent_seconds)),
        }
    }
}

/// Answered requests that found no other in flight.
fn alone(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    let mut in_turn: Vec<&Sample> = samples.iter().filter(|sample| sample.sent.is_some()).collect();
    in_turn.sort_by(|one, other| one.planned.total_cmp(&other.planned));
    let mut free = 0.0f64;
    in_turn.into_iter().filter(move |sample| {
        let is_free = free <= sample.planned;
        free = free.max(sample.ended);
        is_free && sample.is_answered()
    })
}

/// Tokens of an answer that had come by a time: its tokens, spread over its parts.
fn tokens_until(sample: &Sample, seconds: f64) -> f64 {
    let parts = sample.parts.iter().filter(|part| **part <= seconds).count();
    sample.generated_tokens as f64 * parts as f64 / sample.parts.len().max(1) as f64
}

fn mean(values: impl Iterator<Item = u64>) -> Option<f64> {
    let (count, sum) = values.fold((0u64, 0u64), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum as f64 / count as f64)
}

/// Percentiles of samples in milliseconds.
pub fn percentiles(values: impl Iterator<Item = f64>) -> Percentiles {
    let sorted = sorted(&values.collect::<Vec<f64>>());
    let count = sorted.len();
    let from = |least: usize, share: f64| (count >= least).then(|| percentile(&sorted, share));
    Percentiles {
        count,
        p50: (count > 0).then(|| median(&sorted)),
        p90: from(P90_SAMPLES, 0.9),
        p95: from(P95_SAMPLES, 0.95),
        p99: from(P99_SAMPLES, 0.99),
        max: sorted.last().copied(),
    }
}

/// Every five seconds, until the last request was over.
fn over_time(samples: &[Sample]) -> Vec<Interval> {
    let end = samples.iter().map(|sample| sample.ended).fold(0.0, f64::max);
    let interval = |index: usize| {
        let from = index as f64 * INTERVAL_SECONDS;
        let to = (from + INTERVAL_SECONDS).min(end);
        let (in_flight, waiting) = in_flight(samples, from, to);
        let planned = samples.iter().filter(|sample| (from..to).contains(&sample.planned));
        let times: Vec<f64> = planned.filter_map(Sample::ttft_ms).collect();
        let ttft_median_ms = (!times.is_empty()).then(|| median(&times));
        Interval { from_seconds: from, in_flight, waiting, ttft_median_ms }
    };
    (0..(end / INTERVAL_SECONDS).ceil() as usize).map(interval).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Outcome;

    #[test]
    fn percentiles_are_said_where_there_are_enough_samples() {
        let of = |count: u32| percentiles((1..=count).rev().map(f64::from));
        let none = Percentiles { count: 0, p50: None, p90: None, p95: None, p99: None, max: None };
        assert_eq!(of(0), none);
        assert_eq!(of(9), Percentiles { count: 9, p50: Some(5.0), max: Some(9.0), ..none });
        assert_eq!(of(10), Percentiles { count: 10, p50: Some(5.5), p90: Some(9.0), max: Some(10.0), ..none });
        let most = of(99);
        assert_eq!((most.p90, most.p95, most.p99), (Some(90.0), Some(95.0), None));
        let all = of(200);
        assert_eq!((all.p50, all.p90, all.p95, all.p99), (Some(100.5), Some(180.0), Some(190.0), Some(198.0)));
    }

    #[test]
    fn who_found_nobody_is_told_from_the_others() {
        let under_way = |number: usize, planned: f64, ended: f64, outcome| Sample {
            sent: Some(planned),
            ended,
            outcome,
            ..Sample::new(number, planned)
        };
        let (answered, refused) = (Outcome::Answered, Outcome::Status(429));
        let samples = [
            under_way(0, 1.0, 5.0, answered),
            under_way(1, 2.0, 3.0, answered),
            under_way(2, 4.5, 6.0, answered),
            Sample::new(3, 5.5),
            under_way(4, 6.0, 7.0, answered),
            under_way(5, 8.0, 9.0, refused),
            under_way(6, 8.5, 9.5, answered),
            under_way(7, 10.0, 11.0, answered),
        ];
        let numbers: Vec<usize> = alone(&samples).map(|sample| sample.number).collect();
        assert_eq!(numbers, [0, 4, 7]);
    }

    #[test]
    fn a_window_counts_what_came_in_its_time() {
        let answered = |number: usize, planned: f64, parts: &[f64]| Sample {
            sent: Some(planned + 0.001),
            parts: parts.to_vec(),
            ended: *parts.last().unwrap(),
            outcome: Outcome::Answered,
            generated_tokens: 2 * parts.len() as u64,
            ..Sample::new(number, planned)
        };
        let refused = Sample { sent: Some(6.0), ended: 6.5, outcome: Outcome::Status(429), ..Sample::new(3, 6.0) };
        let samples =
            vec![answered(0, 1.0, &[1.5, 1.6, 2.0]), answered(1, 2.0, &[3.0, 11.0]), Sample::new(2, 5.0), refused];
        let report = WindowReport::new(Pace::Open(0.4), &Window { samples, seconds: 10.0, sent_seconds: 10.0 });
        assert_eq!((report.planned, report.not_sent, report.answered), (4, 1, 2));
        let counts: Vec<(&str, usize)> = report.outcomes.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(counts, [("answered", 2), ("http_429", 1), ("not_sent", 1)]);
        assert!((report.answers_per_second - 0.1).abs() < 1e-9, "one of two ended in time");
        assert!((report.tokens_per_second - 0.8).abs() < 1e-9, "six tokens, and two of four");
        let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() < 1e-6);
        assert!(near(report.ttft_ms.p50, 750.0) && near(report.ttft_ms.max, 1000.0), "{:?}", report.ttft_ms);
        assert!(near(report.longest_gap_ms.p50, 4200.0), "{:?}", report.longest_gap_ms);
        // The second begins when the first has just ended, the refused one comes between.
        let alone = report.ttft_alone_ms;
        assert_eq!((alone.count, alone.p50, alone.max), (2, Some(750.0), Some(1000.0)), "{alone:?}");
        assert_eq!((report.inter_token_ms.count, report.queue_ms.count, report.late_ms.count), (3, 0, 3));
        assert!(near(report.inter_token_ms.p50, 400.0) && near(report.total_ms.max, 9000.0));
        assert_eq!(report.over_time.len(), 3);
        let second = report.over_time[1];
        assert!((second.in_flight - 1.1).abs() < 1e-9 && second.ttft_median_ms.is_none(), "{second:?}");
        assert!((second.waiting - 0.1).abs() < 1e-9, "the refused one waits until it is refused: {second:?}");
    }
}
