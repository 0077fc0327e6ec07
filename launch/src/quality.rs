//! `tributary quality`: quality of answers. Methods on tasks whose answers are known, or the scores
//! of answers made elsewhere.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use tributary_coordinator::{ChunkPrefix, Chunking, Join, Prefix, TEXT_CHUNK_TOKENS};
use tributary_engine::{Config, Engine, IntakeConfig, Ranks, RunConfig, Synthetic, TemplateUse, follow};
use tributary_methods::{Keep, LAYERS};
use tributary_planner::forecast::Profile;
use tributary_planner::{GroupShape, RequestSettings};
use tributary_protocol::{Eviction, REFERENCE, Sampling};
use tributary_quality::{
    Arm, Asked, Evaluation, LEAST_ALPHA, Output, Part, Split, Study, Wanted, depths, dry_run, open, origin, page, pool,
    render, report, rows,
};
use tributary_study::forecast::lengths::tokens;
use tributary_study::method_spec::MethodSpec;
use tributary_study::scalar::Ratio;

use crate::args::{ModelArgs, ReachArgs, TileArgs};
use crate::calibrating;
use crate::config_file::CONFIG;
use crate::exporting::MetricsArgs;
use crate::failure::usage;
use crate::help;
use crate::named::{PARTS, TEMPLATES, one_of};
use crate::progress::Progress;
use crate::ranks;
use crate::serve::refused;
use crate::stdout::print;
use crate::template_kwargs::TemplateKwargs;
use crate::values::{List, list};

/// The subcommands.
const SCORE: &str = "score";
const POOL: &str = "pool";

const HELP: &str = "\
A method is NAME[:OPTION[=VALUE]].., with the options of `compare` except world and threads; ratio=R takes precedence \
over --ratios. Every method answers every request, cold, in a random order drawn for each request. --resume may add \
samples, tasks, lengths, methods or ratios. The suite hops is the language of examples/models/demo: it shows whether methods \
preserve what chunking breaks, and nothing about large models. ruler, niah and longbench need a model that reads \
English; every result names the sources of their texts (docs/quality.md).";

/// The parsed command: an evaluation, or one of its subcommands.
#[derive(Debug)]
pub enum QualityArgs {
    /// An evaluation of methods on tasks.
    Evaluation(Box<EvaluationArgs>),
    /// Scores of answers made elsewhere.
    Score(ScoreArgs),
    /// Tables of the answers of several evaluations.
    Pool(PoolArgs),
}

