//! `tributary bench --calibrate`: measures the machine at hand and writes it as a profile, by which the planner predicts.
//! All ranks work at the same time, so that shared cores and memory show.

mod measure;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tributary_comm::wire::Phase;
use tributary_comm::{Communicator, local};
use tributary_coordinator::predict::{Link, Profile, RankRates};
use tributary_coordinator::{Machine, MemoryOf, check_weights};
use tributary_kernels::Kernels;
use tributary_worker::Model;

use self::measure::{Found, measure};
use super::output::{parent, write_whole};
use crate::args::ModelArgs;
use crate::carrier::Carrier;
use crate::device::Place;
use crate::failure::{exit_code, usage};
use crate::machine::machine;
use crate::model::ModelFolder;
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::stdout::print;

/// What is calibrated.
pub struct Calibration<'a> {
    /// The model whose shapes are measured.
    pub folder: &'a ModelFolder,
    /// How it is loaded.
    pub model: &'a ModelArgs,
    /// Where it is measured.
    pub place: &'a Place,
    /// What carries tensors between ranks.
    pub carrier: Carrier,
    /// Its kernels.
    pub kernels: Kernels,
    /// Ranks, where they are threads.
    pub world: usize,
    /// Threads a rank.
    pub threads: usize,
    /// How long a collective may take.
    pub timeout: Duration,
    /// The file to write; standard output where absent.
    pub file: Option<&'a Path>,
    /// Whether an older file may go.
    pub force: bool,
}

/// Measures and writes a profile; on ranks other than 0 only measures.
///
/// # Errors
/// A file that would be overwritten; the model's, the communicator's.
pub fn calibrate(calibration: &Calibration<'_>, ranks: &mut Ranks) -> anyhow::Result<()> {
    // Rank 0 writes. The others may be on hosts where the file means another one, or nothing.
    if let Some(file) = calibration.file.filter(|_| ranks.leads()) {
        check(file, calibration.force)?;
    }
    let progress = Progress::start("loading the weights");
    let Calibration { folder, place, carrier, world, threads, .. } = *calibration;
    // Before anything is loaded.
    let machine = machine(ranks, place, carrier, world, threads);
    check_weights(&folder.shape(), &machine)?;
    let (in_process, mut models) = (if matches!(ranks, Ranks::Threads { .. }) { world } else { 1 }, Vec::new());
    carrier.load(folder, place, calibration.model, in_process, &mut models)?;
    progress.now("calibrating".to_owned());
    let (found, here, backend) = match ranks {
        Ranks::Threads { .. } => (on_threads(calibration, &models)?, world, "threads of one process".to_owned()),
        Ranks::Process(process) => {
            let (here, size) = (process.facts.local_size, process.facts.size);
            let pool = pool(calibration.threads)?;
            let seat = process.seat()?;
            let process = &*process;
            let found = pool.install(|| {
                let mut comm = carrier.on_process(seat.take(), models[0].device())?;
                let found = one(calibration, &*models[0], &mut *comm, size);
                // Whoever leaves without a word would be taken for done.
                let found = found.inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))?;
                process.leave(comm, calibration.timeout);
                anyhow::Ok(found)
            })?;
            (found, here, "MPI".to_owned())
        }
    };
    drop(progress);
    let Some(found) = found else { return Ok(()) };
    let world = if matches!(ranks, Ranks::Threads { .. }) { world } else { ranks.world() };
    let profile = profile(calibration, &found, (world, here), &machine, &carrier.label(backend));
    match calibration.file {
        Some(file) => write_whole(file, &profile.to_toml()),
        None => print(&profile.to_toml()),
    }
}

/// Whether a profile can be written there: asked before anything is measured.
fn check(file: &Path, force: bool) -> anyhow::Result<()> {
    let shown = file.display();
    if file.is_dir() {
        return Err(usage(format!("--calibrate {shown}: it is a folder; it must be a file")));
    }
    if file.exists() && !force {
        return Err(usage(format!("--calibrate {shown}: it is there already; overwrite it by --force")));
    }
    let folder = parent(file);
    if !folder.is_dir() {
        return Err(usage(format!("--calibrate {shown}: no such folder: {}; make it first", folder.display())));
    }
    Ok(())
}

