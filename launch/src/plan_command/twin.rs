//! The options of `tributary plan` that replay a trace in simulated time, and its answer.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use tributary_coordinator::ChunkPrefix;
use tributary_coordinator::scheduler::Limits;
use tributary_load::{OPTIONS, Replay};
use tributary_methods::MethodSpec;
use tributary_planner::ModelShape;
use tributary_planner::forecast::Profile;
use tributary_study::twin::{Answer, Measured, Question, render};
use tributary_system::file::regular_text;

use crate::failure::{Coded, usage};
use crate::limits::{GAP_MS, PolicyChoice, checked, policy};
use crate::stdout::{print, print_json};
use crate::values::{chunk_cache, seconds, size};

/// Trace, and the service that is simulated.
#[derive(Debug, Args)]
#[command(next_help_heading = "Trace")]
pub struct TwinArgs {
    /// Replay a trace (docs/load.md) in simulated time
    #[arg(
        long,
        value_name = "PATH",
        group = "demand",
        conflicts_with_all = ["tokens", "chunk_tokens", "query_tokens", "lead_tokens", "max_tokens", "hit_rate",
            "document_tokens", "documents", "chart"]
    )]
    trace: Option<String>,
    /// Numbers of GPUs to simulate, such as 8,16 [default: all ranks of the profile]
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "trace")]
    gpus: Vec<usize>,
    #[arg(long, value_name = "N", help = of_load("speed"), requires = "trace")]
    speed: Option<String>,
    #[arg(long, value_name = "FROM..TO", help = of_load("window"), requires = "trace")]
    window: Option<String>,
    #[arg(long, value_name = "S", help = of_load("scale"), requires = "trace")]
    scale: Option<String>,
    /// Maximum number of requests of --trace
    #[arg(long, value_name = "N", requires = "trace")]
    requests: Option<String>,
    /// Part of the prefix that a chunk sees while it is prefilled, as in serve: system, head (the
    /// first --prefix-tokens), or N: the head and the first N tokens after it
    #[arg(long, value_name = "head|system|N", default_value = "system", requires = "trace")]
    chunk_prefix: ChunkPrefix,
    /// Memory of each rank for chunks that later requests may reuse; off: none [default: a quarter
    /// of the free memory]
    #[arg(long, value_name = "SIZE|off", value_parser = chunk_cache, requires = "trace")]
    chunk_cache: Option<u64>,
    /// Size of the chunk store of each group; needs a profile with the store's rates [default: no
    /// store]
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "trace")]
    chunk_store_size: Option<u64>,
    /// Text of GET /metrics of a service that has answered this replay and hardly anything else:
    /// the profile is fitted to its times. One of --methods and of --gpus
    #[arg(long, value_name = "FILE", requires = "trace")]
    measured: Option<PathBuf>,
    /// Write the fitted profile, for other replays
    #[arg(long, value_name = "FILE.toml", requires = "measured")]
    save_profile: Option<PathBuf>,
    /// Maximum number of prefills between two decoding steps, while any sequence is decoding
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_prefill_burst, requires = "trace")]
    max_prefill_burst: usize,
    /// Share of the time for decoding while a prompt is prefilled, as in serve
    #[arg(long, value_name = "SHARE", default_value_t = Limits::default().decode_share, requires = "trace")]
    decode_share: f64,
    /// Milliseconds for which a prefill may compute before it halts for decoding
    #[arg(long, value_name = "MS", default_value_t = GAP_MS, requires = "trace")]
    max_gap: u64,
    /// Order in which the waiting requests of a group are taken, as in serve
    #[arg(long, value_enum, default_value_t = PolicyChoice::Fifo, requires = "trace")]
    policy: PolicyChoice,
    /// With --policy shortest: seconds in the queue after which a request is taken before all
    /// younger ones
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), requires = "trace")]
    max_age: Option<u64>,
    /// Maximum number of sequences decoded concurrently by a group
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_running, requires = "trace")]
    max_running: usize,
    /// Maximum number of waiting requests of a group; more are rejected
    #[arg(long, value_name = "N", default_value_t = Limits::default().max_waiting, requires = "trace")]
    max_waiting: usize,
}

/// What the options of every forecast say about a replay.
pub struct Traced {
    /// The model, as asked for.
    pub model: String,
    /// Its shape.
    pub shape: ModelShape,
    /// The machine.
    pub profile: Profile,
    /// The methods.
    pub methods: Vec<MethodSpec>,
    /// Share of the context to recompute by methods that name none.
    pub ratio: Option<f64>,
    /// Number of ranks of a group.
    pub world: Option<usize>,
    /// Tokens of the head.
    pub head_tokens: usize,
    /// Bound of the time to first token, in seconds.
    pub slo_s: Option<f64>,
}

/// Bytes of a text of metrics at most.
const MOST_BYTES: u64 = 64 << 20;

/// The help of an option of `tributary load`, which means the same here.
fn of_load(name: &str) -> &'static str {
    OPTIONS.iter().find(|option| option.name == name).map_or("", |option| option.help)
}

/// The metrics of a service in a file.
fn measured(file: &Path) -> anyhow::Result<Measured> {
    let text =
        regular_text(file, MOST_BYTES).map_err(|cause| usage(format!("--measured {}: {cause}", file.display())))?;
    Ok(Measured::parse(&text, file)?)
}

impl TwinArgs {
    /// Whether a trace is to be replayed.
    pub fn is_asked(&self) -> bool {
        self.trace.is_some()
    }

    /// Replays the trace, and prints the result where this process `leads`.
    pub fn answer(&self, traced: Traced, json: bool, leads: bool) -> anyhow::Result<()> {
        let failed = |error: tributary_load::Error| Coded { exit_code: error.exit_code(), reason: error.to_string() };
        let given = |name: &str| match name {
            "trace" => self.trace.clone(),
            "speed" => self.speed.clone(),
            "window" => self.window.clone(),
            "scale" => self.scale.clone(),
            _ => self.requests.clone(),
        };
        let Some(replay) = Replay::read(&given).map_err(failed)? else { return Ok(()) };
        let Traced { model, shape, profile, methods, ratio, world, head_tokens, slo_s } = traced;
        let question = Question {
            model,
            shape,
            profile,
            path: replay.path.display().to_string(),
            trace: replay.trace().map_err(failed)?,
            speed: replay.speed,
            methods,
            ratio,
            gpus: self.gpus.clone(),
            world,
            head_tokens,
            chunk_prefix: self.chunk_prefix,
            limits: self.limits()?,
            chunk_cache_bytes: self.chunk_cache,
            store_bytes: self.chunk_store_size,
            measured: self.measured.as_deref().map(measured).transpose()?,
            slo_s,
        };
        let answer = Answer::new(question)?;
        if let Some(file) = self.save_profile.as_deref().filter(|_| leads) {
            answer.save_profile(file)?;
        }
        match (leads, json) {
            (false, _) => Ok(()),
            (true, true) => print_json(&answer.report()),
            (true, false) => print(&render(&answer)),
        }
    }

    fn limits(&self) -> anyhow::Result<Limits> {
        let Self { max_prefill_burst, max_running, max_waiting, decode_share, .. } = *self;
        let (max_waiting_each, max_gap) = (max_waiting, Duration::from_millis(self.max_gap));
        let policy = policy(self.policy, self.max_age)?;
        checked(Limits {
            max_prefill_burst,
            max_running,
            max_waiting,
            max_waiting_each,
            decode_share,
            max_gap,
            policy,
            // Answers of a trace have no text that a later turn could repeat.
            kept_bytes: 0,
            held_bytes: 0,
        })
    }
}
