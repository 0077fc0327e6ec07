//! `tributary plan`: what every method would take on a machine that need not be at hand. Reads a config and a profile; computes
//! nothing else than predictions, and says so beside each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use tributary_coordinator::forecast::{Profile, Scenario};
use tributary_coordinator::{ModelShape, RequestSettings, method_named};
use tributary_engine::{launcher, shape_of};
use tributary_protocol::Command;
use tributary_study::forecast::lengths::{Lengths, tokens, tokens_or_none};
use tributary_study::forecast::{Answer, render};
use tributary_worker::Config;

use crate::args::{Dtype, ExchangeChoice, exchange};
use crate::failure::usage;
use crate::help;
use crate::ranks;
use crate::stdout::{print, print_json};

/// Predicts the time to first token of methods on a machine that need not be at hand, with bytes, memory and the lengths
/// from which a selective method wins
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Hugging Face folder, of which only config.json is read, or a known shape: qwen3-14b, llama-3.1-8b
    #[arg(long, value_name = "DIR|SHAPE", help_heading = "Model")]
    model: String,
    /// Type of weights and KV cache
    #[arg(long, value_enum, default_value_t = Dtype::Bf16, help_heading = "Model")]
    dtype: Dtype,
    /// The machine: h100x4, h100x8, h100x8x2, h200x4, h200x8, h200x8x2, or a .toml file
    #[arg(long, value_name = "NAME|FILE", help_heading = "Machine")]
    profile: String,
    /// Take the speed of a rank from this file, which `bench --calibrate` has written, and only the links from --profile
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    rank_rates: Option<PathBuf>,
    /// Number of ranks [default: all of the profile]
    #[arg(long, visible_alias = "world-size", value_name = "N", help_heading = "Machine")]
    world: Option<usize>,
    /// Context lengths: FIRST..LAST, doubling, or a list; k is 1024, m its square
    #[arg(long, value_name = "LENGTHS", default_value = "8k..1m", help_heading = "Request")]
    tokens: Lengths,
    /// Tokens of a chunk, or `rank` for one chunk a rank
    #[arg(long, value_name = "N|rank", default_value = "2k", value_parser = chunk_tokens, help_heading = "Request")]
    chunk_tokens: ChunkTokens,
    /// Tokens of the query
    #[arg(long, value_name = "N", default_value = "32", value_parser = tokens, help_heading = "Request")]
    query_tokens: usize,
    /// Tokens before the context
    #[arg(long, value_name = "N", default_value = "1", value_parser = tokens_or_none, help_heading = "Request")]
    prefix_tokens: usize,
    /// Shares of the chunks that come from the chunk cache: 0 is cold, 1 is warm
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1", help_heading = "Request")]
    hit_rate: Vec<f64>,
    /// The methods
    #[arg(
        long,
        value_name = "NAME",
        num_args = 1..,
        value_delimiter = ',',
        default_values = help::names_of(Command::Plan),
        help_heading = "Method"
    )]
    methods: Vec<String>,
    #[arg(long, help = help::ratio(), help_heading = "Method")]
    ratio: Option<f64>,
    /// What ranks send each other during recompute; auto takes the faster of replicate and pass-q among those that fit
    #[arg(long, value_name = "auto|replicate|pass-q|selected", value_parser = exchange, default_value = "auto", help_heading = "Method")]
    exchange: ExchangeChoice,
    /// Print everything as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Tokens of a chunk; one chunk a rank where absent.
type ChunkTokens = Option<usize>;

fn chunk_tokens(text: &str) -> Result<ChunkTokens, String> {
    if text == "rank" { Ok(None) } else { tokens(text).map(Some) }
}

/// Runs the command; says what went wrong.
pub fn plan(args: &PlanArgs) -> ExitCode {
    match answer(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ranks::refuse(&error),
    }
}

fn answer(args: &PlanArgs) -> anyhow::Result<()> {
    let mut profile = Profile::find(&args.profile)?;
    if let Some(measured) = &args.rank_rates {
        profile = profile.with_rank_of(&Profile::from_file(measured)?)?;
    }
    let shape = shape(&args.model, args.dtype.into())?;
    let scenarios = scenarios(args, &shape, &profile)?;
    let answer = Answer::new(&args.model, &args.tokens.0, scenarios, &shape, &profile)?;
    // Under a launcher every process comes here with the same arguments: once is enough.
    if launcher().is_some_and(|launcher| launcher.rank > 0) {
        return Ok(());
    }
    match args.json {
        true => print_json(&answer.report()),
        false => print(&render(&answer)),
    }
}

/// The shape by its name or from a folder's config.
fn shape(model: &str, dtype: tributary_engine::Dtype) -> anyhow::Result<ModelShape> {
    let dtype_bytes = dtype.tensor().size_in_bytes();
    if let Some(mut shape) = ModelShape::named(model) {
        shape.dtype_bytes = dtype_bytes;
        shape.weight_bytes = shape.parameters() * dtype_bytes as u64;
        return Ok(shape);
    }
    let folder = Path::new(model);
    if !folder.join("config.json").exists() {
        let known = ModelShape::names().join(", ");
        return Err(usage(format!("--model {model}: neither a folder with a config.json nor one of {known}")));
    }
    Ok(shape_of(&Config::read(folder)?, dtype_bytes))
}

/// Every method at every hit rate; exact methods do not use the chunk cache, so theirs is 0.
fn scenarios(args: &PlanArgs, shape: &ModelShape, profile: &Profile) -> anyhow::Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for name in &args.methods {
        if scenarios.iter().any(|scenario: &Scenario| scenario.settings.method.name == name) {
            return Err(usage(format!("--methods: {name} stands there twice")));
        }
        let settings = RequestSettings {
            method: method_named(name)?,
            ratio: args.ratio,
            exchange: args.exchange,
            world: args.world.unwrap_or(profile.ranks),
            max_tokens: 1,
            ..RequestSettings::default()
        };
        let exact = settings.method(shape.layers, shape.kv_heads)?.is_exact();
        let hit_rates = if exact { &[0.0] } else { args.hit_rate.as_slice() };
        scenarios.extend(hit_rates.iter().map(|&hit_rate| Scenario {
            settings: settings.clone(),
            chunk_tokens: args.chunk_tokens,
            prefix_tokens: args.prefix_tokens,
            query_tokens: args.query_tokens,
            hit_rate,
        }));
    }
    Ok(scenarios)
}
