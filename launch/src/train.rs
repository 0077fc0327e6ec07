//! `tributary train`: adapters and small models are learned, on the ranks of this run.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tributary_coordinator::Prefix;
use tributary_engine::Config;
use tributary_quality::{AdapterKind, Asked, Objective, Reader, Settings, Sizes, Training, Wish, intake};

use crate::args::{ModelArgs, ReachArgs};
use crate::exporting::MetricsArgs;
use crate::progress::Progress;
use crate::ranks;
use crate::serve::refused;
use crate::stdout::print;

/// Train an adapter, a few weights beside an unchanged model, or a small model that selects tokens
/// for it
#[derive(Debug, Args)]
pub struct TrainArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Train vectors around every chunk that let independently prefilled chunks be read as one
    /// context (KV Packet)
    KvPacket {
        #[command(flatten)]
        learn: Box<LearnArgs>,
        /// Prefix before the first chunk of the teacher's prompt [default: the sample's own prefix,
        /// as in the paper]
        #[arg(long, value_name = "bos|none|TEXT", help_heading = "Samples")]
        teacher_prefix: Option<Prefix>,
        /// Number of vectors before each chunk
        #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Training")]
        head: u32,
        /// Number of vectors after each chunk
        #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Training")]
        tail: u32,
    },
    /// Train vectors after the prompt, and low-rank matrices for them, that predict which prompt
    /// tokens an answer will need (LookaheadKV)
    #[command(mut_arg("prefix", |arg| arg.default_values(["bos"])), mut_arg("lr", |arg| arg.default_value("0.001")))]
    Lookahead {
        #[command(flatten)]
        learn: Box<LearnArgs>,
        /// Number of vectors after the prompt
        #[arg(long, value_name = "N", default_value_t = 32, help_heading = "Training")]
        rows: u32,
        /// Rank of the low-rank matrices beside each linear layer; 0: none
        #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Training")]
        rank: u32,
        /// Numerator of the scale of the low-rank matrices' products, alpha / rank
        #[arg(long, value_name = "A", default_value_t = 32.0, help_heading = "Training")]
        alpha: f64,
    },
    /// Train a small model for `--aux-model` that predicts the context tokens that the query
    /// attends to in the main model (CacheClip)
    #[command(mut_arg("prefix", |arg| arg.default_values(["bos"])), mut_arg("lr", |arg| arg.default_value("0.002")))]
    #[command(mut_arg("aux_model", |arg| arg.help(GOES_ON).long_help(GOES_ON)))]
    Auxiliary {
        #[command(flatten)]
        learn: Box<LearnArgs>,
        /// Training objective: the next token (language), or the context tokens that the query
        /// attends to in the main model (select)
        #[arg(long, value_name = "language|select", default_value = "select", help_heading = "Training")]
        objective: Objective,
        #[command(flatten)]
        sizes: SizeArgs,
    },
}

/// Message about `--aux-model` where such a model is trained.
const GOES_ON: &str =
    "Folder of a small model to train further, with the tokenizer of --model [default: random weights from --seed]";

/// Sizes of a small model that starts with random weights.
#[derive(Debug, Args)]
#[command(next_help_heading = "Training")]
struct SizeArgs {
    /// Number of decoder layers
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "aux_model")]
    layers: usize,
    /// Hidden size
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with = "aux_model")]
    hidden: usize,
    /// Number of attention heads
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "aux_model")]
    heads: usize,
    /// Intermediate size of the MLP
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "aux_model")]
    intermediate: usize,
}

