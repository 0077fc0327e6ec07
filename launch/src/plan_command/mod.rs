//! `tributary plan`: forecast of every method's times on a machine that need not be available, and
//! of the number of GPUs for a load or a trace. Reads a config and profiles; all its numbers are
//! marked as predictions.

mod sizing;
mod twin;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::ArgPredicate;
use clap::{ArgAction, Args};
use tributary_engine::{Drawn, Dtype, KvDtype, launcher};
use tributary_methods::MethodSpec;
use tributary_planner::ModelShape;
use tributary_planner::forecast::Profile;
use tributary_planner::outlook::PictureGrids;
use tributary_protocol::Command;
use tributary_study::forecast::asked::{Asked, grids, machines, reading_pictures, shape};
use tributary_study::forecast::lengths::{Lengths, tokens, tokens_or_none};
use tributary_study::forecast::{Answer, render};
use tributary_study::sizing::Question;

use self::sizing::SizingArgs;
use self::twin::{Traced, TwinArgs};

use crate::failure::usage;
use crate::help;
use crate::named::{DTYPES, KV_DTYPES, one_of};
use crate::ranks;
use crate::stdout::{print, print_json};
use crate::values::{List, list};

/// Predict times, bytes and memory of methods on a machine that need not be available; with
/// --slo-ttft the GPUs that a load needs, with --trace the times of a trace on numbers of GPUs
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Hugging Face folder, of which only config.json is read, or a known shape, such as qwen3-14b
    /// (a wrong name lists them)
    #[arg(long, value_name = "DIR|SHAPE", help_heading = "Model")]
    model: String,
    /// Type of weights and KV cache
    #[arg(long, value_parser = one_of(&DTYPES), default_value = "bf16", help_heading = "Model")]
    dtype: Dtype,
    /// Type of the KV cache, of stored chunks and of messages between ranks
    #[arg(long, value_parser = one_of(&KV_DTYPES), default_value = "auto", help_heading = "Model")]
    kv_dtype: KvDtype,
    /// Machine: h100x4, h100x8, h100x8x2 (each also with -paper), h200x4, h200x8, h200x8x2, or a
    /// .toml file. With --slo-ttft several are compared
    #[arg(long, action = ArgAction::Set, value_name = "NAME|FILE", value_delimiter = ',', required = true, help_heading = "Machine")]
    profile: Vec<String>,
    /// File of `bench --calibrate` with the speed of a rank; --profile then supplies only the links
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    rank_rates: Option<PathBuf>,
    /// Number of ranks [default: all ranks of the profile]
    #[arg(long, visible_alias = "world-size", value_name = "N", help_heading = "Machine")]
    world: Option<usize>,
    /// Context lengths in tokens: FIRST..LAST, doubling, or a list; k is 1024, m is 1024 k
    #[arg(long, value_name = "LENGTHS", default_value = "8k..1m", help_heading = "Request")]
    tokens: Lengths,
    /// Tokens of a chunk, or `rank` for one chunk per rank
    #[arg(long, value_name = "N|rank", default_value = "2k", value_parser = chunk_tokens, help_heading = "Request")]
    chunk_tokens: ChunkTokens,
    /// Tokens of the query
    #[arg(long, value_name = "N", default_value = "32", value_parser = tokens, help_heading = "Request")]
    query_tokens: usize,
    /// Tokens before the context
    #[arg(long, value_name = "N", default_value = "1", value_parser = tokens_or_none, help_heading = "Request")]
    prefix_tokens: usize,
    /// Number of the last --prefix-tokens that chunks are prefilled without, as with --chunk-prefix
    /// head; they count as computed
    #[arg(long, value_name = "N", default_value = "0", value_parser = tokens_or_none, help_heading = "Request")]
    lead_tokens: usize,
    /// Pictures after the tokens of the context, a chunk each, such as 20x1024x1024 pixels; methods
    /// that read no pictures are left out
    #[arg(long, value_name = "NxWxH", conflicts_with_all = ["slo_ttft", "trace"], help_heading = "Request")]
    images: Option<Drawn>,
    /// Number of generated tokens; above 1 the output also has the time of each further token and
    /// of all tokens
    #[arg(long, value_name = "N", default_value = "1", value_parser = tokens, help_heading = "Request")]
    max_tokens: usize,
    /// Shares of the chunks that come from the chunk cache: 0 is cold, 1 is warm; --slo-ttft uses
    /// the first one
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1", help_heading = "Request")]
    hit_rate: Vec<f64>,
    /// Methods to predict, NAME[:KEY[=VALUE]]..; without exchange=E the faster one that fits is
    /// taken. With --trace the default is prefix-cache and infoflow
    #[arg(
        long,
        visible_alias = "method",
        value_name = "METHOD",
        num_args = 1..,
        value_parser = list::<MethodSpec>,
        default_values = help::names_of(Command::Plan),
        default_value_if("trace", ArgPredicate::IsPresent, TRACED),
        help_heading = "Method"
    )]
    methods: Vec<List<MethodSpec>>,
    #[arg(long, help = help::ratio(), help_heading = "Method")]
    ratio: Option<f64>,
    #[arg(long, value_name = "DIR|SHAPE", conflicts_with = "trace", help = help::planned_aux_model(), help_heading = "Method")]
    aux_model: Option<String>,
    #[command(flatten)]
    sizing: SizingArgs,
    #[command(flatten)]
    twin: TwinArgs,
    /// Print everything as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Default methods of a trace: an exact one, and one that selects.
