//! `tributary methods`: the list of methods.

use clap::Args;
use tributary_protocol::{METHODS, Method};
use tributary_study::methods::Methods;

use crate::stdout::{print, print_json};

/// List the methods, or describe the named ones: claim, source, cost, options
#[derive(Debug, Args)]
pub struct MethodsArgs {
    /// Methods to describe; without names all are listed
    #[arg(value_name = "METHOD", value_parser = Method::named)]
    names: Vec<&'static Method>,
    /// Print everything as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// Returns an error if the list cannot be written.
pub fn methods(args: &MethodsArgs) -> anyhow::Result<()> {
    let asked = if args.names.is_empty() { &METHODS[..] } else { &args.names };
    let methods = Methods::new(asked);
    match (args.json, args.names.is_empty()) {
        (true, _) => print_json(&methods),
        (false, true) => print(&methods.table()),
        (false, false) => print(&methods.pages()),
    }
}
