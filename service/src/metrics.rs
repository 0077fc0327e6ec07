//! Prometheus metrics of a service, in a recorder of its own. Every label set that can be known before the first request starts
//! at 0, so that the first event is seen as an increase.

use metrics::{
    Label, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, with_local_recorder,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tributary_engine::{Answered, Client};
use tributary_protocol::{Collective, METHODS, Phase, Traffic, TrafficEntry};

use crate::error::ApiError;

/// Upper bounds of the times of requests, in seconds.
const SECONDS: [f64; 23] = [
    0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0,
    300.0, 600.0, 1200.0,
];

/// Kinds of failure, as [`ApiError::kind`] has them.
const FAILURES: [&str; 3] = ["invalid_request_error", "rate_limit_error", "server_error"];

/// How much of a request's context was in the chunk cache, as reports have it.
const CACHE: [&str; 3] = ["cold", "partial", "warm"];

/// What becomes of a request that was handed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The whole answer is there.
    Answered,
    /// The ranks refused it or were lost, or its client read too slowly.
    Failed,
    /// Its client has left.
    Cancelled,
}

impl Outcome {
    const ALL: [Self; 3] = [Outcome::Answered, Outcome::Failed, Outcome::Cancelled];

    fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Failed => "failed",
            Outcome::Cancelled => "cancelled",
        }
    }
}

/// Where tokens of a prompt come from.
const SOURCES: [&str; 3] = ["computed", "cached", "recomputed"];

const GAUGES: [(&str, &str); 4] = [
    ("tributary_build_info", "Always 1; which build this is."),
    ("tributary_world_size", "Ranks that serve together."),
    ("tributary_requests_waiting", "Requests that wait for their turn."),
    ("tributary_requests_running", "Requests that the ranks are at: being prefilled or decoded."),
];

const COUNTERS: [(&str, &str); 6] = [
    ("tributary_requests_total", "Requests that were handed in and have ended, by method and by how they ended."),
    ("tributary_request_errors_total", "Requests that ended with an error, by its kind."),
    ("tributary_generated_tokens_total", "Tokens of answers."),
    ("tributary_prompt_tokens_total", "Rows of prompts: computed, taken from the chunk cache, recomputed."),
    ("tributary_selected_tokens_total", "Rows that were selected to be recomputed."),
    (
        "tributary_collective_bytes_total",
        "Payload that a rank sent and received for requests, whatever became of them.",
    ),
];

const HISTOGRAMS: [(&str, &str); 4] = [
    ("tributary_time_to_first_token_seconds", "From a request's acceptance to its first token."),
    ("tributary_request_queue_time_seconds", "What a request waited for its turn."),
    ("tributary_request_duration_seconds", "From a request's acceptance to the end of its answer."),
    ("tributary_phase_duration_seconds", "Phases of the time to first token, on the critical path."),
];

/// The metrics of a service.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Metrics {
    /// Metrics of a service of `world` ranks.
    ///
    /// # Errors
    /// Only a bug can fail here: buckets without a number.
    pub fn new(world: usize) -> Result<Self, BuildError> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?.build_recorder();
        let this = Self { handle: recorder.handle(), recorder };
        with_local_recorder(&this.recorder, || {
            describe();
            begin(world);
        });
        Ok(this)
    }

    /// Drops what no scrape needs any more; called every now and then.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus reads.
    pub fn render(&self, client: &Client) -> String {
        with_local_recorder(&self.recorder, || {
            gauge!("tributary_requests_waiting").set(client.desk().waiting() as f64);
            gauge!("tributary_requests_running").set(client.desk().running() as f64);
            for (rank, Traffic { entries }) in client.desk().traffic().iter().enumerate() {
                entries.iter().for_each(|(&collective, entry)| moved(rank, collective, *entry));
            }
        });
        self.handle.render()
    }

    /// A request that ended with an error.
    pub fn refused(&self, error: &ApiError) {
        let kind = error.kind;
        with_local_recorder(&self.recorder, || {
            counter!("tributary_request_errors_total", "error_type" => kind).increment(1);
        });
    }

    /// A request that had been handed in, and got no whole answer.
    pub fn ended(&self, method: &'static str, outcome: Outcome) {
        with_local_recorder(&self.recorder, || count(method, outcome, 1));
    }

    /// A request that was answered.
    pub fn answered(&self, answered: &Answered) {
        with_local_recorder(&self.recorder, || record(answered));
    }
}

