//! A model's tokenizer, tried before this process reads it.
//!
//! The file comes from other people, and a library reads it: a hostile file can exhaust memory or
//! abort the process. The command therefore starts itself once more, with bounds on memory and
//! time, and reads the file there first.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, setrlimit};
use tributary_coordinator::{Template, Tokenizer};
use tributary_protocol::exit;
use tributary_system::memory;

use crate::error::Result;

/// The name of the command that tries a folder's tokenizer. A program that calls [`answered_here`]
/// answers it with [`run`].
pub const COMMAND: &str = "try-tokenizer";

/// Address space of a trial, besides what the program itself has and what the file's length allows.
const BYTES: u64 = 1 << 30;

/// An option of the allocator, which takes a GiB of address space at once without it.
const SMALL_STEPS: (&str, &str) = ("MIMALLOC_ARENA_RESERVE", "32MiB");

/// Address space for each byte of the file: the largest tokenizers in use take some 15.
const BYTES_PER_BYTE: u64 = 24;

/// Processor time of a trial. The largest tokenizers in use take a second.
const SECONDS: u64 = 45;

/// Whether this process's program answers [`COMMAND`].
static HERE: AtomicBool = AtomicBool::new(false);

/// Says that this process's program answers [`COMMAND`]: from now on every tokenizer is tried
/// first.
pub fn answered_here() {
    HERE.store(true, Ordering::Relaxed);
}

/// A folder's tokenizer, tried first where the program can.
///
/// # Errors
/// Fails as [`Tokenizer::from_folder`] does. Returns [`tributary_coordinator::Error::Tokenizer`] if
/// a trial ended its process.
pub fn tokenizer(folder: &Path, template: Option<&Template>) -> Result<Tokenizer> {
    if HERE.load(Ordering::Relaxed) {
        tried(Path::new("/proc/self/exe"), folder)?;
    }
    Ok(Tokenizer::from_folder(folder, template)?)
}

/// Lets a program try a folder's tokenizer.
fn tried(program: &Path, folder: &Path) -> Result<()> {
    let mut trial = Command::new(program);
    trial
        .env(SMALL_STEPS.0, SMALL_STEPS.1)
        .arg(COMMAND)
        .arg("--")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match trial.status() {
        // A tokenizer that is refused is refused here too, in words.
        Ok(status) if status.code().is_some() => Ok(()),
        Ok(status) => {
            let file = folder.join("tokenizer.json");
            let limits = format!("{} GiB and {SECONDS} s", BYTES >> 30);
            let cause = format!("{}: reading it ended a process that may take {limits} ({status})", file.display());
            Err(tributary_coordinator::Error::Tokenizer(cause).into())
        }
        Err(error) => {
            tracing::warn!("the tokenizer is read without a trial: no process for it: {error}");
            Ok(())
        }
    }
}

/// Runs the trial: reads a folder's tokenizer within the bounds and encodes a few texts. Returns
/// the exit code.
pub fn run(folder: &Path) -> u8 {
    let length = std::fs::metadata(folder.join("tokenizer.json")).map_or(0, |file| file.len());
    let more = BYTES.saturating_add(length.saturating_mul(BYTES_PER_BYTE));
    let bounds = [
        (Resource::As, memory::mapped_bytes().unwrap_or(0).saturating_add(more)),
        (Resource::Cpu, SECONDS),
        (Resource::Core, 0),
    ];
    for (resource, most) in bounds {
        // A bound that is lower already stays.
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    }
    match Tokenizer::from_folder(folder, None) {
        Ok(_) => 0,
        Err(_) => exit::USAGE,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_trial_that_ends_by_a_signal_refuses_the_tokenizer() {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        let ends = |how: &str| {
            std::fs::write(&program, format!("#!/bin/sh\n{how}\n")).expect("written");
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("a program");
            tried(&program, Path::new("/a/model")).map_err(|error| (error.exit_code(), error.to_string()))
        };
        assert_eq!((ends("exit 0"), ends("exit 64")), (Ok(()), Ok(())));
        let (code, said) = ends("kill -ABRT $$").expect_err("it ended");
        assert_eq!(code, exit::USAGE);
        assert!(said.contains("/a/model/tokenizer.json") && said.contains("1 GiB and 45 s"), "{said}");
    }
}
