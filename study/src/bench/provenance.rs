//! Where a study's numbers come from: program, machine, model, command line.

use std::time::SystemTime;

use crate::schema::Provenance;
use tributary_coordinator::date;
use tributary_coordinator::forecast::Profile;
use tributary_engine::{Engine, program_hash};

use tributary_engine::system::{instructions, text};

use crate::error::Result;

/// What stands for a profile where there is none.
pub const NO_PROFILE: &str = "none";

/// Facts about this process.
///
/// # Errors
/// Program or model cannot be read.
pub fn provenance(engine: &Engine<'_>, profile: Option<&Profile>) -> Result<Provenance> {
    let system = rustix::system::uname();
    let model = engine.folder().hash().get()?;
    Ok(Provenance {
        began: now("%Y-%m-%dT%H:%M:%SZ"),
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        revision: option_env!("TRIBUTARY_REVISION").map(str::to_owned),
        build: program_hash().map_err(tributary_engine::Error::from)?,
        host: system.nodename().to_string_lossy().into_owned(),
        system: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
        cpu: text("/proc/cpuinfo").as_deref().and_then(cpu).unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        instruction_set: instructions().to_owned(),
        memory_bytes: text("/proc/meminfo").as_deref().and_then(memory_bytes).unwrap_or(0),
        accelerators: engine.gpu().map(|gpu| gpu.name.clone()).into_iter().collect(),
        backend: engine.backend(),
        model_hash: model.iter().map(|byte| format!("{byte:02x}")).collect(),
        profile: profile.map_or_else(|| NO_PROFILE.to_owned(), Profile::label),
        profile_ranks: profile.map_or(0, |profile| profile.ranks),
    })
}

/// This moment, UTC, by a format of [`date::format`].
pub fn now(format: &str) -> String {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    date::format(format, since_1970.as_secs())
}

/// The processor's name in a `/proc/cpuinfo`.
fn cpu(cpuinfo: &str) -> Option<String> {
    let value = |line: &str| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned());
    cpuinfo.lines().find_map(value)
}

/// All memory, from a `/proc/meminfo`.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read() {
        assert_eq!(
            cpu("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B\n").as_deref(),
            Some("A CPU @ 2 GHz")
        );
        assert_eq!(cpu("processor\t: 0\n"), None);
        assert_eq!(memory_bytes("MemTotal:       24000 kB\nMemFree: 1 kB\n"), Some(24_000 * 1024));
    }
}
