//! Prometheus metrics of a service, in a recorder of its own. Every label set that can be known before the first request starts
//! at 0.

use metrics::{Label, counter, gauge, histogram, with_local_recorder};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tributary_engine::{Answered, Client};
use tributary_protocol::Descriptor;

use crate::error::ApiError;

/// Upper bounds of the times of requests, in seconds.
const SECONDS: [f64; 23] = [
    0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0,
    300.0, 600.0, 1200.0,
];

/// Kinds of failure, as [`ApiError::kind`] has them.
const FAILURES: [&str; 3] = ["invalid_request_error", "rate_limit_error", "server_error"];

/// The metrics of a service.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Metrics {
    /// Metrics of a service of `world` ranks that serves with `method` where a request does not say otherwise.
    ///
    /// # Errors
    /// None but a bug: buckets without a number.
    pub fn new(world: usize, method: &Descriptor) -> Result<Self, BuildError> {
        let seconds = Matcher::Suffix("_seconds".to_owned());
        let recorder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &SECONDS)?.build_recorder();
        let this = Self { handle: recorder.handle(), recorder };
        with_local_recorder(&this.recorder, || describe(world, method.name));
        Ok(this)
    }

    /// Drops what no scrape needs any more; called every now and then.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus reads.
    pub fn render(&self, client: &Client) -> String {
        with_local_recorder(&self.recorder, || {
            gauge!("tributary_requests_waiting").set(client.waiting() as f64);
            gauge!("tributary_requests_running").set(client.running() as f64);
        });
        self.handle.render()
    }

    /// A request that got no answer.
    pub fn refused(&self, error: &ApiError) {
        let kind = error.kind;
        with_local_recorder(&self.recorder, || {
            counter!("tributary_request_errors_total", "error_type" => kind).increment(1);
        });
    }

    /// A request that was answered.
    pub fn answered(&self, answered: &Answered) {
        with_local_recorder(&self.recorder, || record(answered));
    }
}

fn describe(world: usize, method: &'static str) {
    let build = [("version", env!("CARGO_PKG_VERSION"))];
    gauge!("tributary_build_info", &build).set(1.0);
    gauge!("tributary_world_size").set(world as f64);
    counter!("tributary_requests_total", "method" => method, "outcome" => "answered").absolute(0);
    counter!("tributary_generated_tokens_total").absolute(0);
    for kind in FAILURES {
        counter!("tributary_request_errors_total", "error_type" => kind).absolute(0);
    }
    for source in ["computed", "cached", "recomputed"] {
        counter!("tributary_prompt_tokens_total", "source" => source).absolute(0);
    }
}

fn record(answered: &Answered) {
    let report = &answered.report;
    let (method, cache) = (report.method, report.chunk_cache.state);
    counter!("tributary_requests_total", "method" => method, "outcome" => "answered").increment(1);
    let seconds = |ms: f64| ms / 1000.0;
    histogram!("tributary_time_to_first_token_seconds", "method" => method, "cache" => cache)
        .record(seconds(report.ttft_ms));
    histogram!("tributary_request_duration_seconds").record(seconds(report.total_ms));
    for phase in &report.phases {
        histogram!("tributary_phase_duration_seconds", "phase" => phase.phase).record(seconds(phase.critical_path_ms));
    }
    let tokens = &report.tokens;
    let computed: usize = report.ranks.iter().map(|rank| rank.prefilled_rows).sum();
    let sources =
        [("computed", computed), ("cached", report.chunk_cache.hit_tokens), ("recomputed", tokens.recomputed)];
    for (source, count) in sources {
        counter!("tributary_prompt_tokens_total", "source" => source).increment(count as u64);
    }
    counter!("tributary_generated_tokens_total").increment(tokens.generated as u64);
    counter!("tributary_selected_tokens_total").increment(tokens.selected as u64);
    for rank in &answered.answer.reports {
        for traffic in [&rank.traffic, &rank.decode_traffic] {
            for (collective, entry) in &traffic.entries {
                for (direction, bytes) in [("sent", entry.sent_bytes), ("received", entry.received_bytes)] {
                    let labels = vec![
                        Label::new("rank", rank.rank.to_string()),
                        Label::new("collective", collective.name()),
                        Label::new("direction", direction),
                    ];
                    counter!("tributary_collective_bytes_total", labels).increment(bytes);
                }
            }
        }
    }
}
