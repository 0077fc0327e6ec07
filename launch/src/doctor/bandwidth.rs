//! Bandwidth of an all-gather, by the definitions of nccl-tests: algorithm bandwidth is the bytes
//! that every rank has in the end over the time; bus bandwidth is the part that crosses a link, (n
//! − 1) / n of that among n ranks.
//!
//! A run is as long as its slowest rank's. Every rank holds its own part and one gathered result at
//! a time.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use candle_core::{Device, Tensor};
use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::{Summary, summary};
use tributary_comm::Communicator;
use tributary_kernels::cuda;

use super::args::VALUE_BYTES;
use super::hosts::{Host, rank_list};
use super::site::GpuInUse;
use tributary_system::size::{Size, rounded};

/// Runs that do not count.
pub const WARM_UPS: u32 = 2;

/// Result of one size.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AllGather {
    /// Bytes that every rank has in the end.
    #[schemars(with = "u64")]
    pub size_bytes: Size,
    /// Every counted run, as long as its slowest rank's, in the order of the runs.
    pub runs_ms: Vec<f64>,
    /// Their median.
    pub median_ms: f64,
    /// The least of them.
    pub min_ms: f64,
    /// The largest of them.
    pub max_ms: f64,
    /// Size over median time, in GB/s; absent where nothing was copied.
    pub algorithm_gb_per_s: Option<f64>,
    /// (n − 1) / n of that among n ranks.
    pub bus_gb_per_s: Option<f64>,
    /// Gathered values that were not those sent, of all ranks together.
    pub wrong_values: u64,
}

impl AllGather {
    /// Result of runs with these milliseconds, at least one. `copied` says whether ranks had to
    /// copy: threads of one process do not, and their times give no bandwidth.
    pub fn new(size: Size, world: usize, copied: bool, runs_ms: Vec<f64>, wrong_values: u64) -> Self {
        let Summary { median: median_ms, min: min_ms, max: max_ms, .. } = summary(&runs_ms).expect("there is a run");
        let algorithm_gb_per_s = copied.then(|| gb_per_s(size.bytes(), median_ms));
        Self {
            size_bytes: size,
            median_ms,
            min_ms,
            max_ms,
            algorithm_gb_per_s,
            bus_gb_per_s: algorithm_gb_per_s.map(|algorithm| algorithm * (world as f64 - 1.0) / world as f64),
            runs_ms,
            wrong_values,
        }
    }
}

/// Bytes over ms, in 10^9 bytes a second.
fn gb_per_s(bytes: u64, time_ms: f64) -> f64 {
    bytes as f64 / (time_ms * 1e6)
}

/// Why a size is too large for a host's free memory: a rank may need it twice, for the result and
/// for data in flight.
pub fn too_large(size: Size, hosts: &[Host]) -> Option<String> {
    hosts.iter().find_map(|host| {
        let needed_bytes = size.bytes().saturating_mul(2 * host.ranks.len() as u64);
        let free_bytes = host.free_memory_bytes.filter(|&free| free < needed_bytes)?;
        let (name, ranks) = (&host.name, rank_list(&host.ranks));
        Some(format!("{ranks} on {name} may need {}, {} are free", rounded(needed_bytes), rounded(free_bytes)))
    })
}

/// Why a size is too large for the free memory of a rank's GPU: as on a host, twice, and each rank
/// that shares the GPU.
pub fn too_large_for_gpus(size: Size, gpus: &[Option<GpuInUse>]) -> Option<String> {
    gpus.iter().enumerate().find_map(|(rank, gpu)| {
        let gpu = gpu.as_ref()?;
        let sharing = gpus.iter().flatten().filter(|other| other.uuid == gpu.uuid).count() as u64;
        let needed_bytes = size.bytes().saturating_mul(2 * sharing);
        let (needed, free) = (rounded(needed_bytes), rounded(gpu.free_bytes));
        (gpu.free_bytes < needed_bytes).then(|| format!("rank {rank} may need {needed} on its GPU, {free} are free"))
    })
}

