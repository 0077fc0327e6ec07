//! Provenance of a study's numbers: program, machine, model, command line.

use std::time::SystemTime;

use crate::schema::Provenance;
use tributary_coordinator::date;
use tributary_engine::{Engine, program_hash};
use tributary_planner::forecast::Profile;

use tributary_system::{host, memory, processor, program};

use crate::error::Result;

/// Name of an absent profile.
pub const NO_PROFILE: &str = "none";

/// Facts about this process.
///
/// # Errors
/// Returns an error if the program or the model cannot be read.
pub fn provenance(engine: &Engine<'_>, profile: Option<&Profile>) -> Result<Provenance> {
    let model = engine.folder().hash().get()?;
    Ok(Provenance {
        began: now("%Y-%m-%dT%H:%M:%SZ")?,
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: program::revision().map(str::to_owned),
        build: program_hash().map_err(tributary_engine::Error::from)?,
        host: host::name(),
        system: host::kernel(),
        cpu: processor::model_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        instruction_set: tributary_kernels::instructions().to_owned(),
        memory_bytes: memory::total_bytes().unwrap_or(0),
        accelerators: engine.gpu().map(|gpu| gpu.name.clone()).into_iter().collect(),
        backend: engine.backend(),
        model_hash: model.iter().map(|byte| format!("{byte:02x}")).collect(),
        profile: profile.map_or_else(|| NO_PROFILE.to_owned(), Profile::label),
        profile_ranks: profile.map_or(0, |profile| profile.ranks),
    })
}

/// This moment, UTC, by a format of [`date::format`].
///
/// # Errors
/// Returns an error if the clock is beyond every calendar.
pub fn now(format: &str) -> Result<String> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(date::format(format, since_1970.as_secs())?)
}
