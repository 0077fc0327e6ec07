//! `tributary compare`: several methods on the same requests, interleaved and repeated, in one
//! table.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tributary_engine::{Config, Engine, Question, Ranks, RunConfig};
use tributary_protocol::{REFERENCE, Returns};
use tributary_study::compare::{Compared, Comparison, Runs, measure_one, page, render};
use tributary_study::method_spec::MethodSpec;

use crate::args::{IntakeArgs, MethodArgs, ModelArgs, RunArgs, settings};
use crate::config::config;
use crate::failure::usage;
use crate::help;
use crate::progress::Progress;
use crate::ranks;
use crate::request::RequestArgs;
use crate::stdout::{print, print_json};
use crate::values::{List, list};

const SPECS: &str = "\
A method is NAME[:OPTION[=VALUE]]..; the command's options apply where it has none. Its options include ratio=R \
score=norm|mass layers=FIRST..END layout=L reorder importance=I first exchange=E heads=N rows=N world=N threads=N; \
`tributary methods NAME` lists all. Example: --methods full:world=1 ring infoflow:exchange=pass-q infoflow:reorder \
relay:ratio=0.05";

/// Compare methods on the same requests: time to first token, bytes, error against full prefill,
/// answer
#[derive(Debug, Args)]
#[command(after_help = SPECS)]
pub struct CompareArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Text or picture files, one document each
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["requests", "synthetic"], help_heading = "Request")]
    documents: Vec<PathBuf>,
    /// Request files: {"documents": [TEXT | {"title", "text" | "image"}, ..], "query", "answer"}
    #[arg(long = "request", value_name = "FILE.json", num_args = 1.., conflicts_with = "synthetic", help_heading = "Request")]
    requests: Vec<PathBuf>,
    /// Question about --documents
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["requests", "synthetic"], help_heading = "Request")]
    query: Option<String>,
    #[command(flatten)]
    intake: IntakeArgs,
    #[arg(
        long,
        help = help::compared(),
        value_name = "METHOD",
        num_args = 1..,
        value_parser = list::<MethodSpec>,
        default_values = help::methods_by_themselves(),
        hide_default_value = true,
        help_heading = "Method"
    )]
    methods: Vec<List<MethodSpec>>,
    #[command(flatten)]
    options: MethodArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Measured runs of each method
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Run")]
    repeat: usize,
    /// Warm-up runs of each method before the measured ones
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Run")]
    warmup: usize,
    /// Print everything as one JSON object, every sample included
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// File for an HTML page: times as bars, the tables, every answer in full
    #[arg(long, value_name = "FILE.html", value_parser = page_file, help_heading = "Output")]
    html: Option<PathBuf>,
}

/// A file for a page, by its ending; its folder is there, so that nothing is measured for a page
/// that cannot be written.
fn page_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("html")) {
        return Err(format!("`{text}` must end in .html"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.is_none_or(|folder| folder.is_dir()) {
        true => Ok(path),
        false => Err(format!("`{text}`: its folder does not exist")),
    }
}

/// Runs the command; reports the failure.
pub fn compare(args: &CompareArgs) -> ExitCode {
    let config = config(&args.model, &args.intake, &args.run);
    ranks::lead(&config, |ranks| lead(args, &config, ranks))
}

fn lead(args: &CompareArgs, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    if args.repeat == 0 {
        return Err(usage("--repeat 0: must be at least 1"));
    }
    let run_configs = run_configs(args, ranks.world())?;
    let mut engine = Engine::open(config, ranks)?;
    let questions = questions(args)?;
    for (_, question) in &questions {
        for (_, run_config) in &run_configs {
            engine.check(question, run_config)?;
        }
    }
    let progress = Progress::start("loading the weights");
    for (_, run_config) in &run_configs {
        engine.start(run_config)?;
    }
    let runs = Runs { warmups: args.warmup, repeats: args.repeat, seed: args.run.seed };
    let mut results = Vec::new();
    for (name, question) in &questions {
        let tell = |what: String| progress.now(format!("{name}: {what}"));
        let methods = measure_one(&mut engine, question, &run_configs, runs, &tell)?;
        let expected = question.expected().map(str::to_owned);
        results.push(Compared { request: name.clone(), expected, methods });
    }
    drop(progress);
    engine.end()?;
    let comparison = Comparison::new(runs, results);
    if let Some(path) = &args.html {
        page::write(&comparison, path)?;
    }
    if args.json {
        return print_json(&comparison);
    }
    print(&render(&comparison.requests))
}

/// The methods with their settings; the one that the others are measured against first where it was
/// not asked for.
fn run_configs(args: &CompareArgs, world: usize) -> anyhow::Result<Vec<(String, RunConfig)>> {
    let mut specs = List::all(&args.methods);
    if !specs.iter().any(|spec| spec.method == REFERENCE) {
        specs.insert(0, MethodSpec::bare(REFERENCE));
    }
    let returns = Returns { logits: true, ..Returns::default() };
    let run_config = |spec: &MethodSpec| {
        let base = settings(&args.options, &args.run, world, returns);
        Ok((spec.to_string(), spec.apply(RunConfig { settings: base, threads: args.run.group.threads })))
    };
    specs.iter().map(run_config).collect()
}

fn questions(args: &CompareArgs) -> anyhow::Result<Vec<(String, Question)>> {
    let seed = args.run.seed;
    let one = |request: Option<PathBuf>| {
        let request = RequestArgs { documents: args.documents.clone(), request, query: args.query.clone() };
        request.question(args.intake.synthetic, seed)
    };
    if args.requests.is_empty() {
        return Ok(vec![("request".to_owned(), one(None)?)]);
    }
    let named = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok((name, one(Some(path.clone()))?))
    };
    args.requests.iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_an_ending_and_a_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |name: &str| page_file(&folder.path().join(name).display().to_string());
        assert!(of("page.html").is_ok() && of("page.HTML").is_ok() && page_file("page.html").is_ok());
        assert!(of("page.pdf").is_err_and(|said| said.ends_with("must end in .html")));
        assert!(of("none/page.html").is_err_and(|said| said.ends_with("its folder does not exist")));
    }
}
