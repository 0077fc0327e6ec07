//! `tributary serve`: an engine behind HTTP, until it is told to end.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tributary_coordinator::forecast::Profile;
use tributary_coordinator::{MethodSpec, TEXT_CHUNK_TOKENS};
use tributary_engine::{Config, Engine, Limits, Ranks, RunConfig, SamplingDefaults, marker};
use tributary_protocol::{Descriptor, Returns};
use tributary_service::{Access, AllowedMethods, ApiKeys, ClientLimits, Doors, Options, ReasoningParser, Service};

use crate::args::{IntakeArgs, MethodArgs, ModelArgs, RunArgs, seconds, settings, size};
use crate::config::config;
use crate::failure::{Coded, usage};
use crate::progress::Progress;
use crate::stdout::print;
use crate::{help, ranks};

/// Serves requests over HTTP: chat completions as OpenAI's clients know them, with `documents` beside the messages
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
    /// Where it listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080", help_heading = "Service")]
    listen: SocketAddr,
    /// File with the keys of those who may ask, one a line; everything but /, /health and /ready needs one
    #[arg(long, value_name = "FILE", help_heading = "Service")]
    api_key_file: Option<PathBuf>,
    /// Answer /metrics without a key
    #[arg(long, requires = "api_key_file", help_heading = "Service")]
    metrics_public: bool,
    /// Without keys: listen on an address that other hosts reach, and answer by any name; whoever reaches it may ask
    #[arg(long, conflicts_with = "api_key_file", help_heading = "Service")]
    insecure: bool,
    /// Names by which this machine is asked beside its own, a container's for example; without keys any other Host is refused
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Service")]
    allowed_hosts: Vec<String>,
    /// A client, told apart by its key, finds only chunks of its own in the caches: `cached_tokens` tells nobody what others have asked
    #[arg(long, requires = "api_key_file", help_heading = "Service")]
    cache_per_key: bool,
    /// Origin of web pages that may ask, such as https://example.com, or * for all; may be given several times [default: none]
    #[arg(long, value_name = "ORIGIN", help_heading = "Service")]
    allow_origin: Vec<String>,
    /// Tokens of a chunk where a request has no documents; what is shorter is one chunk, and exact
    #[arg(long, value_name = "N", default_value_t = TEXT_CHUNK_TOKENS, help_heading = "Service")]
    chunk_tokens: usize,
    /// How the model's reasoning is told from its answer: it comes as `reasoning_content` then, apart from `content`
    #[arg(long, value_enum, default_value_t = ReasoningChoice::None, help_heading = "Service")]
    reasoning_parser: ReasoningChoice,
    /// The model's name for clients [default: the name of its folder]
    #[arg(long, value_name = "NAME", help_heading = "Service")]
    served_model_name: Option<String>,
    /// This machine's profile, as `bench --calibrate` writes it: exchanges are chosen by its rates, and requests predicted from the first on
    #[arg(long, value_name = "FILE.toml", help_heading = "Service")]
    profile: Option<String>,
    /// Prefills between two steps of decoding, while any sequence is being decoded
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Service")]
    max_prefill_burst: usize,
    /// Sequences that are decoded side by side
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Service")]
    max_running: usize,
    /// Requests that wait for their turn; more are turned away
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = "Service")]
    max_waiting: usize,
    /// The same of one client, by its key or its address; clients take turns [default: three quarters of --max-waiting]
    #[arg(long, value_name = "N", help_heading = "Service")]
    max_waiting_per_client: Option<usize>,
    /// Fields of a request that are not known: refuse them by name, or ignore them. Misspelt `documents` are refused in any case
    #[arg(long, value_enum, value_name = "WHAT", default_value = "refuse", help_heading = "Service")]
    unknown_fields: UnknownFields,
    /// Defaults of temperature, top_p, top_k, min_p and repetition_penalty: those of the model's generation_config.json, or none
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "model", help_heading = "Service")]
    generation_config: GenerationConfig,
    #[command(flatten)]
    clients: ClientArgs,
}

/// What becomes of fields of a request that are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum UnknownFields {
    /// The request is refused.
    Refuse,
    /// They are passed over.
    Ignore,
}

/// Where defaults of sampling come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GenerationConfig {
    /// The model's folder.
    Model,
    /// Nowhere: the likeliest token is taken where a request says nothing.
    None,
}

/// How a model's reasoning is told from its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReasoningChoice {
    /// It is not: all text is the answer
    None,
    /// It stands between <think> and </think>
    Think,
}

impl From<ReasoningChoice> for ReasoningParser {
    fn from(choice: ReasoningChoice) -> Self {
        match choice {
            ReasoningChoice::None => Self::None,
            ReasoningChoice::Think => Self::Think,
        }
    }
}

