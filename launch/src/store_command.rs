//! `tributary store`: looks after a folder of stored chunks, and fills it ahead of use.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use tributary_charts::table::{Layout, table};
use tributary_engine::ChunkStoreConfig;
use tributary_protocol::exit;
use tributary_store::upkeep::{Wish, list, prune, verify};
use tributary_store::{Folder, Secret};
use tributary_system::size::rounded;

use crate::args::size;
use crate::failure::Coded;
use crate::progress::Progress;
use crate::stdout::{print, print_json};
use crate::store_warm::{WarmArgs, warm};

/// Manage stored chunks, and store documents ahead of use
#[derive(Debug, Args)]
pub struct StoreCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prefill documents and store their chunks ahead of the first request that needs them; an
    /// interrupted run continues
    #[command(allow_negative_numbers = true)]
    Warm(Box<WarmArgs>),
    /// List the chunks of a folder, the most recently used first
    Ls(FolderArgs),
    /// Read every chunk of a folder and report damaged ones; exit code 65 if there is one
    Verify(VerifyArgs),
    /// Remove chunks: the least recently used, old ones, damaged ones
    Prune(PruneArgs),
    /// Summarize the content of a folder by model
    Stat(FolderArgs),
}

/// The folder of the store.
#[derive(Debug, Args)]
struct FolderArgs {
    /// Folder of the store [default: that of --chunk-store]
    #[arg(value_name = "DIR", required_unless_present = "chunk_store")]
    folder: Option<PathBuf>,
    /// Folder of the store, as an option that a file for --config may set
    #[arg(long, value_name = "DIR")]
    chunk_store: Option<PathBuf>,
    /// File with the store's secret, if it has one
    #[arg(long, value_name = "FILE")]
    chunk_store_key_file: Option<PathBuf>,
    /// Accept a folder that users other than its owner may write to
    #[arg(long)]
    chunk_store_shared: bool,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Move damaged chunks aside, as a rank does when it reads one
    #[arg(long)]
    aside: bool,
}

#[derive(Debug, Args)]
struct PruneArgs {
    #[command(flatten)]
    folder: FolderArgs,
    /// Maximum size to keep, such as 100GiB; the least recently used chunks beyond it are removed
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Remove chunks that have been unused for N days
    #[arg(long, value_name = "N")]
    days: Option<u64>,
    /// Remove files that were moved aside as damaged
    #[arg(long)]
    damaged: bool,
    /// Report the chunks to remove, without removing them
    #[arg(long)]
    dry_run: bool,
}

/// Runs the command; reports the failure. `once` runs the work of a single process.
pub fn store(command: &StoreCommand, once: impl FnOnce(&dyn Fn() -> anyhow::Result<()>) -> ExitCode) -> ExitCode {
    match &command.what {
        What::Warm(args) => warm(args),
        What::Ls(args) => once(&|| listed(args)),
        What::Verify(args) => once(&|| verified(args)),
        What::Prune(args) => once(&|| pruned(args)),
        What::Stat(args) => once(&|| counted(args)),
    }
}

impl FolderArgs {
    fn open(&self) -> anyhow::Result<(Folder, Option<Secret>)> {
        let folder = self.folder.clone().or_else(|| self.chunk_store.clone());
        let config = ChunkStoreConfig {
            folder: folder.expect("one of them is required"),
            most_bytes: None,
            reserve_bytes: 0,
            is_shared: self.chunk_store_shared,
            key_file: self.chunk_store_key_file.clone(),
            remote: None,
        };
        Ok(config.look_into()?)
    }
}

fn listed(args: &FolderArgs) -> anyhow::Result<()> {
    let (folder, secret) = args.open()?;
    let listing = list(&folder, secret.as_ref())?;
    if args.json {
        return print_json(&listing);
    }
    let rows = listing.rows();
    print(&format!("{}{}", table(&rows, Layout { left: &[0, 1, 2], commented_rows: None }), listing.useless_lines()))
}

fn verified(args: &VerifyArgs) -> anyhow::Result<()> {
    let (folder, secret) = args.folder.open()?;
    let progress = Progress::start("reading");
    let listing =
        verify(&folder, secret.as_ref(), args.aside, &mut |bytes| progress.now(format!("read {}", rounded(bytes))))?;
    drop(progress);
    let (whole, damaged) = (listing.chunks.len(), listing.useless.len());
    match args.folder.json {
        true => print_json(&listing)?,
        false => {
            print(&format!("{}{whole} chunks are as they were written, {damaged} are not\n", listing.useless_lines()))?
        }
    }
    if damaged == 0 {
        return Ok(());
    }
    let reason = format!("{damaged} of the chunks are of no use");
    Err(Coded { exit_code: exit::INTEGRITY, reason }.into())
}

fn pruned(args: &PruneArgs) -> anyhow::Result<()> {
    let (folder, _) = args.folder.open()?;
    let unused_for = args.days.map(|days| Duration::from_secs(days.saturating_mul(86_400)));
    let (damaged, dry_run) = (args.damaged, args.dry_run);
    let pruned = prune(&folder, &Wish { most_bytes: args.size, unused_for, damaged, dry_run })?;
    if args.folder.json {
        return print_json(&pruned);
    }
    let verb = if dry_run { "would be removed" } else { "removed" };
    let (bytes, left) = (rounded(pruned.bytes), rounded(pruned.left_bytes));
    let text = format!("{} chunks ({bytes}) and {} damaged files {verb}; ", pruned.chunks, pruned.damaged);
    print(&format!("{text}{} chunks ({left}) stay\n", pruned.left))
}

fn counted(args: &FolderArgs) -> anyhow::Result<()> {
    let (folder, secret) = args.open()?;
    let listing = list(&folder, secret.as_ref())?;
    let (totals, free) = (listing.totals(), folder.free_bytes()?);
    if args.json {
        return print_json(
            &serde_json::json!({"models": totals, "useless": listing.useless.len(), "free_bytes": free}),
        );
    }
    let rest = format!("{} files of no use; {} are free on the disk\n", listing.useless.len(), rounded(free));
    print(&format!("{}{rest}", table(&listing.total_rows(), Layout { left: &[0, 1], commented_rows: None })))
}
