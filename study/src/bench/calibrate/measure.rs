//! The measurements of a calibration: what prefill does, with its kernels, model and communicator.
//! A run begins on all ranks at once. Everything is measured once a round, so that a machine that
//! changes its pace does so to all of it.

use std::collections::BTreeMap;
use std::time::Instant;

use tributary_comm::Communicator;
use tributary_kernels::Kernels;
use tributary_model::Model;

use super::found::{Found, Seconds};
use super::work::{Bench, Product, What, Work};
use crate::error::Result;

/// Counted rounds, if they take no longer than [`ALL_S`] in all; fewer, if they do.
const ROUNDS: usize = 15;
const FEWEST_ROUNDS: usize = 5;

/// Least number of rounds that show their spread.
pub const FEWEST_ROUNDS_TO_TELL: usize = 3;

const ALL_S: f64 = 80.0;

/// Rounds before those: the first one says how often a run is repeated, the second one how long a
/// round takes.
const WARM_UPS: usize = 2;

/// Rows of a pass.
const PASS_ROWS: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];

/// Rows of a chunk, on a host and on a device, and how many rows there are at least of all chunks
/// of a batch.
const CHUNK_ROWS: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
const DEVICE_CHUNK_ROWS: [usize; 7] = [64, 256, 512, 1024, 2048, 4096, 8192];
const BATCH_ROWS: usize = 2048;

/// The last rows of a long context, and all of it.
const LONG: (usize, usize) = (1024, 8192);
const DEVICE_LONG: (usize, usize) = (2048, 32_768);

/// A run that is shorter is repeated until all of it takes so long: clocks, and the end of a
/// device's queue, count otherwise.
const LONG_ENOUGH_S: f64 = 10e-3;
const MOST_REPEATS: usize = 256;

/// A size that would take longer on this machine, to judge from the one before, is not measured.
const LONGEST_S: f64 = 1.5;

/// Numbers of a rank's part of a gather, 4 bytes each; the first is for the latency.
pub const PARTS: [usize; 5] = [64, 1 << 10, 16 << 10, 256 << 10, 4 << 20];
pub const DEVICE_PARTS: [usize; 6] = [64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 32 << 20];

/// Everything that is measured.
fn everything(on_host: bool) -> Vec<What> {
    let (chunks, long) = if on_host { (CHUNK_ROWS, LONG) } else { (DEVICE_CHUNK_ROWS, DEVICE_LONG) };
    let parts = if on_host { &PARTS[..] } else { &DEVICE_PARTS[..] };
    let attention = |(queries, keys): (usize, usize)| What::Attention { queries, keys };
    let mut all: Vec<What> = PASS_ROWS.map(What::Pass).to_vec();
    all.extend(chunks.map(|run| What::Runs { rows: run.max(BATCH_ROWS), run }));
    all.extend([(1, 1), long].map(attention));
    all.push(What::PROBE);
    all.extend([What::Elementwise, What::Merge, What::Memory, What::Request]);
    all.extend(parts.iter().map(|&values| What::Gather(values)));
    all
}

/// Measures on all ranks of `comm`; those from `working` on only communicate. Where several work,
/// it also measures with rank 0 working alone. `rounds` fixes the number of rounds. Rank 0 gets the
/// results.
///
/// # Errors
/// Returns an error if the communicator or the model fails.
pub fn measure(
    comm: &mut dyn Communicator,
    model: &dyn Model,
    kernels: Kernels,
    (working, asked): (usize, Option<usize>),
) -> Result<Option<Found>> {
    let mut groups: Vec<Group> = vec![Group::new(working)];
    if working > 1 {
        groups.push(Group::new(1));
    }
    let bench = Bench { model, kernels };
    let mut prepared = affordable(comm, &bench, working)?;
    let (mut began, mut rounds, mut round) = (Instant::now(), ROUNDS, 0);
    while round < WARM_UPS + rounds {
        for group in &mut groups {
            for (what, work) in &mut prepared {
                let is_part = comm.rank() < group.working || what.is_of_all();
                let repeats = group.repeats.get(what).copied().unwrap_or(1);
                let mut seconds = timed(comm, model, is_part, repeats, &mut **work)?;
                if round < WARM_UPS {
                    group.repeats.insert(*what, enough(comm, &seconds)?);
                } else {
                    seconds.truncate(if what.is_of_all() { comm.size() } else { group.working });
                    group.seconds.entry(*what).or_default().push(seconds);
                }
            }
        }
        round += 1;
        if round == WARM_UPS {
            let affordable = (ALL_S / began.elapsed().as_secs_f64().max(1e-3)) as usize;
            let rounds_here = asked.unwrap_or(affordable.clamp(FEWEST_ROUNDS, ROUNDS));
            rounds = agreed(comm, rounds_here as u64)?;
        }
        if round < WARM_UPS {
            began = Instant::now();
        }
    }
    if comm.rank() > 0 {
        return Ok(None);
    }
    let mut seconds = groups.into_iter().map(|group| group.seconds);
    let (together, alone) = (seconds.next().unwrap_or_default(), seconds.next());
    Ok(Some(Found::new(model, comm.size(), &together, alone.as_ref())?))
}