/// What clients may ask at most, and how long things may take.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits of clients")]
struct ClientArgs {
    /// Longest body of a request
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "8MiB")]
    max_body_size: u64,
    /// Documents of one request
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_documents: usize,
    /// Tokens of one prompt
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    max_prompt_tokens: usize,
    /// Tokens of one answer; more are refused
    #[arg(long, value_name = "N", default_value_t = 1 << 14)]
    max_tokens_limit: usize,
    /// Open connections; one more takes the place of the one that has been idle for longest
    #[arg(long, value_name = "N", default_value_t = 4096)]
    max_connections: usize,
    /// For the head of a request to come in
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 10)]
    header_timeout: u64,
    /// A connection on which nothing is asked is closed then
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 75)]
    idle_timeout: u64,
    /// From a request to the end of its answer
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 1800)]
    request_timeout: u64,
    /// For requests under way when the service is told to end
    #[arg(long, value_name = "SECONDS", value_parser = seconds(), default_value_t = 120)]
    drain_timeout: u64,
    /// Methods that a request may name, beside the service's own [default: all]
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = help::method_named)]
    methods_allowed: Vec<&'static Descriptor>,
    /// Time without requests after which a small one tests the ranks, as at the start; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    self_test_interval: u64,
}

impl ClientArgs {
    fn limits(&self, own: &'static Descriptor) -> ClientLimits {
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

/// Runs the command; says what went wrong.
pub fn serve(args: &ServeArgs) -> ExitCode {
    let mut config = config(&args.model, &args.intake, &args.run);
    config.intake.text_chunk_tokens = args.chunk_tokens;
    ranks::lead(&config, |ranks| lead(args, &config, ranks))
}

fn lead(args: &ServeArgs, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    let world = ranks.world();
    check(args)?;
    let mut settings =
        args.method.set(settings(args.method.method, &args.options, &args.run, world, Returns::default()));
    (settings.reuse, settings.keep_chunks) = (1.0, true);
    // It is chosen before any prompt is known.
    settings.eviction.at_most = true;
    if args.generation_config == GenerationConfig::Model {
        let RunArgs { temperature, top_p, .. } = args.run;
        let named = SamplingDefaults::read(&config.model.folder)?;
        // What this command was told counts more.
        let temperature = temperature.or(named.temperature);
        SamplingDefaults { temperature, top_p: top_p.or(named.top_p), ..named }.apply(&mut settings.sampling);
    }
    let run_config = RunConfig { settings, threads: args.run.group.threads };
    let self_test = Duration::from_secs(args.clients.self_test_interval);
    let (limits, access) = (args.clients.limits(args.method.method), access(args)?);
    let profile = args.profile.as_deref().map(Profile::find).transpose()?;
    let doors = Doors { hosts: args.allowed_hosts.clone(), origins: args.allow_origin.clone() };
    let (ignores_unknown, default_tokens) = (args.unknown_fields == UnknownFields::Ignore, args.run.max_tokens);
    let reasoning = args.reasoning_parser.into();
    let options = Options {
        listen: args.listen,
        access,
        doors,
        model: name(args),
        limits,
        reasoning,
        self_test,
        ignores_unknown,
        caches_apart: args.cache_per_key,
        default_tokens,
    };
    let service = Service::bind(options).map_err(refused)?;
    let mut engine = Engine::open(config, ranks)?;
    profile.into_iter().for_each(|profile| engine.plan_by(profile));
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
    let ServeArgs { max_prefill_burst, max_running, max_waiting, .. } = *args;
    let max_waiting_each = args.max_waiting_per_client.unwrap_or((3 * max_waiting).div_ceil(4));
    let limits = Limits { max_prefill_burst, max_running, max_waiting, max_waiting_each };
    let conducted = engine.conduct(&run_config, limits, inbox);
    // After a failure of the ranks too, and first: clients hear of it before this process ends.
    let served = listening.join();
    conducted?;
    match served {
        Ok(served) => served.map_err(refused)?,
        Err(panic) => std::panic::resume_unwind(panic),
    }
    Ok(engine.end()?)
}

/// What needs neither ranks nor model.
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
        ("--max-prefill-burst", args.max_prefill_burst),
        ("--max-running", args.max_running),
        ("--max-waiting", args.max_waiting),
        ("--max-documents", args.clients.max_documents),
        ("--max-prompt-tokens", args.clients.max_prompt_tokens),
        ("--max-tokens-limit", args.clients.max_tokens_limit),
        ("--max-connections", args.clients.max_connections),
    ] {
        if number == 0 {
            return Err(usage(format!("{name} 0: must be at least 1")));
        }
    }
    Ok(())
}

/// Who may ask. Only rank 0, which answers, reads the keys.
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
