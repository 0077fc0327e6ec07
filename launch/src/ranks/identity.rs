//! What every rank must have in common: program, settings, model.

use std::path::Path;

use tributary_comm::wire::PROTOCOL_VERSION;
use tributary_worker::fingerprint;

use super::agreement::Facts;
use crate::args::{GroupArgs, ModelArgs};
use crate::model::ModelFolder;

/// The facts of this rank.
///
/// # Errors
/// A file of the model or the program that cannot be read.
pub fn facts(folder: &ModelFolder, model: &ModelArgs, run: &GroupArgs, world: usize) -> anyhow::Result<Facts> {
    let hash = fingerprint(&folder.path, folder.format())?;
    Ok(vec![
        ("protocol", PROTOCOL_VERSION.to_string()),
        ("build", build()?),
        ("config", settings(model, run)),
        ("model", model_hash(&hash)),
        ("dtype", format!("{:?}", model.dtype)),
        ("world", world.to_string()),
    ])
}

/// Version and hash of this program; a test can make it another one's.
fn build() -> anyhow::Result<String> {
    fail::fail_point!("launch::build", |value| Ok(value.unwrap_or_default()));
    let mut hasher = blake3::Hasher::new();
    hasher.update_mmap(Path::new("/proc/self/exe"))?;
    Ok(format!("{} {}", env!("CARGO_PKG_VERSION"), &hasher.finalize().to_hex()[..16]))
}

fn model_hash(hash: &[u8; 32]) -> String {
    fail::fail_point!("launch::model", Option::unwrap_or_default);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The settings that shape what a rank does and that no plan carries.
fn settings(model: &ModelArgs, run: &GroupArgs) -> String {
    fail::fail_point!("launch::config", Option::unwrap_or_default);
    format!("kernels {:?}, collective timeout {} s", model.kernels, run.collective_timeout)
}