/// What each metric is.
fn describe() {
    for (name, text) in GAUGES {
        describe_gauge!(name, text);
    }
    for (name, text) in COUNTERS {
        describe_counter!(name, text);
    }
    for (name, text) in HISTOGRAMS {
        describe_histogram!(name, text);
    }
}

/// Every label set that is known beforehand, at 0.
fn begin(world: usize) {
    let build = [("version", env!("CARGO_PKG_VERSION"))];
    gauge!("tributary_build_info", &build).set(1.0);
    gauge!("tributary_world_size").set(world as f64);
    for method in METHODS {
        for outcome in Outcome::ALL {
            count(method.name, outcome, 0);
        }
        for cache in CACHE {
            let _ = histogram!("tributary_time_to_first_token_seconds", "method" => method.name, "cache" => cache);
        }
    }
    let _ = histogram!("tributary_request_queue_time_seconds");
    let _ = histogram!("tributary_request_duration_seconds");
    for phase in Phase::TO_FIRST_TOKEN {
        let _ = histogram!("tributary_phase_duration_seconds", "phase" => phase.name());
    }
    counter!("tributary_generated_tokens_total").absolute(0);
    counter!("tributary_selected_tokens_total").absolute(0);
    for kind in FAILURES {
        counter!("tributary_request_errors_total", "error_type" => kind).absolute(0);
    }
    for source in SOURCES {
        counter!("tributary_prompt_tokens_total", "source" => source).absolute(0);
    }
    for rank in 0..world {
        for collective in Collective::ALL {
            moved(rank, collective, TrafficEntry::default());
        }
    }
}

fn count(method: &'static str, outcome: Outcome, requests: u64) {
    counter!("tributary_requests_total", "method" => method, "outcome" => outcome.name()).increment(requests);
}

/// What has moved through a rank so far.
fn moved(rank: usize, collective: Collective, entry: TrafficEntry) {
    for (direction, bytes) in [("sent", entry.sent_bytes), ("received", entry.received_bytes)] {
        let labels = vec![
            Label::new("rank", rank.to_string()),
            Label::new("collective", collective.name()),
            Label::new("direction", direction),
        ];
        counter!("tributary_collective_bytes_total", labels).absolute(bytes);
    }
}

fn record(answered: &Answered) {
    let report = &answered.report;
    let (method, cache) = (report.method, report.chunk_cache.state);
    count(method, Outcome::Answered, 1);
    let seconds = |ms: f64| ms / 1000.0;
    histogram!("tributary_time_to_first_token_seconds", "method" => method, "cache" => cache)
        .record(seconds(report.ttft_ms));
    histogram!("tributary_request_queue_time_seconds").record(answered.answer.queued.as_secs_f64());
    histogram!("tributary_request_duration_seconds").record(seconds(report.total_ms));
    for phase in &report.phases {
        histogram!("tributary_phase_duration_seconds", "phase" => phase.phase).record(seconds(phase.critical_path_ms));
    }
    let tokens = &report.tokens;
    let computed: usize = report.ranks.iter().map(|rank| rank.prefilled_rows).sum();
    let rows = [computed, report.chunk_cache.hit_tokens, tokens.recomputed];
    for (source, rows) in SOURCES.into_iter().zip(rows) {
        counter!("tributary_prompt_tokens_total", "source" => source).increment(rows as u64);
    }
    counter!("tributary_generated_tokens_total").increment(tokens.generated as u64);
    counter!("tributary_selected_tokens_total").increment(tokens.selected as u64);
}