/// Gathers `size` bytes over and over on all ranks, from memory of `device` to memory of theirs.
/// Rank 0 gets the slowest rank's ms of each run and the number of wrong values, the others
/// nothing.
///
/// # Errors
/// Returns an error if the communicator fails, or if the ranks' reports do not fit together.
pub fn measure(
    comm: &mut dyn Communicator,
    device: &Device,
    size: Size,
    repeat: u32,
) -> anyhow::Result<Option<(Vec<f64>, u64)>> {
    let (rank, world) = (comm.rank(), comm.size());
    let rows = shares((size.bytes() / VALUE_BYTES) as usize, world);
    let send = values(rank, rows[rank], device)?; // [values of this rank]
    let mut wrong_values = 0;
    let mut runs_ms = Vec::with_capacity(repeat as usize);
    for run in 0..WARM_UPS + repeat {
        comm.barrier()?;
        let began = Instant::now();
        let gathered = comm.all_gather_v(&send, &rows)?;
        // The device has the order to gather, but may not have done it yet.
        device.synchronize()?;
        let time_ms = began.elapsed().max(Duration::from_nanos(1)).as_secs_f64() * 1e3;
        if run == 0 {
            wrong_values = wrong(&gathered, &rows)?;
        }
        if run >= WARM_UPS {
            runs_ms.push(time_ms);
        }
    }
    collect(comm, wrong_values, runs_ms, repeat)
}

/// Every rank's number of wrong values and its times: rank 0 gets their sum and the slowest rank's
/// time of each run.
///
/// # Errors
/// Returns an error if the communicator fails, or if the ranks' reports do not fit together.
pub fn collect(
    comm: &mut dyn Communicator,
    wrong_values: u64,
    runs_ms: Vec<f64>,
    repeat: u32,
) -> anyhow::Result<Option<(Vec<f64>, u64)>> {
    let reports = comm.gather_bytes(0, serde_json::to_vec(&(wrong_values, runs_ms))?)?;
    if comm.rank() != 0 {
        return Ok(None);
    }
    let mut all = Vec::with_capacity(reports.len());
    for (rank, report) in reports.iter().enumerate() {
        let report: (u64, Vec<f64>) =
            serde_json::from_slice(report).with_context(|| format!("the times of rank {rank}"))?;
        ensure!(report.1.len() == repeat as usize, "rank {rank} made {} runs, not {repeat}", report.1.len());
        all.push(report);
    }
    let wrong_values = all.iter().map(|(wrong, _)| wrong).sum();
    let ranks_ms: Vec<Vec<f64>> = all.into_iter().map(|(_, runs_ms)| runs_ms).collect();
    Ok(Some((slowest(&ranks_ms), wrong_values)))
}

/// `count` values dealt to ranks as evenly as can be.
fn shares(count: usize, world: usize) -> Vec<usize> {
    (0..world).map(|rank| count / world + usize::from(rank < count % world)).collect()
}

/// Values that a rank sends, on a device: `[count]`.
pub fn values(rank: usize, count: usize, device: &Device) -> candle_core::Result<Tensor> {
    let values: Vec<u32> = (0..count).map(|index| value(rank, index)).collect();
    Tensor::from_vec(values, count, &Device::Cpu)?.to_device(device)
}

/// The value that rank `rank` sends at `index`: another one at every other place and rank.
fn value(rank: usize, index: usize) -> u32 {
    (index as u32).wrapping_mul(0x9e37_79b1).wrapping_add(rank as u32)
}

/// Values that are not those sent; of a part of the wrong size, all.
fn wrong(gathered: &[Tensor], rows: &[usize]) -> anyhow::Result<u64> {
    let mut count = 0;
    for (rank, &values) in rows.iter().enumerate() {
        let part = match gathered.get(rank) {
            Some(part) => cuda::download(part)?.flatten_all()?.to_vec1::<u32>()?,
            None => Vec::new(),
        };
        count += match part.len() == values {
            true => part.iter().enumerate().filter(|&(index, &found)| found != value(rank, index)).count(),
            false => values.max(part.len()),
        };
    }
    Ok(count as u64)
}

