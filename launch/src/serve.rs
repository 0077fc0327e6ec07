//! `tributary serve`: an HTTP service of an engine, until a signal ends it.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tributary_coordinator::TEXT_CHUNK_TOKENS;
use tributary_engine::{Config, Engine, Limits, Ranks, RunConfig, SamplingDefaults, marker};
use tributary_methods::MethodSpec;
use tributary_planner::forecast::Profile;
use tributary_planner::{Conversation, Slicing};
use tributary_protocol::{Method, Returns};
use tributary_service::{
    Access, AllowedMethods, ApiKeys, ClientLimits, Decoder, Doors, Options, ReasoningParser, Service,
};

use crate::args::{IntakeArgs, MethodArgs, ModelArgs, RunArgs, seconds, settings, size};
use crate::config::config;
use crate::failure::{Coded, usage};
use crate::limits::{GAP_MS, PolicyChoice, checked, policy};
use crate::progress::Progress;
use crate::stdout::print;
use crate::{help, ranks};

/// Serve requests over HTTP: an OpenAI-compatible API for chat completions, with `documents` beside
/// the messages
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    intake: IntakeArgs,
    #[arg(long, default_value = help::default_method(), value_name = "NAME[:KEY=VALUE]..", help = help::methods(), help_heading = "Method")]
    method: MethodSpec,
    #[command(flatten)]
    options: MethodArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", help_heading = "Service")]
    listen: SocketAddr,
    /// File with the API keys of clients, one a line; every path except /, /health and /ready needs
    /// a key
    #[arg(long, value_name = "FILE", help_heading = "Service")]
    api_key_file: Option<PathBuf>,
    /// Answer /metrics without a key
    #[arg(long, requires = "api_key_file", help_heading = "Service")]
    metrics_public: bool,
    /// Without keys: listen on an address that other hosts can reach, and accept any Host name.
    /// Every client that reaches the address may send requests
    #[arg(long, conflicts_with = "api_key_file", help_heading = "Service")]
    insecure: bool,
    /// Host names of this machine to accept beside its own, such as a container's; without keys any
    /// other Host is refused
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Service")]
    allowed_hosts: Vec<String>,
    /// Separate the cached chunks of clients by key, so that `cached_tokens` reveals nothing about
    /// other clients' requests
    #[arg(long, requires = "api_key_file", help_heading = "Service")]
    cache_per_key: bool,
    /// Reuse of the KV cache of earlier turns. recompute: exact methods compute new tokens only;
    /// selective methods select anew in each turn. reuse: selective methods too compute new tokens
    /// only, and keep the first turn's selection. off: no reuse
    #[arg(long, value_name = "WHAT", default_value_t = Conversation::Recompute, help_heading = "Service")]
    conversation: Conversation,
    /// Maximum memory of each rank for the KV caches of answered turns; running requests take
    /// precedence
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4GiB", help_heading = "Service")]
    conversation_memory: u64,
    /// Memory of each rank for the keys and values that POST /v1/prefill holds for other programs;
    /// further prompts wait
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4GiB", help_heading = "Service")]
    hand_over_memory: u64,
    /// Seconds after their last use before keys and values of POST /v1/prefill are released
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value = "60", help_heading = "Service")]
    hand_over_expiry: u64,
    /// URL of a server that decodes, such as vLLM with the connector of integrations/vllm. `serve`
    /// prefills and draws the first token; the other server draws all further ones
    #[arg(long, value_name = "URL", help_heading = "Service")]
    decode_at: Option<String>,
    /// File whose first line is the API key of the server of --decode-at
    #[arg(long, value_name = "FILE", requires = "decode_at", help_heading = "Service")]
    decode_key_file: Option<PathBuf>,
    /// Origin of web pages that may send requests, such as https://example.com, or * for all; may
    /// be repeated [default: none]
    #[arg(long, value_name = "ORIGIN", help_heading = "Service")]
    allow_origin: Vec<String>,
    /// In requests without documents: maximum tokens of a chunk; a prompt that fits into one is
    /// computed exactly
    #[arg(long, value_name = "N", default_value_t = TEXT_CHUNK_TOKENS, help_heading = "Service")]
    chunk_tokens: usize,
    /// Parser that separates the model's reasoning from its answer; reasoning is returned as
    /// `reasoning_content`, apart from `content`
    #[arg(long, value_enum, default_value_t = ReasoningChoice::Auto, help_heading = "Service")]
    reasoning_parser: ReasoningChoice,
    /// Model name for clients [default: the name of the model's folder]
    #[arg(long, value_name = "NAME", help_heading = "Service")]
    served_model_name: Option<String>,
    /// Profile of this machine from `bench --calibrate`; its rates choose exchanges and predict
    /// requests from the first one on
    #[arg(long, value_name = "FILE.toml", help_heading = "Service")]
    profile: Option<String>,
    /// Maximum number of prefills between two decoding steps, while any sequence is decoding
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Service")]
    max_prefill_burst: usize,
    /// Share of the time that running sequences get for decoding while a prompt is prefilled, 0 to
    /// 0.9: the prefill halts between layers for decoding steps; 0: it never halts
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, help_heading = "Service")]
    decode_share: f64,
    /// Milliseconds for which a prefill may compute before it halts for decoding
    #[arg(long, value_name = "MS", default_value_t = GAP_MS, help_heading = "Service")]
    max_gap: u64,
    /// Tokens of a layer that a prefill computes between two points where it may halt [default: as
    /// many as take half to all of --max-gap at the machine's rates]
    #[arg(long, value_name = "ROWS", help_heading = "Service")]
    prefill_slice: Option<u32>,
    /// Order in which waiting requests are taken; none overtakes a prefill in progress
    #[arg(long, value_enum, default_value_t = PolicyChoice::Fifo, help_heading = "Service")]
    policy: PolicyChoice,
    /// With --policy shortest: seconds in the queue after which a request is taken before all
    /// younger ones
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), help_heading = "Service")]
    max_age: Option<u64>,
    /// Maximum number of sequences decoded concurrently
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Service")]
    max_running: usize,
    /// Maximum number of waiting requests; more are rejected
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Service")]
    max_waiting: usize,
    /// Maximum number of waiting requests of one client, by its key or its address; clients take
    /// turns [default: three quarters of --max-waiting]
    #[arg(long, value_name = "N", help_heading = "Service")]
    max_waiting_per_client: Option<usize>,
    /// Handling of unknown fields of a request: refuse them by name, or ignore them. A misspelt
    /// `documents` is always refused
    #[arg(long, value_enum, value_name = "WHAT", default_value = "refuse", help_heading = "Service")]
    unknown_fields: UnknownFields,
    /// Source of the defaults of temperature, top_p, top_k, min_p and repetition_penalty: the
    /// model's generation_config.json, or none
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "model", help_heading = "Service")]
    generation_config: GenerationConfig,
    #[command(flatten)]
    clients: ClientArgs,
}