const TRACED: &str = "prefix-cache,infoflow";

/// Tokens of a chunk; one chunk a rank where absent.
type ChunkTokens = Option<usize>;

fn chunk_tokens(text: &str) -> Result<ChunkTokens, String> {
    if text == "rank" { Ok(None) } else { tokens(text).map(Some) }
}

/// Runs the command; reports the failure.
pub fn plan(args: &PlanArgs) -> ExitCode {
    match answer(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ranks::refuse(&error),
    }
}

fn answer(args: &PlanArgs) -> anyhow::Result<()> {
    let profiles = machines(&args.profile, args.rank_rates.as_deref())?;
    let (shape, methods) = (shape("--model", &args.model, args.dtype, &profiles)?, List::all(&args.methods));
    let shape = ModelShape { kv_in_eight_bits: args.kv_dtype == KvDtype::Fp8, ..shape };
    // Under a launcher every process comes here with the same arguments: once is enough to print.
    let leads = launcher().is_none_or(|launcher| launcher.rank == 0);
    if args.twin.is_asked() {
        let traced = Traced {
            model: args.model.clone(),
            shape,
            profile: one(args, profiles)?,
            methods,
            ratio: args.ratio,
            world: args.world,
            head_tokens: args.prefix_tokens,
            slo_s: args.sizing.slo_s(),
        };
        return args.twin.answer(traced, args.json, leads);
    }
    if let Some(demand) = args.sizing.demand() {
        if args.world.is_some() {
            return Err(usage("--world: not with --slo-ttft, which finds the number of ranks"));
        }
        let hit_rates = &args.hit_rate[..args.hit_rate.len().min(1)];
        let scenarios = asked(args, &methods, 1, hit_rates)?.scenarios()?;
        let (model, lengths) = (args.model.clone(), args.tokens.0.clone());
        return args.sizing.answer(Question { model, shape, profiles, lengths, scenarios, demand }, args.json, leads);
    }
    let profile = &one(args, profiles)?;
    let (methods, left_out) = match args.images {
        Some(_) => reading_pictures(methods, &shape),
        None => (methods, Vec::new()),
    };
    let pictures = grids(args.images.as_ref(), &args.model, &shape)?;
    if methods.is_empty() {
        return Err(usage(format!("--images: no pictures are read by {}", left_out.join(", "))));
    }
    let asked = asked(args, &methods, args.world.unwrap_or(profile.ranks), &args.hit_rate)?;
    let scenarios = Asked { pictures, ..asked }.scenarios()?;
    let answer = Answer::new(&args.model, &args.tokens.0, scenarios, &shape, profile)?.without(left_out);
    match (leads, args.json) {
        (false, _) => Ok(()),
        (true, true) => print_json(&answer.report()),
        (true, false) => print(&render(&answer)),
    }
}

/// The only machine.
fn one(args: &PlanArgs, profiles: Vec<Profile>) -> anyhow::Result<Profile> {
    <[Profile; 1]>::try_from(profiles).map(|[profile]| profile).map_err(|_| {
        usage(format!("--profile {}: one machine, or --slo-ttft to size for several", args.profile.join(",")))
    })
}

fn asked<'a>(
    args: &'a PlanArgs,
    methods: &'a [MethodSpec],
    world: usize,
    hit_rates: &'a [f64],
) -> anyhow::Result<Asked<'a>> {
    // It is computed in f32 on a host, where packed weights stay packed.
    let auxiliary = args.aux_model.as_ref().map(|model| shape("--aux-model", model, Dtype::F32, &[])).transpose()?;
    Ok(Asked {
        methods,
        ratio: args.ratio,
        world,
        chunk_tokens: args.chunk_tokens,
        prefix_tokens: args.prefix_tokens,
        lead_tokens: args.lead_tokens,
        query_tokens: args.query_tokens,
        max_tokens: args.max_tokens,
        hit_rates,
        pictures: PictureGrids::default(),
        auxiliary,
    })
}
