//! `tributary prefill`: one request, one method, one answer and what it cost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tributary_comm::wire::Returns;

use crate::args::{IntakeArgs, MethodArgs, ModelArgs, RunArgs, settings};
use crate::progress::Progress;
use crate::ranks::{self, Ranks};
use crate::request::{Question, RequestArgs};
use crate::session::{Answered, Session, Way, follow};
use crate::stdout::{print, print_json};
use crate::{dump, highlight};

/// Answers one request
#[derive(Debug, Args)]
pub struct PrefillArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    intake: IntakeArgs,
    /// full, ring, all-gather (exact); none, random, epic, infoflow, prophetkv, relay
    #[arg(long, default_value = "infoflow", help_heading = "Method")]
    method: String,
    #[command(flatten)]
    options: MethodArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Print everything as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write request.json and result.safetensors for checking against other implementations
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    dump: Option<PathBuf>,
    /// Print the context with the recomputed tokens highlighted
    #[arg(long, help_heading = "Output")]
    show_selected: bool,
}

/// Runs the command; says what went wrong.
pub fn prefill(args: &PrefillArgs) -> ExitCode {
    ranks::run(&args.run.group, |ranks| match ranks {
        Ranks::Process(process) if !process.leads() => follow(&args.model, &args.intake, &args.run, process),
        _ => lead(args, ranks),
    })
}

fn lead(args: &PrefillArgs, ranks: &mut Ranks) -> anyhow::Result<()> {
    let world = ranks.world();
    let returns = Returns { logits: args.dump.is_some(), scores: args.dump.is_some() };
    let settings = settings(&args.method, &args.options, &args.run, world, returns);
    let way = Way { settings, threads: args.run.group.threads };
    if let Some(folder) = &args.dump {
        dump::check(folder)?;
    }
    let mut session = Session::open(&args.model, &args.intake, &args.run, ranks)?;
    let question = Question::from_args(&args.request, &args.intake, args.run.seed)?;
    session.check(&question, &way)?;
    let progress = Progress::start("loading the weights");
    session.start(&way)?;
    progress.now(format!("{} on {} ranks", args.method, world));
    let answered = session.answer(&question, &way)?;
    drop(progress);
    session.end()?;
    if let Some(folder) = &args.dump {
        dump::write(folder, &answered)?;
    }
    show(args, &answered)
}

fn show(args: &PrefillArgs, answered: &Answered) -> anyhow::Result<()> {
    fail::fail_point!("launch::output");
    if args.json {
        let mut object = serde_json::to_value(&answered.report)?;
        if args.show_selected {
            object["selected_rows"] = serde_json::json!(answered.answer.outcome.selected);
        }
        return print_json(&object);
    }
    if args.show_selected {
        print(&format!("{}\n", highlight::selected(answered)))?;
    }
    print(&answered.report.render())
}
