//! `tributary prefill`: one request, one method, one answer and its cost.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tributary_coordinator::{Report, Request};
use tributary_engine::{Answered, Config, Engine, Question, Ranks, RunConfig, ask_all, highlighted};
use tributary_methods::MethodSpec;
use tributary_protocol::Returns;
use tributary_study::dump;

use crate::args::{IntakeArgs, MethodArgs, ModelArgs, RunArgs, settings};
use crate::config::config;
use crate::export_kv::Target;
use crate::exporting::MetricsArgs;
use crate::failure::usage;
use crate::help;
use crate::progress::Progress;
use crate::ranks;
use crate::request::RequestArgs;
use crate::serve::refused;
use crate::stdout::{print, print_json};

/// Answer one request, or the requests of a file in turn
#[derive(Debug, Args)]
pub struct PrefillArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// File of requests, one JSON object a line, answered by the same ranks; repeated chunks come
    /// from the chunk cache
    #[arg(
        long,
        value_name = "FILE.jsonl",
        conflicts_with_all = ["documents", "request", "query", "synthetic", "dump"],
        help_heading = "Request"
    )]
    requests: Option<PathBuf>,
    /// With --requests: number of concurrent requests; answers are printed in the order of the file
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096),
        requires = "requests",
        help_heading = "Request"
    )]
    concurrency: usize,
    #[command(flatten)]
    intake: IntakeArgs,
    #[arg(long, default_value = help::default_method(), value_name = "NAME[:KEY=VALUE]..", help = help::methods(), help_heading = "Method")]
    method: MethodSpec,
    #[command(flatten)]
    options: MethodArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Print everything as one JSON object; with --requests one object a line
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Folder for request.json and result.safetensors, to check against other implementations
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    dump: Option<PathBuf>,
    /// Print the context with the recomputed tokens highlighted
    #[arg(long, help_heading = "Output")]
    show_selected: bool,
    /// Write the prompt's keys and values as pages of SGLang's file back-end
    /// (docs/hand-over.md); what a request must send to find approximate ones is printed
    #[arg(long, value_name = "sglang:DIR[,KEY=VALUE]..", conflicts_with = "requests", help_heading = "Output")]
    export_kv: Option<Target>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Runs the command; reports the failure.
pub fn prefill(args: &PrefillArgs) -> ExitCode {
    let config = config(&args.model, &args.intake, &args.run);
    ranks::lead(&config, |ranks| lead(args, &config, ranks))
}

fn lead(args: &PrefillArgs, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    let world = ranks.world();
    if args.requests.is_none() && (args.metrics.metrics_listen.is_some() || args.metrics.metrics_file.is_some()) {
        return Err(usage(
            "--metrics-listen and --metrics-file: one request is over at once; give --requests FILE.jsonl",
        ));
    }
    let exporter = args.metrics.start("prefill", String::new(), world, None)?;
    let returns =
        Returns { logits: args.dump.is_some(), scores: args.dump.is_some(), logprobs: None, prompt_logprobs: None };
    if let Some(folder) = &args.dump {
        dump::check(folder)?;
    }
    let mut engine = Engine::open(config, ranks)?;
    let questions = match &args.requests {
        Some(path) => Request::from_lines(path)?.into_iter().map(Question::Text).collect(),
        None => vec![args.request.question(args.intake.synthetic, args.run.seed)?],
    };
    let mut settings = settings(&args.options, &args.run, world, returns).set(&args.method);
    if args.requests.is_some() || config.group.chunk_store.is_some() {
        (settings.reuse, settings.reuses_query, settings.keep_chunks) = (1.0, true, true);
        engine.keep_chunks(&[world]);
    }
    settings.hands_over = args.export_kv.is_some();
    let run_config = RunConfig { settings, threads: args.run.group.threads };
    for question in &questions {
        engine.check(question, &run_config)?;
    }
    let name = config.model.folder.display().to_string();
    if let Some(target) = &args.export_kv {
        target.check(&engine, &name)?;
    }
    let progress = Progress::start("loading the weights");
    engine.start(&run_config)?;
    progress.now(format!("{} on {} ranks", args.method, world));
    if args.requests.is_none() {
        let answered = engine.answer(&questions[0], &run_config)?;
        let target = args.export_kv.as_ref();
        let exported = target.map(|target| target.write(&mut engine, &answered, (&run_config, &name))).transpose()?;
        drop(progress);
        engine.end()?;
        return show_alone(args, &answered, exported);
    }
    drop(progress);
    let count = questions.len();
    let mut show = |index, answered: &Answered| {
        exporter.answered(answered);
        exporter.progress((index + 1) as f64 / count as f64);
        show_one(args, (index, count), answered)
    };
    exporter.watch(&mut engine);
    let asked = ask_all(&mut engine, &run_config, &questions, args.concurrency, &mut show);
    // The request's failure is in the file too, and matters more than a failure to write the file.
    let exported = exporter.end(asked.is_ok());
    asked?;
    engine.end()?;
    exported.map_err(refused)
}

/// Shows the answer to the only request, writes its dump, and says what was exported.
fn show_alone(args: &PrefillArgs, answered: &Answered, exported: Option<String>) -> anyhow::Result<()> {
    if let Some(folder) = &args.dump {
        dump::write(folder, answered)?;
    }
    show(args, answered)?;
    match exported {
        Some(lines) if args.json => eprint!("{lines}"),
        Some(lines) => print(&lines)?,
        None => {}
    }
    Ok(())
}

/// Shows the answer to one of many requests.
fn show_one(args: &PrefillArgs, (index, count): (usize, usize), answered: &Answered) -> anyhow::Result<()> {
    if args.json {
        return print(&format!("{}\n", serde_json::to_string(&object(args, answered))?));
    }
    print(&format!("request {} of {count}\n", index + 1))?;
    show(args, answered)?;
    print("\n")
}

/// The report of a request, for programs.
fn object(args: &PrefillArgs, answered: &Answered) -> Report {
    let selected_rows = args.show_selected.then(|| answered.answer.outcome.selected.clone());
    Report { selected_rows, ..answered.report.clone() }
}

fn show(args: &PrefillArgs, answered: &Answered) -> anyhow::Result<()> {
    fail::fail_point!("launch::output");
    if args.json {
        return print_json(&object(args, answered));
    }
    if args.show_selected {
        let marks = if std::io::stdout().is_terminal() { ("\u{1b}[7m", "\u{1b}[27m") } else { ("»", "«") };
        print(&format!("{}\n", highlighted(answered, marks)))?;
    }
    print(&answered.report.render())
}
