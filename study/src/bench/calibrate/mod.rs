//! Calibration: measures this machine as a profile, by which the planner predicts. All ranks work
//! at the same time, so that the results include shared cores and memory.

mod disk;
mod found;
mod measure;
mod work;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tributary_comm::Communicator;
use tributary_engine::{Carrier, ModelConfig, ModelFolder, RankDevice, Ranks, Seat, narrowest, spoilt};
use tributary_model::Model;
use tributary_planner::forecast::{Curve, Link, Profile, RankRates, StoreRates};
use tributary_planner::{FreeMemory, GroupShape, Machine, MemoryOf, check_weights};
use tributary_protocol::Phase;

use self::found::{Found, Rates};
use self::measure::{FEWEST_ROUNDS_TO_TELL, measure};
use crate::error::{Error, Result};
use tributary_system::file::{parent, write_whole};

/// Input of a calibration.
pub struct Calibration<'a> {
    /// The model whose shapes are measured.
    pub folder: &'a ModelFolder,
    /// Configuration of the model.
    pub model: &'a ModelConfig,
    /// Device of the measurement.
    pub rank_device: &'a RankDevice,
    /// Carrier of tensors between ranks.
    pub carrier: Carrier,
    /// Ranks, where they are threads.
    pub world: usize,
    /// Threads a rank.
    pub threads: usize,
    /// Longest time of a collective.
    pub timeout: Duration,
    /// Number of rounds; absent: as many as reasonable time allows.
    pub rounds: Option<usize>,
    /// The folder of the chunk store, if its rates are to be measured.
    pub store: Option<&'a Path>,
    /// The file that will be written.
    pub file: Option<&'a Path>,
    /// Whether an older file may go.
    pub force: bool,
}

/// Measures a profile; ranks other than 0 only measure. `tell` gets the progress.
///
/// # Errors
/// Returns an error if a file would be overwritten, or if the model or the communicator fails.
pub fn calibrate(calibration: &Calibration<'_>, ranks: &mut Ranks, tell: &dyn Fn(String)) -> Result<Option<Profile>> {
    // Rank 0 writes. The others may be on hosts where the file means another one, or nothing.
    if let Some(file) = calibration.file.filter(|_| ranks.leads()) {
        check(file, calibration.force)?;
    }
    let Calibration { folder, rank_device, carrier, world, threads, rounds, .. } = *calibration;
    if let Some(few @ 0..FEWEST_ROUNDS_TO_TELL) = rounds {
        return Err(Error::usage(format!(
            "--repeats {few}: a calibration needs {FEWEST_ROUNDS_TO_TELL} rounds to tell how far they go apart"
        )));
    }
    // Before anything is loaded.
    let machine = ranks.machine(rank_device, carrier, GroupShape { world, threads });
    check_shared(&machine, ranks)?;
    check_weights(&folder.shape(), &machine)?;
    let mut models = Vec::new();
    let loaded = carrier.load(folder, rank_device, calibration.model, ranks.in_process(world), &mut models);
    tell("calibrating".to_owned());
    let measured = loaded.map_err(Error::from).and_then(|()| on_ranks(calibration, &models, &machine, ranks));
    let devices = models.iter().map(|model| model.device()).chain([&rank_device.device]);
    let measured = measured.map_err(|error| explained(error, devices))?;
    let Some((found, machine)) = measured else { return Ok(None) };
    let store = calibration.store.map(disk::measure).transpose()?;
    let (world, here) = (ranks.count(world), ranks.here(world));
    let backend = carrier.label(ranks.medium().to_owned());
    let profile = profile(calibration, &found, (world, here), &machine, &backend);
    Ok(Some(match store {
        Some(store) => with_store(profile, store),
        None => profile,
    }))
}

/// A failure, with an explanation if it has poisoned one of these devices.
fn explained<'a>(error: Error, devices: impl IntoIterator<Item = &'a candle_core::Device>) -> Error {
    match error {
        Error::Engine(error) => tributary_engine::explained(error, devices).into(),
        error => spoilt(&error, devices).map_or(error, Into::into),
    }
}

