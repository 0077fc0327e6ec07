//! Gives the program the commit that it was built from, if the sources are in a git repository and
//! git is installed. Also makes the linker merge functions with the same code.

use std::path::Path;
use std::process::Command;

fn main() {
    fold_identical_code();
    // Inputs of the answer: sources, and the place where git keeps the commit.
    let folders = [
        "launch",
        "service",
        "study",
        "quality",
        "load",
        "mpirun",
        "train",
        "store",
        "engine",
        "coordinator",
        "worker",
        "comm",
        "protocol",
        "kernels",
        "charts",
        "system",
    ];
    for folder in folders {
        println!("cargo:rerun-if-changed=../{folder}");
    }
    println!("cargo:rerun-if-changed=../Cargo.lock");
    if let Some(head) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        // Relative to the folder where git ran.
        let path = Path::new(&head);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    // A source tree inside another repository is not that repository's commit.
    if git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_none() {
        return;
    }
    let differs =
        git(&["status", "--porcelain", "--untracked-files=no", "--", ".."]).is_some_and(|text| !text.is_empty());
    println!("cargo:rustc-env=TRIBUTARY_REVISION={revision}{}", if differs { "-dirty" } else { "" });
}

/// Half a megabyte of the command is duplicate code, made from one generic function for several
/// types. Rust does not promise distinct addresses of functions, so one copy serves all. lld, with
/// which rustc links on this target, merges them; other linkers may not support it.
fn fold_identical_code() {
    let target = std::env::var("TARGET").unwrap_or_default();
    if target == "x86_64-unknown-linux-gnu" {
        println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    }
}

/// Output of git in this crate's folder; none if it is not installed or refuses.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