impl Args for QualityArgs {
    fn augment_args(command: Command) -> Command {
        let command = EvaluationArgs::augment_args(command)
            .subcommand(ScoreArgs::augment_args(Command::new(SCORE)))
            .subcommand(PoolArgs::augment_args(Command::new(POOL)));
        command.args_conflicts_with_subcommands(true).subcommand_negates_reqs(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for QualityArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(match matches.subcommand() {
            Some((SCORE, matches)) => Self::Score(ScoreArgs::from_arg_matches(matches)?),
            Some((_, matches)) => Self::Pool(PoolArgs::from_arg_matches(matches)?),
            None => {
                let study = matches.try_get_one::<PathBuf>(CONFIG).ok().flatten().cloned();
                Self::Evaluation(Box::new(EvaluationArgs { study, ..EvaluationArgs::from_arg_matches(matches)? }))
            }
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Score answers made elsewhere; prints one number a line, from 0 to 1
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// File with a JSON object a line: {"metric": qa_f1 | rouge_l | classification | retrieval |
    /// count | code_similarity | match_all | match_part | begins_with, "prediction": TEXT,
    /// "references": [TEXT, ..], "classes": [TEXT, ..] for a classification}
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
}

/// Print joint tables of several evaluations, such as parts of one that ran in parallel
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Output folders of evaluations with the same model, suite, seed, shape and program; only
    /// requests that every method has answered count
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    /// Methods to count, spelled as in the evaluations, such as none or infoflow:ratio=0.3; full is
    /// always counted [default: all]
    #[arg(long, value_name = "METHOD", num_args = 1.., value_parser = list::<String>)]
    methods: Vec<List<String>>,
    /// Count only tasks where the score of full is at least this much above that of none
    #[arg(long, value_name = "SCORE")]
    least_gap: Option<f64>,
    /// Seed of the confidence intervals
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Evaluate methods on tasks with known answers, with time and bytes; or score answers made
/// elsewhere
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct EvaluationArgs {
    /// The file of --study.
    #[arg(skip)]
    pub study: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Suites of tasks: hops, pages, ruler, niah, pairs, longbench, or a FILE.jsonl of your own
    /// rows; with several, such as pairs,ruler, a task's name is SUITE/TASK
    #[arg(long, value_name = "NAME,..|FILE.jsonl", help_heading = "Evaluation")]
    suite: String,
    /// Tasks of the suite, such as hop2,vt3 or niah_single_1,qa_2 [default: all]
    #[arg(long, value_name = "TASK,..", value_delimiter = ',', help_heading = "Evaluation")]
    tasks: Vec<String>,
    /// Number of requests for each task, length and depth; a file may have fewer
    #[arg(long, value_name = "N", default_value_t = 50, help_heading = "Evaluation")]
    samples: usize,
    /// hops, pages, pairs: number of documents of a request [default: 8; pairs: 12]
    #[arg(long, value_name = "N", help_heading = "Evaluation")]
    documents: Option<usize>,
    /// hops, pages, pairs: maximum tokens of each document; several values, such as 32,64, are
    /// evaluated separately [default: 64; pairs: 100]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Evaluation")]
    document_tokens: Vec<usize>,
    /// ruler, niah, longbench: maximum tokens of prompt and answer together, such as 4096,8k
    /// [default: 4096; niah: 2048,4096; longbench: no limit]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = tokens, help_heading = "Evaluation")]
    lengths: Vec<usize>,
    /// niah: depths of the needle, in percent of the context [default: 0,25,50,75,100]
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Evaluation")]
    depths: Vec<usize>,
    /// All but hops and pages: maximum tokens of a chunk; several values, such as 128,256,512, are
    /// evaluated separately [default: one chunk per document, 2048 without documents]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = tokens, help_heading = "Evaluation")]
    chunk_tokens: Vec<usize>,
    /// Folder of data that is not part of the program: word lists, paragraphs, LongBench's rows
    /// (docs/quality.md)
    #[arg(long, value_name = "DIR", env = "TRIBUTARY_DATA", hide_env_values = true, help_heading = "Evaluation")]
    data: Option<PathBuf>,
    /// ruler, niah: file with the haystacks' text, plain or {"text": ..} [default: paragraphs in
    /// --data]
    #[arg(long, value_name = "FILE", help_heading = "Evaluation")]
    essays: Option<PathBuf>,
    /// ruler: file with the questions of qa_1 in SQuAD's format [default: those in --data]
    #[arg(long, value_name = "FILE", help_heading = "Evaluation")]
    squad: Option<PathBuf>,
    /// Part of the sources that texts come from: selection, to choose and calibrate methods;
    /// report, which runs only what a committed --study lists; all [default: all]
    #[arg(long, value_parser = one_of(&PARTS), hide_default_value = true, default_value = "all", help_heading = "Evaluation")]
    split: Part,
    /// Salt of the hash that divides the sources, for --split
    #[arg(long, value_name = "TEXT", help_heading = "Evaluation")]
    split_salt: Option<String>,
    /// Compute a request's chunks once and share them among its methods: answers stay the same, but
    /// times to first token are not comparable
    #[arg(long, help_heading = "Run")]
    warm: bool,
    /// Prefix before the first document, visible to all after it: a TEXT, the BOS token, or
    /// nothing; a template's head replaces it
    #[arg(long, value_name = "TEXT|bos|none", default_value = "bos", help_heading = "Evaluation")]
    prefix: Prefix,
    /// Part of the prefix that a chunk sees while it is prefilled. system: all of it, with the
    /// task's text. head: the tokens with which every prompt of the template begins. N: the head
    /// and the first N tokens after it
    #[arg(long, value_name = "head|system|N", default_value = "system", help_heading = "Evaluation")]
    chunk_prefix: ChunkPrefix,
    #[command(flatten)]
    tiles: TileArgs,
    /// Use of the model's chat template, if it has one and the suite uses it
    #[arg(long, value_parser = one_of(&TEMPLATES), default_value = "auto", help_heading = "Evaluation")]
    template: TemplateUse,
    /// Text appended to each chunk that does not end with it [default: nothing; suites have their
    /// own separators]
    #[arg(long, value_name = "TEXT", help_heading = "Evaluation")]
    join: Option<Join>,
    /// Variables of the chat template, as a JSON object
    #[arg(long, value_name = "JSON", help_heading = "Evaluation")]
    chat_template_kwargs: Option<TemplateKwargs>,
    /// Methods to compare; full is added if it is missing, as the reference of the others [default:
    /// all but those with --aux-model or --adapter, and infoflow:reorder]
    #[arg(long, value_name = "METHOD", num_args = 1.., value_parser = list::<MethodSpec>, default_values = methods(), hide_default_value = true, help_heading = "Evaluation")]
    methods: Vec<List<MethodSpec>>,
    /// Shares of the context to recompute, such as 0.05,0.15 [default: each method's own]
    #[arg(long, value_name = "R,..", value_delimiter = ',', visible_alias = "ratio", help_heading = "Evaluation")]
    ratios: Vec<Ratio>,
    /// Eviction methods before the second token, each combined with every method:
    /// snapkv,lookahead,..; every method also runs without eviction
    #[arg(long, value_name = "METHOD,..", value_delimiter = ',', requires = "keep", help_heading = "Evaluation")]
    evict: Vec<Eviction>,
    /// With --evict: prompt tokens that each KV head of a layer keeps, numbers or percentages, such
    /// as 16,64,30%
    #[arg(long, value_name = "N|N%,..", value_delimiter = ',', requires = "evict", help_heading = "Evaluation")]
    keep: Vec<Keep>,
    /// Seed of requests, order of methods, confidence intervals and random selection
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Evaluation")]
    seed: u64,
    /// Description of the published numbers that the run re-examines, shown above the tables and in
    /// the report
    #[arg(long, value_name = "TEXT", help_heading = "Evaluation")]
    reproduces: Option<String>,
    /// Print the number of requests, answers and tokens, with predicted memory and times, and run
    /// nothing; of the model only config.json is needed
    #[arg(long, help_heading = "Run", conflicts_with_all = ["resume", "force"])]
    dry_run: bool,
    /// Measure how sharply the model reads references between documents, and write trace's α beside
    /// the model (trace.json). It needs a suite with such references: pairs, or hops for the demo
    /// model. The method's options say which heads are measured, such as trace:sharpest=0.5
    /// [default: trace]
    #[arg(long, value_name = "METHOD", num_args = 0..=1, help_heading = "Run", conflicts_with_all = ["dry_run", "resume", "out", "methods", "ratios", "evict"])]
    calibrate_trace: Option<Option<MethodSpec>>,
    /// Evaluate a method with other scoring layers: eighths, quarters and halves of the model's
    /// layers, and all of them. Layers with which it answers better than with its usual ones (p
    /// below 0.05 after Holm) are written beside the model (layers.json), and are the method's
    /// usual layers from then on
    #[arg(long, value_name = "METHOD", help_heading = "Run", conflicts_with_all = ["calibrate_trace", "methods", "evict"])]
    calibrate_layers: Option<MethodSpec>,
    /// Machine profile to predict times of a dry run: a name, or a file of `bench --calibrate`
    /// [default: none]
    #[arg(long, value_name = "NAME|FILE.toml", help_heading = "Run", requires = "dry_run")]
    profile: Option<String>,
    /// Continue the evaluation in --out, with the same suite, seed, shape, model and program
    #[arg(long, help_heading = "Run", requires = "out", conflicts_with = "force")]
    resume: bool,
    /// Folder for answers.jsonl, report.json, points.csv, answers.csv and quality.html [default:
    /// tributary-quality-DATE]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Overwrite the evaluation in --out
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// Number of ranks; under a launcher it must equal the launcher's number [default: 1, or the
    /// launcher's]
    #[arg(long, visible_aliases = ["world", "worlds"], value_name = "N", help_heading = "Ranks")]
    world_size: Option<usize>,
    /// Compute threads of each rank
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    threads: usize,
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Every method, and one with documents in another order.
fn methods() -> Vec<&'static str> {
    help::methods_by_themselves().into_iter().chain(["infoflow:reorder"]).collect()
}

/// Reads a command line.
type Read<'a> = &'a dyn Fn(Vec<OsString>) -> Result<ArgMatches, String>;

/// Runs the command; reports the failure. `once` runs the work that needs no ranks; `read` reads a
/// command line, for a study's own options.
pub fn quality(
    args: &QualityArgs,
    once: impl FnOnce(&dyn Fn() -> anyhow::Result<()>) -> ExitCode,
    read: Read<'_>,
) -> ExitCode {
    match args {
        QualityArgs::Evaluation(args) => evaluate(args, read),
        QualityArgs::Score(ScoreArgs { file }) => once(&|| score(file)),
        QualityArgs::Pool(PoolArgs { folders, methods, least_gap, seed }) => once(&|| {
            let wanted = Wanted { methods: List::all(methods), least_gap: *least_gap, seed: *seed };
            print(&pool(folders, &wanted)?)
        }),
    }
}

fn score(file: &PathBuf) -> anyhow::Result<()> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| usage(format!("{shown}: {error}")))?;
    let scores = rows::scores(&text).map_err(|error| usage(format!("{shown}, {error}")))?;
    print(&scores.iter().map(|score| format!("{score}\n")).collect::<String>())
}

fn evaluate(args: &EvaluationArgs, read: Read<'_>) -> ExitCode {
    // A dry run needs no tokenizer: tokens are estimated. A GGUF file has one.
    let model = &args.model.model;
    let has_tokenizer = model.is_file() || model.join("tokenizer.json").exists();
    let intake = IntakeConfig {
        max_image_pixels: None,
        synthetic: (args.dry_run && !has_tokenizer).then_some(Synthetic {
            chunks: 1,
            chunk_tokens: 1,
            query_tokens: 1,
        }),
        chunking: Chunking::Documents,
        tiling: (&args.tiles).into(),
        text_chunk_tokens: TEXT_CHUNK_TOKENS,
        prefix: args.prefix.clone(),
        chunk_prefix: args.chunk_prefix,
        template: args.template,
        // A context that is cut between its sentences must not change.
        join: args.join.clone().unwrap_or_else(Join::nothing),
        template_kwargs: args.chat_template_kwargs.clone().unwrap_or_default().0,
    };
    let group = args.reach.group(args.world_size, args.threads);
    let config = Config { model: args.model.config(args.seed), intake, group };
    ranks::run(&config.group, |ranks| match ranks.leads() {
        false if args.dry_run => Ok(ranks.leave()?),
        false => Ok(follow(&config, ranks)?),
        true => lead(args, &config, ranks, read),
    })
}

/// The evaluation that was asked for.
fn asked(args: &EvaluationArgs, world: usize) -> Asked {
    Asked {
        suite: args.suite.clone(),
        tasks: args.tasks.clone(),
        samples: args.samples,
        seed: args.seed,
        documents: args.documents,
        document_tokens: args.document_tokens.clone(),
        lengths: args.lengths.clone(),
        depths: args.depths.clone(),
        chunk_tokens: args.chunk_tokens.clone(),
        data: args.data.clone(),
        essays: args.essays.clone(),
        squad: args.squad.clone(),
        split: Split { part: args.split, salt: args.split_salt.clone().unwrap_or_default() },
        warm: args.warm,
        world,
        threads: args.threads,
        reproduces: args.reproduces.clone(),
    }
}

fn lead(args: &EvaluationArgs, config: &Config, ranks: &mut Ranks, read: Read<'_>) -> anyhow::Result<()> {
    let world = ranks.world();
    let study = study(args, world, read)?;
    let ((design, suite), mut arms) = (open(&asked(args, world))?, arms(args, world)?);
    let profile = args.profile.as_deref().map(Profile::find).transpose()?;
    let mut engine = Engine::open(config, ranks)?;
    if let Some(spec) = &args.calibrate_layers {
        arms.extend(at_depths(args, spec, (engine.folder().config.layers, world))?);
    }
    if args.warm {
        engine.keep_chunks(&[world]);
    }
    let group = GroupShape { world, threads: args.threads };
    let free_bytes = if args.dry_run { engine.plan_beyond_memory(group) } else { None };
    let evaluation = Evaluation::new(design, suite.as_ref(), arms, &mut engine)?;
    if args.dry_run {
        print(&dry_run(&evaluation, &engine.folder().shape(), profile.as_ref(), free_bytes))?;
        drop(engine);
        return Ok(ranks.leave()?);
    }
    if args.calibrate_trace.is_some() {
        return calibrating::trace(&evaluation, suite.as_ref(), engine);
    }
    let output = Output::open(args.out.as_deref(), args.resume, args.force)?;
    let (origin, environment) = (origin(&engine)?, engine.environment().clone());
    let before = output.begin(&evaluation, &origin, &environment)?;
    let runs = study.map(|study| study.begin(&evaluation, (&origin.build, &origin.model_hash), before)).transpose()?;
    let name = output.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let exporter = args.metrics.start("quality", name, world, profile)?;
    exporter.watch(&mut engine);
    let progress = Progress::start("loading the weights");
    let answers = tributary_quality::run(&evaluation, &mut engine, &output, &|what, share| {
        exporter.progress(share);
        progress.now(what);
    });
    drop(progress);
    let exported = exporter.end(answers.is_ok());
    let answers = answers?;
    let report = report(&evaluation, (origin, environment), &answers, before, runs);
    output.finish(
        &evaluation,
        &answers,
        &report,
        &page(&evaluation, &report, &answers, &|question| engine.read(question).ok()),
    )?;
    let model_folder = engine.folder().path.clone();
    engine.end()?;
    print(&format!("{}\n# written to {}\n", render(&report), output.folder.display()))?;
    if let Some(spec) = &args.calibrate_layers {
        calibrating::layers(spec, &evaluation, &answers, &model_folder)?;
    }
    exported.map_err(refused)?;
    Ok(report.check()?)
}

/// The committed study of a run on the report part, which asks for nothing that the study does not
/// list; a dry run needs no commit. Nothing for other parts.
fn study(args: &EvaluationArgs, world: usize, read: Read<'_>) -> anyhow::Result<Option<Study>> {
    if args.split != Part::Report {
        return Ok(None);
    }
    let calibrates = [("trace", args.calibrate_trace.is_some()), ("layers", args.calibrate_layers.is_some())];
    if let Some((what, _)) = calibrates.iter().find(|(_, is_asked)| *is_asked) {
        return Err(usage(format!("--calibrate-{what}: not with --split report: it takes --split selection")));
    }
    let Some(path) = &args.study else {
        return Err(usage("--split report: it runs what a committed study file lists: name it with --study FILE.toml"));
    };
    check_listed(args, &studied(path, read)?, world)?;
    match args.dry_run {
        true => Ok(None),
        false => Ok(Some(Study::committed(path)?)),
    }
}

/// A study file's own options.
fn studied(path: &Path, read: Read<'_>) -> anyhow::Result<EvaluationArgs> {
    let words = ["tributary", "quality", "--model", ".", "--study"].map(OsString::from);
    let matches = read(words.into_iter().chain([path.into()]).collect()).map_err(usage)?;
    let matches = matches.subcommand_matches("quality").expect("the command was called");
    Ok(EvaluationArgs::from_arg_matches(matches)?)
}

/// A run asks for nothing that its study does not list.
fn check_listed(args: &EvaluationArgs, listed: &EvaluationArgs, world: usize) -> anyhow::Result<()> {
    let refused = |what: String| Err(usage(format!("--split report: the study does not list {what}")));
    let known = arms(listed, world)?;
    for arm in arms(args, world)? {
        if !known.iter().any(|own| own.label() == arm.label()) {
            return refused(arm.label());
        }
    }
    if args.samples > listed.samples {
        return refused(format!("--samples {}; it lists {}", args.samples, listed.samples));
    }
    if let Some(task) = args.tasks.iter().find(|task| !listed.tasks.is_empty() && !listed.tasks.contains(task)) {
        return refused(format!("the task {task}"));
    }
    let same = [
        ("--suite", args.suite == listed.suite),
        ("--tasks", listed.tasks.is_empty() || !args.tasks.is_empty()),
        ("--seed", args.seed == listed.seed),
        ("--split-salt", args.split_salt == listed.split_salt),
        ("--documents", args.documents == listed.documents),
        ("--document-tokens", args.document_tokens == listed.document_tokens),
        ("--lengths", args.lengths == listed.lengths),
        ("--depths", args.depths == listed.depths),
        ("--chunk-tokens", args.chunk_tokens == listed.chunk_tokens),
        ("--prefix", args.prefix == listed.prefix),
        ("--chunk-prefix", args.chunk_prefix == listed.chunk_prefix),
        ("--template", args.template == listed.template),
        ("--join", args.join == listed.join),
    ];
    match same.into_iter().find(|(_, is_same)| !is_same) {
        Some((option, _)) => refused(format!("this {option}")),
        None => Ok(()),
    }
}

/// A method with each choice of layers that is tried in a model of `layers` layers.
fn at_depths(args: &EvaluationArgs, spec: &MethodSpec, (layers, world): (usize, usize)) -> anyhow::Result<Vec<Arm>> {
    if args.ratios.len() > 1 {
        return Err(usage(format!("--calibrate-layers {spec}: with one ratio, not {}", args.ratios.len())));
    }
    if !spec.method.takes(&LAYERS) {
        return Err(usage(format!("--calibrate-layers {spec}: its score is no attention in some layers")));
    }
    let at = |range: Range<usize>| format!("{spec}:layers={}..{}", range.start, range.end).parse();
    let specs: Result<Vec<MethodSpec>, String> = depths(layers).into_iter().map(at).collect();
    arms_of(args, world, &specs.map_err(|why| usage(format!("--calibrate-layers {why}")))?)
}

/// The methods with each ratio that makes a difference to them; the one that the others are
/// measured against first.
fn arms(args: &EvaluationArgs, world: usize) -> anyhow::Result<Vec<Arm>> {
    let mut specs = vec![MethodSpec::bare(REFERENCE)];
    match (&args.calibrate_trace, &args.calibrate_layers) {
        (_, Some(spec)) => specs.push(spec.clone()),
        (Some(spec), _) => {
            let spec = spec.as_ref().map_or_else(|| "trace".to_owned(), MethodSpec::to_string);
            let spec = format!("{spec}:alpha={LEAST_ALPHA}").parse();
            specs = vec![spec.map_err(|why: String| usage(format!("--calibrate-trace {why}")))?];
        }
        (None, None) => {
            specs.extend(List::all(&args.methods).into_iter().filter(|spec| *spec != MethodSpec::bare(REFERENCE)))
        }
    }
    let specs = specs.into_iter().map(|spec| with_evictions(args, spec)).collect::<anyhow::Result<Vec<_>>>()?.concat();
    arms_of(args, world, &specs)
}

/// Methods with each ratio that makes a difference to them.
fn arms_of(args: &EvaluationArgs, world: usize, specs: &[MethodSpec]) -> anyhow::Result<Vec<Arm>> {
    let ratios: Vec<Option<f64>> = args.ratios.iter().map(|ratio| Some(ratio.0)).collect();
    let ratios = if ratios.is_empty() { vec![None] } else { ratios };
    let mut arms: Vec<Arm> = Vec::new();
    for spec in specs {
        if let Some(option) = ["world", "threads"].into_iter().find(|option| spec.has(option)) {
            return Err(usage(format!("--methods {spec}: {option} is one for all methods here")));
        }
        for &ratio in &ratios {
            let settings = RequestSettings {
                method: spec.method,
                ratio: ratio.filter(|_| spec.method.ratio.is_some()),
                world,
                sampling: Sampling { seed: args.seed, ..Sampling::default() },
                timeout_ms: args.reach.collective_timeout.saturating_mul(1000),
                reuse: if args.warm { 1.0 } else { 0.0 },
                keep_chunks: args.warm,
                ..RequestSettings::default()
            };
            let run_config = spec.apply(RunConfig { settings, threads: args.threads });
            let arm = Arm::new(spec.to_string(), run_config);
            if !arms.contains(&arm) {
                arms.push(arm);
            }
        }
    }
    Ok(arms)
}

/// A method, and after it every requested eviction with every budget; a method with its own
/// eviction stays alone.
fn with_evictions(args: &EvaluationArgs, spec: MethodSpec) -> anyhow::Result<Vec<MethodSpec>> {
    let mut specs = vec![spec.clone()];
    if !spec.has("evict") && args.calibrate_trace.is_none() {
        for (evict, keep) in args.evict.iter().flat_map(|evict| args.keep.iter().map(move |keep| (evict, keep))) {
            let evicting = format!("{spec}:evict={}:keep={keep}", evict.descriptor().name);
            specs.push(evicting.parse().map_err(usage)?);
        }
    }
    Ok(specs)
}
