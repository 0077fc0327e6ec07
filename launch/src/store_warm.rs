//! `tributary store warm`: documents are prefilled ahead of use, some at a time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use tributary_coordinator::Document;
use tributary_engine::{Config, Engine, Ranks, RunConfig, Warmed, WarmedAll};
use tributary_methods::KeepPerChunk;
use tributary_planner::RequestSettings;
use tributary_protocol::{Packets, exit};

use crate::args::{IntakeArgs, ModelArgs, RunArgs};
use crate::config::config;
use crate::failure::{Coded, usage};
use crate::help;
use crate::progress::Progress;
use crate::ranks;
use crate::stdout::{print, print_json};

/// Documents that are handed to the ranks together.
const TOGETHER: usize = 8;

/// Longest time of writing chunks.
const LAST_WRITES: Duration = Duration::from_secs(600);

/// Documents to store, and the ranks that prefill them.
#[derive(Debug, Args)]
pub struct WarmArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Documents: a folder of text files, or a file with one JSON document a line, TEXT or
    /// {"title", "text"}
    #[arg(long, value_name = "DIR|FILE.jsonl", help_heading = "Request")]
    documents: PathBuf,
    /// System text of the chats that will use the documents; it precedes them and changes their
    /// chunks
    #[arg(long, value_name = "TEXT", help_heading = "Request")]
    system: Option<String>,
    #[arg(long, value_name = "N|N%[:METHOD]", help = help::keep_per_chunk(), help_heading = "Request")]
    keep_per_chunk: Option<KeepPerChunk>,
    #[command(flatten)]
    intake: IntakeArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Print the result as one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Runs the command; reports the failure.
pub fn warm(args: &WarmArgs) -> ExitCode {
    let config = config(&args.model, &args.intake, &args.run);
    ranks::lead(&config, |ranks| lead(args, &config, ranks))
}

fn lead(args: &WarmArgs, config: &Config, ranks: &mut Ranks) -> anyhow::Result<()> {
    if config.group.chunk_store.is_none() {
        return Err(usage("nothing would stay: name the folder of the store with --chunk-store"));
    }
    let documents = Document::corpus(&args.documents)?;
    let world = ranks.world();
    let timeout_ms = args.run.group.reach.collective_timeout.saturating_mul(1000);
    let (keep_chunks, packets, keep_per_chunk) = (true, Packets::IfAny, args.keep_per_chunk);
    let settings =
        RequestSettings { world, timeout_ms, keep_chunks, packets, keep_per_chunk, ..RequestSettings::default() };
    let run_config = RunConfig { settings, threads: args.run.group.threads };
    let mut engine = Engine::open(config, ranks)?;
    engine.keep_chunks(&[world]);
    let progress = Progress::start("loading the weights");
    engine.start(&run_config)?;
    let (begun, mut sum, mut refused) = (Instant::now(), Warmed::default(), Vec::new());
    for (place, some) in documents.chunks(TOGETHER).enumerate() {
        for warmed in engine.warm_each(some, args.system.as_deref(), &run_config) {
            match warmed {
                Ok(warmed) => sum = sum.and(warmed),
                // A document that is too long for the model, or has no token, is left out; ranks
                // that are lost are the end.
                Err(error) if error.exit_code() == exit::USAGE => refused.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        // Nothing piles up that the disk does not take.
        sum = sum.and(engine.written(LAST_WRITES));
        let (done, seconds) = ((place * TOGETHER + some.len()), begun.elapsed().as_secs_f64());
        let rate = sum.computed_rows as f64 / seconds.max(1e-9);
        progress.now(format!("{done} of {} documents, {rate:.0} tokens/s", documents.len()));
    }
    drop(progress);
    engine.end()?;
    let told = WarmedAll { documents: documents.len(), sum, refused, seconds: begun.elapsed().as_secs_f64() };
    if args.json {
        print_json(&serde_json::json!({
            "schema": "tributary.warm/1",
            "documents": told.documents, "chunks": sum.chunks, "tokens": sum.tokens, "chunks_there": sum.there,
            "computed_rows": sum.computed_rows, "chunks_lost": sum.lost, "refused": told.refused, "seconds": told.seconds,
        }))?;
    } else {
        print(&told.text())?;
    }
    told.loss().map_or(Ok(()), |reason| Err(Coded { exit_code: exit::DISK, reason }.into()))
}