/// Prepared measurements: each kind up to the largest size that this machine does in reasonable
/// time. All ranks agree.
fn affordable<'a>(
    comm: &mut dyn Communicator,
    bench: &Bench<'a>,
    working: usize,
) -> Result<Vec<(What, Box<Work<'a>>)>> {
    let mut ready = Vec::new();
    let mut before: BTreeMap<Product, (f64, f64)> = BTreeMap::new();
    for what in everything(bench.model.device().is_cpu()) {
        let Some((product, size)) = what.size() else {
            ready.push((what, bench.prepare(what)?));
            continue;
        };
        let expected_s = before.get(&product).map_or(0.0, |&(size_before, seconds)| seconds * size / size_before);
        if agreed(comm, u64::from(expected_s > LONGEST_S && !what.is_small()))? == 1 {
            continue;
        }
        let mut work = bench.prepare(what)?;
        let is_part = comm.rank() < working;
        let seconds = timed(comm, bench.model, is_part, 1, &mut *work)?;
        before.insert(product, (size, seconds.into_iter().fold(0.0, f64::max)));
        ready.push((what, work));
    }
    Ok(ready)
}

/// Ranks that work at once, and their measurements.
struct Group {
    working: usize,
    repeats: BTreeMap<What, usize>,
    seconds: Seconds,
}

impl Group {
    fn new(working: usize) -> Self {
        Self { working, repeats: BTreeMap::new(), seconds: Seconds::new() }
    }
}

/// Seconds of a run of each rank, the mean of the repeats; empty except on rank 0.
fn timed(
    comm: &mut dyn Communicator,
    model: &dyn Model,
    is_part: bool,
    repeats: usize,
    work: &mut Work<'_>,
) -> Result<Vec<f64>> {
    comm.barrier()?;
    let began = Instant::now();
    if is_part {
        for _ in 0..repeats {
            work(comm)?;
        }
        model.device().synchronize()?;
    }
    // A clock that is too coarse must not make a rate infinite.
    let own_s = began.elapsed().as_secs_f64().max(1e-9) / repeats as f64;
    let all = comm.gather_bytes(0, own_s.to_le_bytes().to_vec())?;
    let seconds = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(f64::NAN, f64::from_le_bytes);
    Ok(if comm.rank() == 0 { all.iter().map(seconds).collect() } else { Vec::new() })
}

/// Number of repeats of a run with these seconds; all ranks agree.
fn enough(comm: &mut dyn Communicator, seconds: &[f64]) -> Result<usize> {
    let longest_s = seconds.iter().copied().fold(1e-9, f64::max);
    agreed(comm, (LONG_ENOUGH_S / longest_s).ceil().clamp(1.0, MOST_REPEATS as f64) as u64)
}

/// The number that rank 0 has.
fn agreed(comm: &mut dyn Communicator, own: u64) -> Result<usize> {
    let told = (comm.rank() == 0).then(|| own.to_le_bytes().to_vec());
    let told = comm.broadcast_bytes(0, told)?;
    Ok(told.as_slice().try_into().map_or(1, u64::from_le_bytes) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_machine_has_a_rate_of_each_kind() {
        for on_host in [true, false] {
            let sized = everything(on_host).into_iter().filter_map(|what| Some((what.size()?, what)));
            let mut firsts: BTreeMap<Product, (f64, What)> = BTreeMap::new();
            for ((product, size), what) in sized {
                let &mut (first, smallest) = firsts.entry(product).or_insert((size, what));
                assert!(smallest.is_small() && first <= size || what == What::PROBE, "{what:?}");
            }
            assert_eq!(firsts.len(), 2);
        }
    }
}
