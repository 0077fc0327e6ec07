//! `tributary completions` and `tributary man`: completions of shells and manual pages, from clap's
//! own description.

use std::path::PathBuf;

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, Args, Command, Id};
use clap_complete::{Shell, generate};
use clap_mangen::{Man, generate_to};
use tributary_methods::{Kind, METHODS, MethodOption};

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

/// Arguments that name methods.
const NAMING: [&str; 4] = ["method", "methods", "methods_allowed", "names"];

/// Completes keys after `NAME:` in bash, whose words end at colons and at equals signs; the rest as
/// the script does. `KEYS` stands for a line of `case` for each method.
const KEYS_IN_BASH: &str = r#"
_tributary_method() {
    local word="${COMP_LINE:0:COMP_POINT}" keys=""
    word="${word##*[ ,]}"
    word="${word#--method*=}"
    local key="${word##*:}"
    if [[ ${word} == *:* && ${key} != *=* ]]; then
        case "${word%%:*}" in
KEYS        esac
    fi
    if [[ -z ${keys} ]]; then
        _tributary "$@"
        return
    fi
    compopt -o nospace
    COMPREPLY=($(compgen -P "${2%"${key}"}" -W "${keys}" -- "${key}"))
}
if (( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404 )); then
    complete -F _tributary_method -o nosort -o bashdefault -o default tributary
fi
"#;

/// Prints the script. It offers no command that is hidden.
///
/// # Errors
/// Returns an error if standard output fails.
pub fn completions(command: &Command, args: &CompletionsArgs) -> anyhow::Result<()> {
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let mut shown = with_methods(Command::new(NAME).args(command.get_arguments()).subcommands(shown.cloned()));
    let mut script = Vec::new();
    generate(args.shell, &mut shown, NAME, &mut script);
    let keys = if args.shell == Shell::Bash { keys_in_bash() } else { String::new() };
    print(&format!("{}{keys}", String::from_utf8_lossy(&script)))
}

/// A command whose arguments that name methods offer the names, for its script alone.
fn with_methods(command: Command) -> Command {
    let offered = METHODS.map(|method| PossibleValue::new(method.name).help(method.summary));
    let names = |arg: Arg| arg.value_parser(PossibleValuesParser::new(offered.clone()));
    let naming = command.get_arguments().map(Arg::get_id).filter(|id| NAMING.contains(&id.as_str()));
    let naming: Vec<Id> = naming.cloned().collect();
    let inner: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let command = naming.into_iter().fold(command, |command, id| command.mut_arg(id, names));
    inner.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_methods))
}

fn keys_in_bash() -> String {
    let key =
        |option: &MethodOption| format!("{}{}", option.key, if matches!(option.kind, Kind::Flag) { "" } else { "=" });
    let keys = METHODS.map(|method| {
        let keys: Vec<String> = method.all_options().map(key).collect();
        format!("            {}) keys=\"{}\" ;;\n", method.name, keys.join(" "))
    });
    KEYS_IN_BASH.replace("KEYS", &keys.concat())
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
