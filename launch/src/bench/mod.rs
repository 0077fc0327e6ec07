//! `tributary bench`: the scaling study of the time to first token. Sweeps lengths, ranks, methods,
//! ratios and states of the chunk cache; every sample is kept, and measurements are reported beside
//! predictions.

mod choices;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tributary_coordinator::{ChunkPrefix, Chunking, Join, Prefix, TEXT_CHUNK_TOKENS, Tiling};
use tributary_engine::{
    Config, DeviceKind, Engine, IntakeConfig, KvDtype, ModelFolder, Ranks, Synthetic, TemplateUse, follow,
};
use tributary_planner::forecast::Profile;
use tributary_study::bench::calibrate::{self, Calibration, calibrate};
use tributary_study::bench::{self as study, Output, Sweep, dry_run};
use tributary_study::{scalar, terminal};

use self::choices::Choices;
use crate::args::{Load, ModelArgs, ReachArgs, size};
use crate::exporting::MetricsArgs;
use crate::failure::usage;
use crate::progress::Progress;
use crate::ranks;
use crate::serve::refused;
use crate::stdout::print;

const HELP: &str = "\
A method is NAME[:OPTION[=VALUE]].., with the options of `compare` except world and threads; ratio=R takes precedence \
over --ratios. Requests are random tokens from the seed. A study is a file for --config: lengths = [\"4k\", 8192], \
worlds = [1, 2], methods = [\"full\", \"infoflow:exchange=pass-q\"], caches = [\"cold\", 0.5, \"warm\"].";

