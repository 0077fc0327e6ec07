//! The `tributary` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tributary::command::main()
}
