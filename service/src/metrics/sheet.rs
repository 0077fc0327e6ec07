//! The numbers themselves: a recorder that holds the metrics of the table and nothing else, and the
//! text that it makes of them.

use metrics::{Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tributary_engine::{Pulse, Tally};

use super::labels::Setup;
use super::table::{self as of, Kind, Metric, TABLE};

/// The recorder demands it with every metric, and does not read it.
static METADATA: Metadata<'static> = Metadata::new("tributary", Level::INFO, None);

/// Numbers by metric and labels.
pub struct Sheet {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Sheet {
    /// All label sets of a group of `world` ranks that are known beforehand, at 0; with those of
    /// jobs, if it is one. Histograms start for the process's setup.
    ///
    /// # Errors
    /// Returns an error if buckets have no number, which only a bug can cause.
    pub fn new(world: usize, is_job: bool, setup: &Setup) -> Result<Self, BuildError> {
        let mut builder = PrometheusBuilder::new();
        let metrics = || TABLE.iter().filter(|metric| is_job || !metric.only_jobs);
        for metric in metrics() {
            if let Kind::Histogram(bounds) = metric.kind {
                builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
            }
        }
        let recorder = builder.build_recorder();
        let this = Self { handle: recorder.handle(), recorder };
        metrics().for_each(|metric| this.begin(metric, world, setup));
        Ok(this)
    }

    /// Describes a metric, and starts its label sets.
    fn begin(&self, metric: &'static Metric, world: usize, setup: &Setup) {
        let help = SharedString::const_str(metric.help);
        match metric.kind {
            Kind::Counter => self.recorder.describe_counter(metric.name.into(), None, help),
            Kind::Gauge | Kind::Seconds => self.recorder.describe_gauge(metric.name.into(), None, help),
            Kind::Histogram(_) => self.recorder.describe_histogram(metric.name.into(), None, help),
        }
        let mut sets: Vec<Vec<String>> = vec![Vec::new()];
        for (label, values) in metric.labels {
            let mut values = values.all(world);
            if let Kind::Histogram(_) = metric.kind {
                values.retain(|value| setup.starts(label, value));
            }
            let longer = |set: &Vec<String>| {
                let with = |value: &String| set.iter().chain([value]).cloned().collect();
                values.iter().map(with).collect::<Vec<_>>()
            };
            sets = sets.iter().flat_map(longer).collect();
        }
        for set in sets {
            let values: Vec<&str> = set.iter().map(String::as_str).collect();
            match metric.kind {
                Kind::Counter => self.count(metric, &values, 0),
                Kind::Gauge | Kind::Seconds => self.set(metric, &values, 0.0),
                Kind::Histogram(_) => drop(self.recorder.register_histogram(&key(metric, &values), &METADATA)),
            }
        }
    }

    /// Counts more of a counter.
    pub fn count(&self, metric: &Metric, values: &[&str], more: u64) {
        assert_eq!(metric.kind, Kind::Counter, "{} is counted", metric.name);
        self.recorder.register_counter(&key(metric, values), &METADATA).increment(more);
    }

    /// Adds seconds to a counter of seconds.
    pub fn add_seconds(&self, metric: &Metric, values: &[&str], seconds: f64) {
        assert_eq!(metric.kind, Kind::Seconds, "{} counts seconds", metric.name);
        self.recorder.register_gauge(&key(metric, values), &METADATA).increment(seconds.max(0.0));
    }

    /// Sets a gauge.
    pub fn set(&self, metric: &Metric, values: &[&str], to: f64) {
        self.recorder.register_gauge(&key(metric, values), &METADATA).set(to);
    }

    /// Adds an observation to a histogram.
    pub fn observe(&self, metric: &Metric, values: &[&str], value: f64) {
        assert!(matches!(metric.kind, Kind::Histogram(_)), "{} is observed", metric.name);
        self.recorder.register_histogram(&key(metric, values), &METADATA).record(value);
    }

    /// The ranks' signs of life; a rank that has none is not up.
    pub fn ranks(&self, world: usize, pulses: &[Pulse]) {
        for rank in 0..world {
            let (pulse, rank) = (pulses.get(rank), rank.to_string());
            self.set(&of::RANK_UP, &[&rank], f64::from(u8::from(pulse.is_some_and(|pulse| pulse.is_up))));
            self.set(&of::HEARTBEAT_AGE, &[&rank], pulse.map_or(0.0, |pulse| pulse.age.as_secs_f64()));
        }
    }

    /// Records waiting and running requests.
    pub fn desk(&self, world: usize, tally: &Tally) {
        self.set(&of::REQUESTS_WAITING, &[], tally.waiting() as f64);
        self.set(&of::REQUESTS_RUNNING, &[], tally.running() as f64);
        self.set(&of::REQUESTS_PAUSED, &[], tally.paused() as f64);
        self.set(&of::HELD_SEQUENCES, &[], tally.held() as f64);
        self.set(&of::KEPT_SEQUENCES, &[], tally.kept() as f64);
        let sequences = tally.sequences();
        for rank in 0..world {
            let count = sequences.get(rank).copied().unwrap_or(0);
            self.set(&of::RUNNING_SEQUENCES, &[&rank.to_string()], count as f64);
        }
    }

    /// Puts observations into their buckets, which otherwise keep taking memory.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// The text that Prometheus reads. The recorder's counters are whole numbers, so counters of
    /// seconds are gauges there that only grow; their kind is in the text.
    pub fn render(&self) -> String {
        let mut text = self.handle.render();
        for metric in TABLE.iter().filter(|metric| metric.kind == Kind::Seconds) {
            let of = |kind: &str| format!("# TYPE {} {kind}\n", metric.name);
            text = text.replacen(&of("gauge"), &of("counter"), 1);
        }
        text
    }
}

/// A metric with values of its labels, in the order of the table.
fn key(metric: &Metric, values: &[&str]) -> Key {
    assert_eq!(values.len(), metric.labels.len(), "labels of {}", metric.name);
    let label = |((name, _), value): (&(&'static str, _), &&str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(metric.name, metric.labels.iter().zip(values).map(label).collect::<Vec<_>>())
}