/// Handling of unknown fields of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum UnknownFields {
    /// Refuse the request
    Refuse,
    /// Ignore the fields
    Ignore,
}

/// Source of the sampling defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GenerationConfig {
    /// generation_config.json in the model's folder
    Model,
    /// No defaults: the most likely token if a request sets nothing
    None,
}

/// Parser that separates reasoning from the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReasoningChoice {
    /// harmony if the chat template and the tokenizer have its marks, else none
    Auto,
    /// No separation: all text is the answer
    None,
    /// Reasoning between <think> and </think>
    Think,
    /// OpenAI's Harmony format of gpt-oss: reasoning in the channel analysis
    Harmony,
}

impl From<ReasoningChoice> for ReasoningParser {
    fn from(choice: ReasoningChoice) -> Self {
        match choice {
            ReasoningChoice::Auto => Self::Auto,
            ReasoningChoice::None => Self::None,
            ReasoningChoice::Think => Self::Think,
            ReasoningChoice::Harmony => Self::Harmony,
        }
    }
}

/// Limits of clients, and timeouts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of clients")]
struct ClientArgs {
    /// Maximum size of a request body
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8MiB")]
    max_body_size: u64,
    /// Maximum number of documents in a request
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_documents: usize,
    /// Maximum number of tokens in a prompt
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    max_prompt_tokens: usize,
    /// Maximum number of tokens in an answer; a request for more is refused
    #[arg(long, value_name = "N", default_value_t = 1 << 14)]
    max_tokens_limit: usize,
    /// Maximum number of open connections; a further one replaces the connection that has been idle
    /// for longest
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// Seconds for the head of a request to arrive
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 10)]
    header_timeout: u64,
    /// Seconds before an idle connection is closed
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 75)]
    idle_timeout: u64,
    /// Seconds from a request to the end of its answer
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 1800)]
    request_timeout: u64,
    /// Seconds for requests in progress to finish after the service is told to end
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 120)]
    drain_timeout: u64,
    /// Methods that a request may name, beside the service's own [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = Method::named)]
    methods_allowed: Vec<&'static Method>,
    /// Seconds without requests before a small test request checks the ranks, as at the start; 0:
    /// never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    self_test_interval: u64,
}