/// Each run's longest time, from every rank's times.
fn slowest(ranks_ms: &[Vec<f64>]) -> Vec<f64> {
    let runs = ranks_ms.iter().map(Vec::len).min().unwrap_or(0);
    (0..runs).map(|run| ranks_ms.iter().map(|times_ms| times_ms[run]).fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(text: &str) -> Size {
        text.parse().unwrap()
    }

    #[test]
    fn bandwidths_are_those_of_nccl_tests() {
        // (bytes, ranks, runs in ms, algorithm GB/s, bus GB/s)
        let table: [(&str, usize, &[f64], f64, f64); 4] = [
            ("1GB", 2, &[1000.0], 1.0, 0.5),
            ("1GB", 8, &[100.0, 90.0, 110.0], 10.0, 8.75),
            ("256MiB", 4, &[10.0, 30.0, 20.0, 40.0], 10.737_418_24, 8.053_063_68),
            ("4B", 3, &[0.000_004], 1.0, 2.0 / 3.0),
        ];
        for (text, world, runs_ms, algorithm, bus) in table {
            let result = AllGather::new(size(text), world, true, runs_ms.to_vec(), 0);
            let found = [result.algorithm_gb_per_s, result.bus_gb_per_s].map(|speed| speed.unwrap());
            assert!((found[0] - algorithm).abs() < 1e-9, "{text} among {world}: {found:?}");
            assert!((found[1] - bus).abs() < 1e-9, "{text} among {world}: {found:?}");
            assert!(result.min_ms <= result.median_ms && result.median_ms <= result.max_ms, "{result:?}");
        }
        let shared = AllGather::new(size("1GB"), 2, false, vec![3.0, 1.0, 2.0], 7);
        assert_eq!((shared.algorithm_gb_per_s, shared.bus_gb_per_s), (None, None), "nothing was copied");
        assert_eq!((shared.median_ms, shared.min_ms, shared.max_ms), (2.0, 1.0, 3.0));
        assert_eq!((shared.runs_ms, shared.wrong_values), (vec![3.0, 1.0, 2.0], 7));
    }

    #[test]
    fn a_run_is_as_long_as_its_slowest_rank() {
        assert_eq!(slowest(&[vec![1.0, 5.0], vec![2.0, 3.0], vec![1.5, 4.0]]), [2.0, 5.0]);
        assert_eq!(slowest(&[]), [0.0; 0]);
    }

    #[test]
    fn values_are_dealt_evenly() {
        for (count, world, wanted) in [(8, 4, vec![2; 4]), (10, 4, vec![3, 3, 2, 2]), (1, 3, vec![1, 0, 0])] {
            assert_eq!(shares(count, world), wanted, "{count} among {world}");
        }
    }

    #[test]
    fn wrong_values_are_counted() {
        let part = |rank: usize, count: usize, change: &dyn Fn(&mut Vec<u32>)| {
            let mut values: Vec<u32> = (0..count).map(|index| value(rank, index)).collect();
            change(&mut values);
            let count = values.len();
            Tensor::from_vec(values, count, &Device::Cpu).unwrap()
        };
        let with = |change: &dyn Fn(&mut Vec<u32>)| wrong(&[part(0, 5, &|_| ()), part(1, 4, change)], &[5, 4]).unwrap();
        assert_eq!(with(&|_| ()), 0);
        assert_eq!(with(&|values| values[2] ^= 1), 1);
        assert_eq!(with(&|values| values.swap(0, 3)), 2);
        assert_eq!(with(&|values| values.rotate_left(1)), 4);
        assert_eq!(with(&|values| values.truncate(3)), 4);
        assert_eq!(with(&|values| values.push(0)), 5);
        assert_eq!(wrong(&[part(0, 5, &|_| ())], &[5, 4]).unwrap(), 4, "a part is missing");
        let swapped = [part(1, 4, &|_| ()), part(0, 4, &|_| ())];
        assert_eq!(wrong(&swapped, &[4, 4]).unwrap(), 8, "another rank's values");
    }

    #[test]
    fn sizes_beyond_the_memory_are_left_out() {
        let host = |name: &str, ranks: &[usize], free_memory_bytes| Host {
            name: name.into(),
            boot_id: String::new(),
            ranks: ranks.to_vec(),
            processes: ranks.len(),
            free_memory_bytes,
            cpu_limit: None,
            shared_memory: None,
            limits: super::super::facts::Limits::default(),
            interfaces: Vec::new(),
            gpus: Vec::new(),
        };
        let gpu = |uuid: &str, free_bytes| Some(GpuInUse { uuid: uuid.into(), free_bytes, ..GpuInUse::default() });
        let gpus = [gpu("A", 4 << 30), None, gpu("B", 2 << 30), gpu("B", 2 << 30)];
        assert_eq!(too_large_for_gpus(size("512MiB"), &gpus), None);
        let said = too_large_for_gpus(size("1GiB"), &gpus).unwrap();
        assert_eq!(said, "rank 2 may need 4.0 GiB on its GPU, 2.0 GiB are free");
        let hosts = [host("a", &[0, 1], Some(4 << 30)), host("b", &[2], Some(1 << 30)), host("c", &[3], None)];
        assert_eq!(too_large(size("512MiB"), &hosts), None);
        let said = too_large(size("768MiB"), &hosts).unwrap();
        assert_eq!(said, "rank 2 on b may need 1.5 GiB, 1.0 GiB are free");
        let said = too_large(size("2GiB"), &hosts).unwrap();
        assert_eq!(said, "ranks 0-1 on a may need 8.0 GiB, 4.0 GiB are free");
        assert!(too_large(size("16000000000GiB"), &hosts).is_some(), "no overflow");
    }
}
