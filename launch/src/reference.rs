//! `tributary completions` and `tributary man`: completions of shells and manual pages, from clap's
//! own description.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::{Shell, generate};
use clap_mangen::{Man, generate_to};

use crate::stdout::print;

const NAME: &str = "tributary";

/// Print a completion script for a shell, such as for bash: source <(tributary completions bash)
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the command's manual page, or write one for it and for each of its subcommands
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Folder for tributary.1 and the other pages, created if it is missing. To read one: man -l
    /// DIR/tributary-serve.1
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Prints the script. It offers no command that is hidden.
///
/// # Errors
/// Returns an error if standard output fails.
pub fn completions(command: &Command, args: &CompletionsArgs) -> anyhow::Result<()> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown = Command::new(NAME).args(command.get_arguments()).subcommands(shown.cloned());
    let mut script = Vec::new();
    generate(args.shell, &mut shown, NAME, &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the page, or writes all.
///
/// # Errors
/// Returns an error if an operation of the operating system fails, with the folder's name.
pub fn man(command: Command, args: &ManArgs) -> anyhow::Result<()> {
    if let Some(folder) = &args.folder {
        let written = std::fs::create_dir_all(folder).and_then(|()| generate_to(command, folder));
        return written.with_context(|| format!("cannot write to {}", folder.display()));
    }
    // As the pages in a folder, without one for `help`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    print(&String::from_utf8_lossy(&page))
}
