//! A command on the ranks of this run.

use std::process::ExitCode;

use tributary_engine::{Config, GroupConfig, Ranks, follow, marker};

use crate::failure::{ending, exit_code, one_line};

/// Runs a command: `body` is called in every process, once all have met. Reports the failure, and
/// ends the others with this process.
pub fn run(group: &GroupConfig, body: impl FnOnce(&mut Ranks) -> anyhow::Result<()>) -> ExitCode {
    let mut ranks = match Ranks::find(group) {
        Ok(ranks) => ranks,
        Err(error) => refuse(&error.into()),
    };
    match body(&mut ranks) {
        Ok(()) => {
            if ranks.leads() {
                marker::completed();
            }
            ExitCode::SUCCESS
        }
        Err(error) => ranks.fail(&ending(&error)),
    }
}

/// Runs a command whose coordinator `body` is: it is called in the process of rank 0; the others
/// load the model and serve.
pub fn lead(config: &Config, body: impl FnOnce(&mut Ranks) -> anyhow::Result<()>) -> ExitCode {
    run(&config.group, |ranks| if ranks.leads() { body(ranks) } else { Ok(follow(config, ranks)?) })
}

/// Says in one line why this process ends before it has met others.
pub fn refuse(error: &anyhow::Error) -> ! {
    tributary_engine::refuse(&one_line(error), exit_code(error))
}