/// Ranks that share a GPU would be taken for ranks that have one each.
fn check_shared(machine: &Machine, ranks: &Ranks) -> Result<()> {
    let sharing = ranks.sharing(machine);
    match machine.memory {
        MemoryOf::Device if sharing > 1 => {
            Err(Error::usage(format!("--calibrate: {sharing} ranks share a GPU; start as many ranks as GPUs")))
        }
        _ => Ok(()),
    }
}

/// Whether a profile can be written there: asked before anything is measured.
fn check(file: &Path, force: bool) -> Result<()> {
    let shown = file.display();
    if file.is_dir() {
        return Err(Error::usage(format!("--calibrate {shown}: it is a folder; it must be a file")));
    }
    if file.exists() && !force {
        return Err(Error::usage(format!("--calibrate {shown}: it is there already; overwrite it by --force")));
    }
    let folder = parent(file);
    if !folder.is_dir() {
        return Err(Error::usage(format!("--calibrate {shown}: no such folder: {}; make it first", folder.display())));
    }
    Ok(())
}

/// Writes a profile as a file that the planner reads.
///
/// # Errors
/// Returns an error if an operation of the operating system fails.
pub fn write(profile: &Profile, file: &Path) -> Result<()> {
    write_whole(file, profile.to_toml().as_bytes()).map_err(Error::file("cannot write", file))
}

fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?)
}