fn pool(threads: usize) -> anyhow::Result<rayon::ThreadPool> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?)
}

fn one(
    calibration: &Calibration<'_>,
    model: &dyn Model,
    comm: &mut dyn Communicator,
    working: usize,
) -> anyhow::Result<Option<Found>> {
    comm.set_deadline(Phase::Idle, calibration.timeout);
    measure(comm, model, calibration.kernels, working)
}

/// One thread a rank, and a second one where there is but one, which does nothing but answer: a link has two ends. (NCCL's
/// have each a GPU.)
fn on_threads(calibration: &Calibration<'_>, models: &[Arc<dyn Model>]) -> anyhow::Result<Option<Found>> {
    let Calibration { world, carrier, .. } = *calibration;
    let count = if matches!(carrier, Carrier::Nccl(_)) { world } else { world.max(2) };
    let pools = (0..count).map(|_| pool(calibration.threads)).collect::<Result<Vec<_>, _>>()?;
    let run = |rank: usize, seat: local::Seat, pool: &rayon::ThreadPool| {
        pool.install(|| {
            let model = &models[rank % models.len()];
            let mut comm = carrier.on_thread(seat, model.device())?;
            let found = one(calibration, &**model, &mut *comm, world);
            found.inspect_err(|error| comm.abort(&error.to_string(), exit_code(error)))
        })
    };
    let found: Vec<anyhow::Result<Option<Found>>> = std::thread::scope(|scope| {
        let seats = local::seats(pools.len()).into_iter().zip(&pools);
        let seats = seats.enumerate();
        let ranks: Vec<_> = seats.map(|(rank, (seat, pool))| scope.spawn(move || run(rank, seat, pool))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    found.into_iter().next().unwrap_or(Ok(None))
}

fn profile(
    calibration: &Calibration<'_>,
    found: &Found,
    (world, here): (usize, usize),
    machine: &Machine,
    backend: &str,
) -> Profile {
    let gpu = calibration.place.gpu.as_ref();
    let memory = match machine.memory {
        MemoryOf::Host => "what was free before the model was loaded, shared by the ranks of a host",
        MemoryOf::Device => "--device-memory, or nine tenths of what was free on a GPU before the model was loaded",
    };
    let rate = |what: &str| format!("measured: {what}, median of {} runs, the slowest of {world} ranks", measure::RUNS);
    let sources = BTreeMap::from([
        ("gemm_flops_per_s", rate("both halves of a layer, norms and activation included")),
        ("attention_flops_per_s", rate("causal attention")),
        ("probe_flops_per_s", rate("attention of a query's rows to many keys")),
        ("memory_bytes_per_s", rate("the sum of an array beyond the caches; on a GPU a copy, bytes read and written")),
        ("memory_bytes", memory.to_owned()),
        ("layer_s", rate("a layer of one row, without what its weights and products take")),
        ("request_s", rate("a plan of 8192 tokens broadcast, rotary tables made")),
        ("inside.latency_s", rate("all-gather of one row")),
        ("inside.bytes_per_s", format!("{}, over {backend}", rate("all-gather of large parts"))),
    ]);
    let folder = calibration.folder.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let shared = machine.available_bytes.unwrap_or(0) / machine.ranks_here.max(1) as u64;
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
        rank: RankRates {
            gemm_flops_per_s: found.gemm_flops_per_s,
            attention_flops_per_s: found.attention_flops_per_s,
            probe_flops_per_s: found.probe_flops_per_s,
            memory_bytes_per_s: found.memory_bytes_per_s,
            memory_bytes: shared,
            memory_of: machine.memory,
            layer_s: found.layer_s,
            request_s: found.request_s,
        },
        inside: Link { latency_s: found.latency_s, bytes_per_s: found.link_bytes_per_s },
        between: (world > here).then_some(Link { latency_s: found.latency_s, bytes_per_s: found.link_bytes_per_s }),
        sources: sources.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
    }
}