/// Samples, training settings, run and output.
#[derive(Debug, Args)]
struct LearnArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Training samples: hops, the language of examples/models/demo, or a FILE.jsonl of your own
    /// rows (docs/quality.md)
    #[arg(long, alias = "data", value_name = "hops|FILE.jsonl", help_heading = "Samples")]
    suite: String,
    /// Tasks of the suite [default: all]
    #[arg(long, value_name = "TASK,..", value_delimiter = ',', help_heading = "Samples")]
    tasks: Vec<String>,
    /// Total number of samples, over the tasks in turn; a file may have fewer
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = "Samples")]
    samples: usize,
    /// Prefix before the first chunk, as in `prefill`; of several, each round of the tasks takes
    /// the next
    #[arg(long, value_name = "bos|none|TEXT", num_args = 1.., default_values = ["bos", "none"], help_heading = "Samples")]
    prefix: Vec<Prefix>,
    /// Seed of samples, initial weights and sample order; evaluations use seed 0 by default
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Samples")]
    seed: u64,
    /// Number of epochs; 0 writes the initial weights
    #[arg(long, value_name = "N", default_value_t = 30, help_heading = "Training")]
    epochs: u64,
    /// Batch size: samples of a step, over all ranks
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Training")]
    batch: usize,
    /// Peak learning rate
    #[arg(long, value_name = "RATE", default_value_t = 5e-4, help_heading = "Training")]
    lr: f64,
    /// Share of the steps in which the learning rate rises; it then falls to 0
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Training")]
    warmup: f64,
    /// Maximum norm of a step's gradient; larger gradients are scaled down
    #[arg(long, value_name = "NORM", default_value_t = 1.0, help_heading = "Training")]
    clip: f64,
    /// Weight decay of AdamW
    #[arg(long, value_name = "RATE", default_value_t = 0.0, help_heading = "Training")]
    weight_decay: f64,
    /// Print the planned training and the memory that it needs, and train nothing
    #[arg(long, help_heading = "Run", conflicts_with = "resume")]
    dry_run: bool,
    /// Continue from the checkpoint in --out, bit for bit, with the same model, samples and options
    #[arg(long, help_heading = "Run")]
    resume: bool,
    /// Total number of steps after which the run ends with a checkpoint [default: all steps]
    #[arg(long, value_name = "N", help_heading = "Run")]
    stop_after: Option<u64>,
    /// Folder for the trained weights and the training report
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: PathBuf,
    /// Number of ranks, which share each step's samples; under a launcher it must equal the
    /// launcher's number [default: 1, or the launcher's]
    #[arg(long, visible_alias = "world", value_name = "N", help_heading = "Ranks")]
    world_size: Option<usize>,
    /// Compute threads of each rank
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Ranks")]
    threads: usize,
    #[command(flatten)]
    reach: ReachArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Runs the command; reports the failure.
pub fn train(args: &TrainArgs) -> ExitCode {
    let (args, wish, teacher) = match &args.what {
        What::KvPacket { learn, teacher_prefix, head, tail } => {
            (learn, Wish::Adapter(AdapterKind::KvPacket { head: *head, tail: *tail }), teacher_prefix.clone())
        }
        What::Lookahead { learn, rows, rank, alpha } => {
            (learn, Wish::Adapter(AdapterKind::Lookahead { rows: *rows, rank: *rank, alpha: *alpha }), None)
        }
        What::Auxiliary { learn, objective, sizes } => {
            let SizeArgs { layers, hidden, heads, intermediate } = *sizes;
            let sizes = Sizes { layers, hidden, heads, intermediate };
            let (start, beside) = (learn.model.aux_model.clone(), learn.model.model.clone());
            (learn, Wish::Auxiliary(Reader { objective: *objective, sizes, start, beside }), None)
        }
    };
    let group = args.reach.group(args.world_size, args.threads);
    let config = Config { model: args.model.config(args.seed), intake: intake(), group };
    ranks::run(&config.group, |ranks| {
        if !ranks.leads() {
            return Ok(args.training(wish, teacher).run(&config, ranks, &|_, _| ()).map(drop)?);
        }
        let study = args.out.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let exporter = args.metrics.start("train", study, ranks.world(), None)?;
        exporter.trains();
        let progress = Progress::start("learning");
        let trained = args.training(wish, teacher).run(&config, ranks, &|row, steps| {
            exporter.trained(row.loss, row.gradient_norm, row.step as f64 / steps as f64);
            progress.now(row.text(steps));
        });
        drop(progress);
        let exported = exporter.end(trained.is_ok());
        print(&trained?.text())?;
        exported.map_err(refused)
    })
}

impl LearnArgs {
    fn training(&self, wish: Wish, teacher_prefix: Option<Prefix>) -> Training {
        let Self { epochs, batch, lr: learning_rate, warmup, clip, weight_decay: decay, seed, samples, .. } = *self;
        let (suite, tasks) = (self.suite.clone(), self.tasks.clone());
        Training {
            asked: Asked { suite, tasks, samples, seed, world: 1, threads: 1, ..Asked::default() },
            prefixes: self.prefix.clone(),
            teacher_prefix,
            settings: Settings { epochs, batch, learning_rate, warmup, clip, decay, seed },
            wish,
            out: self.out.clone(),
            resume: self.resume,
            stop_after: self.stop_after,
            dry_run: self.dry_run,
        }
    }
}