/// One thread a rank, and a second one where there is but one in this process, which does nothing
/// but answer: a link has two ends. (NCCL's have each a GPU.) Rank 0 gets the results, and the
/// machine with the memory of the rank that has least.
fn on_ranks(
    calibration: &Calibration<'_>,
    models: &[Arc<dyn Model>],
    machine: &Machine,
    ranks: &mut Ranks,
) -> Result<Option<(Found, Machine)>> {
    let Calibration { world, carrier, threads, .. } = *calibration;
    let count = ranks.in_process(if carrier.is_nccl() { world } else { world.max(2) });
    let pools = (0..count).map(|_| pool(threads)).collect::<Result<Vec<_>>>()?;
    let seats = ranks.seats(count)?;
    let working = ranks.count(world);
    let run = |index: usize, seat: Seat, pool: &rayon::ThreadPool| {
        pool.install(|| on_rank(calibration, &*models[index % models.len()], machine, working, seat))
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let seats = seats.into_iter().zip(&pools).enumerate();
        let run = &run;
        let ranks: Vec<_> = seats.map(|(index, (seat, pool))| scope.spawn(move || run(index, seat, pool))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    found.into_iter().next().unwrap_or(Ok(None))
}

fn on_rank(
    calibration: &Calibration<'_>,
    model: &dyn Model,
    machine: &Machine,
    working: usize,
    seat: Seat,
) -> Result<Option<(Found, Machine)>> {
    let mut comm = seat.take(&calibration.carrier, model.device())?;
    let measure = |comm: &mut dyn Communicator| -> Result<_> {
        let narrowest_memory = narrowest(comm, Some(FreeMemory::of(machine)))?;
        comm.set_deadline(Phase::Idle, calibration.timeout);
        Ok((narrowest_memory, measure(comm, model, calibration.model.kernels, (working, calibration.rounds))?))
    };
    let measured = measure(&mut *comm);
    // A rank that leaves without a word would be taken for done.
    let (narrowest_memory, found) = measured.inspect_err(|error| comm.abort(&error.to_string(), error.exit_code()))?;
    comm.leave();
    let narrow = narrowest_memory.map_or(*machine, |(rank, narrowest_memory)| narrowest_memory.of_rank(rank, machine));
    Ok(found.map(|found| (found, narrow)))
}

/// The profile with the rates of a store.
fn with_store(mut profile: Profile, store: StoreRates) -> Profile {
    let source = |files: &str| {
        format!("measured: 128 MiB of {files} read and verified by the store's threads, median of {} runs", disk::RUNS)
    };
    profile.sources.insert("store.cached_bytes_per_s".to_owned(), source("files that the system keeps in memory"));
    profile.sources.insert("store.bytes_per_s".to_owned(), source("files that were dropped from its memory"));
    Profile { store: Some(store), ..profile }
}

fn profile(
    calibration: &Calibration<'_>,
    found: &Found,
    (world, here): (usize, usize),
    machine: &Machine,
    backend: &str,
) -> Profile {
    let gpu = calibration.rank_device.gpu.as_ref();
    let memory = match machine.memory {
        MemoryOf::Host => "what was free before the model was loaded, shared by the ranks of a host",
        MemoryOf::Device => "--device-memory, or nine tenths of what was free on a GPU before the model was loaded",
    };
    let rounds = found.rounds;
    let rate =
        |what: &str| format!("measured: {what}, mean of the middle of {rounds} rounds, the slowest of {world} ranks");
    let sources = BTreeMap::from([
        ("gemm_flops_per_s", rate("as gemm_by_rows, of most rows")),
        ("gemm_by_rows", rate("passes in runs of 64 rows, without attention, norms and activation")),
        ("attention_flops_per_s", rate("as attention_by_keys, of most keys")),
        ("attention_by_keys", rate("batches of chunks, and the last rows of a long context")),
        ("elementwise_bytes_per_s", rate("two norms and an activation")),
        ("merge_bytes_per_s", rate("the merge of two partial results")),
        ("spread", format!("measured: how far {rounds} rounds went apart, half of what holds 95 % of them")),
        ("probe_flops_per_s", rate("attention of a query's rows to many keys")),
        ("memory_bytes_per_s", rate("the sum of an array beyond the caches; on a GPU a copy, bytes read and written")),
        ("memory_bytes", memory.to_owned()),
        ("layer_s", rate("attention of one row to one key")),
        ("request_s", rate("a plan of 8192 tokens broadcast, rotary tables made")),
        ("inside.latency_s", rate("all-gather of 64 numbers a rank")),
        ("inside.bytes_per_s", format!("{}, over {backend}", rate("all-gather of large parts, without the latency"))),
    ]);
    let folder = calibration.folder.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let shared = machine.available_bytes.unwrap_or(0) / machine.ranks_here.max(1) as u64;
    let by_bytes = found.link_by_bytes.clone();
    // A single rank receives nothing: then its memory's rate is taken, which no link exceeds.
    let bytes_per_s = by_bytes.0.last().map_or(found.together.memory_bytes_per_s, |&(_, rate)| rate);
    let inside = Link { latency_s: found.latency_s, bytes_per_s, by_bytes };
    Profile {
        name: format!("{folder}-{world}x{}", calibration.threads),
        description: match gpu {
            Some(gpu) => format!("{world} x {} as {backend}, shapes of {folder}", gpu.name),
            None => format!("{world} ranks of {} threads as {backend}, shapes of {folder}", calibration.threads),
        },
        measured_here: true,
        projected: false,
        ranks: world,
        ranks_per_host: here,
        transfers_overlap: true,
        rank: rank_rates(&found.together, shared, machine.memory),
        alone: found.alone.as_ref().map(|alone| rank_rates(alone, shared, machine.memory)),
        between: (world > here).then(|| inside.clone()),
        inside,
        store: None,
        under_load: None,
        spread: Some(found.spread),
        sources: sources.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
    }
}

/// Rates of a rank as a profile has them.
fn rank_rates(rates: &Rates, memory_bytes: u64, memory_of: MemoryOf) -> RankRates {
    let last = |curve: &Curve| curve.0.last().map_or(f64::NAN, |&(_, rate)| rate);
    RankRates {
        gemm_flops_per_s: last(&rates.gemm_by_rows),
        gemm_by_rows: rates.gemm_by_rows.clone(),
        attention_flops_per_s: last(&rates.attention_by_keys),
        attention_by_keys: rates.attention_by_keys.clone(),
        probe_flops_per_s: rates.probe_flops_per_s,
        memory_bytes_per_s: rates.memory_bytes_per_s,
        elementwise_bytes_per_s: Some(rates.elementwise_bytes_per_s),
        merge_bytes_per_s: Some(rates.merge_bytes_per_s),
        memory_bytes,
        memory_of,
        layer_s: rates.layer_s,
        request_s: rates.request_s,
    }
}