impl ClientArgs {
    fn limits(&self, own: &'static Method) -> ClientLimits {
        let methods = match self.methods_allowed.as_slice() {
            [] => AllowedMethods::ALL,
            some => AllowedMethods::only(&[some, &[own]].concat()),
        };
        ClientLimits {
            methods,
            body_bytes: usize::try_from(self.max_body_size).unwrap_or(usize::MAX),
            documents: self.max_documents,
            prompt_tokens: self.max_prompt_tokens,
            answer_tokens: self.max_tokens_limit,
            connections: self.max_connections,
            header_time: Duration::from_secs(self.header_timeout),
            idle_time: Duration::from_secs(self.idle_timeout),
            request_time: Duration::from_secs(self.request_timeout),
            drain_time: Duration::from_secs(self.drain_timeout),
        }
    }
}

/// Runs the command; reports the failure.
pub fn serve(args: &ServeArgs) -> ExitCode {
    let mut config = config(&args.model, &args.intake, &args.run);
    config.intake.text_chunk_tokens = args.chunk_tokens;
    ranks::lead(&config, |ranks| lead(args, &config, ranks))
}

fn lead(args: &ServeArgs, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    let world = ranks.world();
    check(args)?;
    let mut settings = settings(&args.options, &args.run, world, Returns::default()).set(&args.method);
    (settings.reuse, settings.reuses_query, settings.keep_chunks) = (1.0, true, true);
    settings.conversation = args.conversation;
    // It is chosen before any prompt is known.
    settings.eviction.at_most = true;
    if args.generation_config == GenerationConfig::Model {
        let RunArgs { temperature, top_p, .. } = args.run;
        let named = SamplingDefaults::read(&config.model.folder)?;
        // This command's own options take precedence.
        let temperature = temperature.or(named.temperature);
        SamplingDefaults { temperature, top_p: top_p.or(named.top_p), ..named }.apply(&mut settings.sampling);
    }
    settings.check()?;
    let run_config = RunConfig { settings, threads: args.run.group.threads };
    let self_test = Duration::from_secs(args.clients.self_test_interval);
    let (limits, access) = (args.clients.limits(args.method.method), access(args)?);
    let profile = args.profile.as_deref().map(Profile::find).transpose()?;
    let doors = Doors { hosts: args.allowed_hosts.clone(), origins: args.allow_origin.clone() };
    let (ignores_unknown, default_tokens) = (args.unknown_fields == UnknownFields::Ignore, args.run.max_tokens);
    let options = Options {
        listen: args.listen,
        access,
        doors,
        model: name(args),
        limits,
        reasoning: args.reasoning_parser.into(),
        self_test,
        ignores_unknown,
        caches_apart: args.cache_per_key,
        default_tokens,
        hand_over_expiry: Duration::from_secs(args.hand_over_expiry),
        decoder: decoder(args)?,
    };
    let service = Service::bind(options).map_err(refused)?;
    let mut engine = Engine::open(config, ranks)?;
    profile.into_iter().for_each(|profile| engine.plan_by(profile));
    engine.slice_by(slicing(args));
    engine.keep_chunks(&[world]);
    let progress = Progress::start("loading the weights");
    engine.start(&run_config)?;
    drop(progress);
    let (client, inbox) = engine.client(&run_config);
    let address = service.address().map_err(refused)?;
    let listening = service.start(client, world, engine.attend()).map_err(refused)?;
    engine.drains();
    marker::serving();
    print(&format!("serving {} on http://{address} with {world} ranks\n", name(args)))?;
    let conducted = engine.conduct(&run_config, scheduler_limits(args)?, inbox);
    // After a failure of the ranks too, and first: clients hear of it before this process ends.
    let served = listening.join();
    conducted?;
    match served {
        Ok(served) => served.map_err(refused)?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(engine.end()?)
}

/// Limits of the scheduler.
fn scheduler_limits(args: &ServeArgs) -> anyhow::Result<Limits> {
    let ServeArgs { max_prefill_burst, max_running, max_waiting, decode_share, .. } = *args;
    let max_waiting_each = args.max_waiting_per_client.unwrap_or((3 * max_waiting).div_ceil(4));
    let policy = policy(args.policy, args.max_age)?;
    checked(Limits {
        max_prefill_burst,
        max_running,
        max_waiting,
        max_waiting_each,
        decode_share,
        max_gap: Duration::from_millis(args.max_gap),
        policy,
        // What the service turns off no request turns on.
        kept_bytes: if args.conversation == Conversation::Off { 0 } else { args.conversation_memory },
        held_bytes: args.hand_over_memory,
    })
}

/// The server that decodes, if one is named.
fn decoder(args: &ServeArgs) -> anyhow::Result<Option<Decoder>> {
    let Some(url) = &args.decode_at else { return Ok(None) };
    let key = args.decode_key_file.as_ref().map(|path| {
        let text = std::fs::read_to_string(path);
        text.map(|text| text.lines().next().unwrap_or_default().trim().to_owned())
            .map_err(|error| usage(format!("--decode-key-file {}: {error}", path.display())))
    });
    let decoder = Decoder::new(url, key.transpose()?.as_deref());
    Ok(Some(decoder.map_err(|what| usage(format!("--decode-at {url}: {what}")))?))
}

/// How layers are cut, so that prefills halt in time for streams.
fn slicing(args: &ServeArgs) -> Slicing {
    match args.prefill_slice {
        _ if args.decode_share == 0.0 => Slicing::Whole,
        Some(rows) => Slicing::Rows(rows),
        None => Slicing::Within(Duration::from_millis(args.max_gap)),
    }
}

/// Checks that need neither ranks nor model.
fn check(args: &ServeArgs) -> anyhow::Result<()> {
    if args.intake.synthetic.is_some() {
        return Err(usage("--synthetic: a service answers text; its requests have documents"));
    }
    if !args.listen.ip().is_loopback() && !args.insecure && args.api_key_file.is_none() {
        let address = args.listen;
        return Err(usage(format!(
            "--listen {address}: other hosts reach this address and there is no key; add --api-key-file or --insecure"
        )));
    }
    for (name, number) in [
        ("--chunk-tokens", args.chunk_tokens),
        ("--max-documents", args.clients.max_documents),
        ("--max-prompt-tokens", args.clients.max_prompt_tokens),
        ("--max-tokens-limit", args.clients.max_tokens_limit),
        ("--max-connections", args.clients.max_connections),
    ] {
        if number == 0 {
            return Err(usage(format!("{name} 0: must be at least 1")));
        }
    }
    scheduler_limits(args)?;
    if args.prefill_slice == Some(0) {
        return Err(usage("--prefill-slice 0: must be at least 1"));
    }
    Ok(())
}

/// Access rule. Only rank 0, which answers, reads the keys.
fn access(args: &ServeArgs) -> anyhow::Result<Access> {
    let metrics_public = args.metrics_public;
    Ok(match &args.api_key_file {
        Some(path) => {
            let keys = ApiKeys::read(path).map_err(|reason| usage(format!("--api-key-file {reason}")))?;
            if path.metadata().is_ok_and(|file| file.mode() & 0o004 != 0) {
                let _ = writeln!(
                    std::io::stderr(),
                    "note: --api-key-file {}: every user of this machine can read it",
                    path.display()
                );
            }
            Access::Keys { keys: Arc::new(keys), metrics_public }
        }
        None if args.insecure => Access::Everybody,
        None => Access::Local { hosts: args.allowed_hosts.clone().into() },
    })
}

/// The model's name for clients.
fn name(args: &ServeArgs) -> String {
    let folder = args.model.model.file_name().map(|name| name.to_string_lossy().into_owned());
    args.served_model_name.clone().or(folder).unwrap_or_else(|| "model".to_owned())
}

/// The service's own failure: a wrong address is the user's.
pub fn refused(error: tributary_service::Error) -> anyhow::Error {
    Coded { exit_code: error.exit_code(), reason: error.to_string() }.into()
}