/// Run the scaling study of the time to first token over lengths, ranks, methods, ratios, cold and
/// warm caches; writes a table, JSON, CSV and an HTML report
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct BenchArgs {
    #[command(flatten)]
    choices: Choices,
    /// Print the points with their predictions, and run nothing
    #[arg(long, help_heading = "Run", conflicts_with_all = ["resume", "force"])]
    dry_run: bool,
    /// Measure this machine with the model's shapes and write a profile for predictions, without a
    /// study
    #[arg(long, value_name = "FILE.toml", num_args = 0..=1, help_heading = "Run", conflicts_with_all = ["resume", "dry_run", "out"])]
    calibrate: Option<Option<PathBuf>>,
    /// Continue the interrupted study in --out, which must have the same design and the same
    /// program
    #[arg(long, help_heading = "Run", requires = "out", conflicts_with = "force")]
    resume: bool,
    /// Folder for report.json, report.html, points.csv, samples.csv and charts [default:
    /// tributary-bench-DATE]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Overwrite the study in --out, or the file of --calibrate
    #[arg(long, help_heading = "Output")]
    force: bool,
    #[command(flatten)]
    reach: ReachArgs,
    /// Memory limit of each GPU for weights, chunk caches, requests and NCCL's buffers together,
    /// such as 64GiB [default: nine tenths of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Ranks")]
    device_memory: Option<u64>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Runs the command; reports the failure.
pub fn bench(args: &BenchArgs) -> ExitCode {
    let (choices, config) = match choices(args).and_then(|choices| Ok((choices.clone(), config(&choices, args)?))) {
        Ok(found) => found,
        Err(error) => ranks::refuse(&error),
    };
    ranks::run(&config.group, |ranks| match ranks.leads() {
        false if args.dry_run => Ok(ranks.leave()?),
        _ if args.calibrate.is_some() => calibrated(args, &choices, &config, ranks),
        false => Ok(follow(&config, ranks)?),
        true => lead(args, choices, &config, ranks),
    })
}

/// The options; those of the study in --out where --resume comes without a model.
fn choices(args: &BenchArgs) -> anyhow::Result<Choices> {
    let choices = args.choices.clone();
    let (true, None, Some(folder)) = (args.resume, &choices.model, &args.out) else { return Ok(choices) };
    let design = study::read(folder)?.design;
    let alone = Choices { profile: choices.profile.clone(), ..Choices::default() };
    if choices != alone {
        let shown = folder.display();
        return Err(usage(format!(
            "--resume: {shown} says what to measure; leave the study's options out, or give all"
        )));
    }
    let own = Choices::of(&design).map_err(|why| usage(format!("--resume: {why}")))?;
    Ok(Choices { profile: choices.profile, ..own })
}

/// Configuration of the engine.
fn config(choices: &Choices, args: &BenchArgs) -> anyhow::Result<Config> {
    let Some(model) = choices.model.clone() else {
        return Err(usage(choices::NO_MODEL));
    };
    let tokens = |tokens: Option<scalar::Tokens>, default| tokens.map_or(default, |tokens| tokens.0);
    // The number of chunks is each point's own; none of this request is ever run.
    let chunk_tokens = tokens(choices.chunk_tokens, choices::CHUNK_TOKENS);
    let query_tokens = tokens(choices.query_tokens, choices::QUERY_TOKENS);
    let model = ModelArgs {
        model,
        load_format: choices.load_format.unwrap_or(Load::Safetensors),
        device: choices.device.unwrap_or(DeviceKind::Cpu),
        device_memory: args.device_memory,
        dtype: choices.dtype,
        kv_dtype: choices.kv_dtype.unwrap_or(KvDtype::Auto),
        kernels: choices.kernels.unwrap_or_default(),
        aux_model: choices.aux_model.clone(),
        draft_model: choices.draft_model.clone(),
        adapters: choices.adapters.clone().unwrap_or_default(),
    };
    let intake = IntakeConfig {
        max_image_pixels: None,
        synthetic: Some(Synthetic { chunks: 1, chunk_tokens, query_tokens }),
        chunking: Chunking::Documents,
        tiling: Tiling::default(),
        text_chunk_tokens: TEXT_CHUNK_TOKENS,
        prefix: Prefix::Bos,
        chunk_prefix: ChunkPrefix::System,
        template: TemplateUse::None,
        join: Join::default(),
        template_kwargs: serde_json::Map::new(),
    };
    Ok(Config {
        model: model.config(choices.seed.unwrap_or(0)),
        intake,
        group: args.reach.group(None, choices.threads.unwrap_or(1)),
    })
}

fn calibrated(args: &BenchArgs, choices: &Choices, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    let worlds = choices.worlds.as_deref().unwrap_or(&[1]);
    let (&[world], threads) = (worlds, config.group.threads) else {
        return Err(usage("--calibrate: --worlds must name one number of ranks; each has a profile of its own"));
    };
    if world == 0 || threads == 0 {
        return Err(usage(format!("--worlds {world} with --threads {threads}: both must be at least 1")));
    }
    let rank_device = ranks.open_device(&config.model, &config.group)?;
    let carrier = ranks.carrier(&config.group, &rank_device, ranks.count(world))?;
    let folder = ModelFolder::open(&config.model, &config.intake)?;
    let calibration = Calibration {
        folder: &folder,
        model: &config.model,
        rank_device: &rank_device,
        carrier,
        world,
        threads,
        timeout: config.group.collective_timeout,
        rounds: choices.repeats,
        store: args.reach.store.chunk_store.as_deref(),
        file: args.calibrate.as_ref().and_then(Option::as_deref),
        force: args.force,
    };
    let progress = Progress::start("loading the weights");
    let profile = calibrate(&calibration, ranks, &|what| progress.now(what))?;
    drop(progress);
    match (profile, calibration.file) {
        (None, _) => Ok(()),
        (Some(profile), Some(file)) => Ok(calibrate::write(&profile, file)?),
        (Some(profile), None) => print(&profile.to_toml()),
    }
}

fn lead(args: &BenchArgs, choices: Choices, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    let profile = choices.profile.as_deref().map(Profile::find).transpose()?;
    let (design, methods) = choices.design(ranks.fixed_world())?;
    let timeout_ms = args.reach.collective_timeout.saturating_mul(1000);
    let mut engine = Engine::open(config, ranks)?;
    let sweep = Sweep { design: &design, methods: &methods, timeout_ms, profile: profile.as_ref() };
    if args.dry_run {
        let (points, _) = study::targets(&sweep, &mut engine)?;
        print(&dry_run::render(&design, &points, profile.as_ref()))?;
        drop(engine);
        return Ok(ranks.leave()?);
    }
    let output = Output::open(args.out.as_deref(), args.resume, args.force)?;
    let (points, targets) = study::targets(&sweep, &mut engine)?;
    let mut study = study::begin(design.clone(), points, &engine, profile.as_ref(), output.earlier.clone())?;
    output.create()?;
    let world = targets.iter().map(|target| target.run_config.settings.world).max().unwrap_or(1);
    let name = output.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let exporter = args.metrics.start("bench", name, world, profile)?;
    exporter.watch(&mut engine);
    let progress = Progress::start("loading the weights");
    let tell = |what, share| {
        exporter.progress(share);
        progress.now(what);
    };
    let measured = study::measure(&mut study, engine, &targets, &output, &tell);
    drop(progress);
    let exported = exporter.end(measured.is_ok());
    measured?;
    exported.map_err(refused)?;
    print(&format!("{}\n# written to {}\n", terminal::render(&study), output.folder.display()))?;
    Ok(study::check(&study)?)
}
