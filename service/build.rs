//! Tells the metrics which commit the program was built from, if the sources stand in a git repository and git is there.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=src");
    if let Some(head) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        // Relative to the folder where git ran.
        let path = Path::new(&head);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    // A source tree inside another repository is not that repository's commit.
    let is_ours = git(&["ls-files", "--error-unmatch", "Cargo.toml"]).is_some();
    if let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| is_ours) {
        println!("cargo:rustc-env=TRIBUTARY_REVISION={revision}");
    }
}

/// What git says in this crate's folder; nothing if it is not there or refuses.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
