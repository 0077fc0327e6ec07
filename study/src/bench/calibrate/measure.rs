//! The measurements of a calibration: what prefill does, with its kernels, model and communicator. A run begins on all ranks
//! at once and counts as long as its slowest rank's. On a device a run ends when the device has done it, and is made larger
//! until that takes a while.

use std::hint::black_box;
use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use tributary_charts::statistics::median;
use tributary_comm::Communicator;
use tributary_kernels::{Kernels, Keys, Positions, cuda};
use tributary_worker::Model;

use crate::error::Result;

/// Counted runs of each measurement.
pub const RUNS: usize = 7;

/// Runs before those.
const WARM_UPS: usize = 2;

/// Rows of a layer pass, of causal attention; the query's rows and the keys that they ask.
const LAYER_ROWS: usize = 512;
const CAUSAL_ROWS: usize = 2048;
const PROBE_ROWS: usize = 32;
const PROBE_KEYS: usize = 8192;

/// A run on a device that is shorter grows, up to so many times these sizes: below, launches are measured.
const LONG_ENOUGH_S: f64 = 5e-3;
const LARGEST_GROWTH: usize = 16;

/// One-row layers of a run on a device, whose end costs as much as one of them.
const LAYERS_A_RUN: usize = 16;

/// Layers that are taken in turn, so that weights come from memory.
const LAYERS: usize = 4;

/// Numbers of an array beyond the caches, 8 bytes each, and of a large and a small part of a gather, 4 bytes each.
const ARRAY: usize = 16 << 20;
const PART: usize = 2 << 20;
const SMALL_PART: usize = 64;

/// Small gathers of a run on a device: ranks leave a barrier one after the other, and that must not count as latency.
const GATHERS_A_RUN: usize = 20;

/// Tokens of a plan.
const PLAN_TOKENS: usize = 8192;

/// What was measured of one rank among all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub gemm_flops_per_s: f64,
    pub attention_flops_per_s: f64,
    pub probe_flops_per_s: f64,
    pub memory_bytes_per_s: f64,
    pub layer_s: f64,
    pub request_s: f64,
    pub latency_s: f64,
    pub link_bytes_per_s: f64,
}

/// Measures on all ranks of `comm`; those from `working` on only communicate. Rank 0 gets what was found.
///
/// # Errors
/// The communicator's, the model's.
pub fn measure(
    comm: &mut dyn Communicator,
    model: &dyn Model,
    kernels: Kernels,
    working: usize,
) -> Result<Option<Found>> {
    let bench = Bench { model, kernels, works: comm.rank() < working };
    let (rank, world) = (comm.rank(), comm.size());
    let (layer_growth, gemm_s) = bench.grown(comm, |comm, growth| bench.layers(comm, growth * LAYER_ROWS, 1))?;
    let one_row_s = bench.layers(comm, 1, if model.device().is_cpu() { 1 } else { LAYERS_A_RUN })?;
    let (causal_growth, causal_s) =
        bench.grown(comm, |comm, growth| bench.attention(comm, growth * CAUSAL_ROWS, growth * CAUSAL_ROWS))?;
    let (probe_growth, probe_s) =
        bench.grown(comm, |comm, growth| bench.attention(comm, PROBE_ROWS, growth * PROBE_KEYS))?;
    let (moved_bytes, memory_s) = bench.memory(comm)?;
    let latency_s = bench.gather(comm, SMALL_PART, if model.device().is_cpu() { 1 } else { GATHERS_A_RUN })?;
    let (part_growth, large_s) = bench.grown(comm, |comm, growth| bench.gather(comm, growth * PART, 1))?;
    let request_s = bench.time(comm, true, |comm, _| {
        let plan = (rank == 0).then(|| vec![0; 4 * PLAN_TOKENS]);
        black_box(comm.broadcast_bytes(0, plan)?);
        black_box(model.rope(PLAN_TOKENS.min(model.config().max_positions))?);
        Ok(())
    })?;
    let Some(gemm_s) = gemm_s else { return Ok(None) };
    let known = |seconds: Option<f64>| seconds.unwrap_or(f64::NAN);
    let (causal_rows, probe_keys) = (causal_growth * CAUSAL_ROWS, probe_growth * PROBE_KEYS);
    let gemm_flops_per_s = bench.layer_flops(layer_growth * LAYER_ROWS) / gemm_s;
    let memory_bytes_per_s = moved_bytes / known(memory_s);
    let arithmetic_s = (bench.layer_flops(1) / gemm_flops_per_s).max(bench.layer_bytes()? / memory_bytes_per_s);
    let received_bytes = (4 * part_growth * PART * (world - 1)) as f64;
    // A prediction adds the latency again.
    let moving_s = (known(large_s) - known(latency_s)).max(0.1 * known(large_s));
    Ok(Some(Found {
        gemm_flops_per_s,
        attention_flops_per_s: bench.pair_flops() * (causal_rows * (causal_rows + 1) / 2) as f64 / known(causal_s),
        probe_flops_per_s: bench.pair_flops() * (PROBE_ROWS * probe_keys) as f64 / known(probe_s),
        memory_bytes_per_s,
        layer_s: (known(one_row_s) - arithmetic_s).max(0.0),
        request_s: known(request_s),
        latency_s: known(latency_s),
        // One rank alone receives nothing: then its memory stands in, which no link outruns.
        link_bytes_per_s: if world > 1 { received_bytes / moving_s } else { memory_bytes_per_s },
    }))
}

struct Bench<'a> {
    model: &'a dyn Model,
    kernels: Kernels,
    works: bool,
}

impl Bench<'_> {
    /// Runs `work` on all ranks at once, over and over, if this one `works`. Rank 0 gets the median of the slowest rank's
    /// seconds.
    fn time(
        &self,
        comm: &mut dyn Communicator,
        works: bool,
        mut work: impl FnMut(&mut dyn Communicator, usize) -> Result<()>,
    ) -> Result<Option<f64>> {
        let mut seconds = Vec::with_capacity(RUNS);
        for run in 0..WARM_UPS + RUNS {
            comm.barrier()?;
            let began = Instant::now();
            if works {
                work(comm, run)?;
                self.model.device().synchronize()?;
            }
            // A clock that is too coarse must not make a rate infinite.
            let run_s = began.elapsed().as_secs_f64().max(1e-9);
            if run >= WARM_UPS {
                seconds.push(run_s);
            }
        }
        let all = comm.gather_bytes(0, serde_json::to_vec(&seconds)?)?;
        if comm.rank() > 0 {
            return Ok(None);
        }
        let ranks =
            all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<std::result::Result<Vec<Vec<f64>>, _>>()?;
        for (rank, seconds) in ranks.iter().enumerate() {
            assert_eq!(seconds.len(), RUNS, "runs that rank {rank} has timed");
        }
        let slowest = |run: usize| ranks.iter().map(|seconds| seconds[run]).fold(0.0, f64::max);
        Ok(Some(median(&(0..RUNS).map(slowest).collect::<Vec<_>>())))
    }

    /// Measures, on a device with ever larger sizes until a run takes long enough: how many times the first size that was, and
    /// the seconds.
    fn grown(
        &self,
        comm: &mut dyn Communicator,
        measure: impl Fn(&mut dyn Communicator, usize) -> Result<Option<f64>>,
    ) -> Result<(usize, Option<f64>)> {
        let mut growth = 1;
        loop {
            let seconds = measure(comm, growth)?;
            let enough = growth == LARGEST_GROWTH || self.model.device().is_cpu();
            let enough = seconds.map(|seconds| vec![u8::from(enough || seconds >= LONG_ENOUGH_S)]);
            if comm.broadcast_bytes(0, enough)? == [1] {
                return Ok((growth, seconds));
            }
            growth *= 2;
        }
    }

    /// Bytes that a pass over an array moves, and its seconds: a sum on a CPU, a copy on a device.
    fn memory(&self, comm: &mut dyn Communicator) -> Result<(f64, Option<f64>)> {
        if !self.model.device().is_cpu() {
            let array = Tensor::zeros(2 * ARRAY, DType::F32, self.model.device())?;
            let seconds = self.time(comm, self.works, |_, _| {
                black_box(array.copy()?);
                Ok(())
            })?;
            return Ok(((2 * 8 * ARRAY) as f64, seconds));
        }
        let array: Vec<u64> = if self.works { (0..ARRAY as u64).collect() } else { Vec::new() };
        let seconds = self.time(comm, self.works, |_, _| {
            black_box(array.par_iter().copied().reduce(|| 0, u64::wrapping_add));
            Ok(())
        })?;
        Ok(((8 * ARRAY) as f64, seconds))
    }

    /// Seconds of one layer of so many rows, all but its attention; of `repeats` in a run, the mean.
    fn layers(&self, comm: &mut dyn Communicator, rows: usize, repeats: usize) -> Result<Option<f64>> {
        let config = self.model.config();
        let ids: Vec<u32> = (0..rows).map(|row| (row % config.vocab) as u32).collect();
        let embedded = self.model.embed(&ids)?;
        let seconds = self.time(comm, self.works, |_, run| {
            for repeat in 0..repeats {
                let layer = (run + repeat) % LAYERS.min(config.layers);
                let qkv = self.model.qkv(layer, &embedded)?;
                // Attention gives f32 on a CPU.
                let attended = if self.model.device().is_cpu() { qkv.q.to_dtype(DType::F32)? } else { qkv.q };
                black_box(self.model.finish(layer, embedded.clone(), attended)?);
            }
            Ok(())
        })?;
        Ok(seconds.map(|seconds| seconds / repeats as f64))
    }

    /// Seconds of one layer's attention of the last `queries` of `keys` rows.
    fn attention(&self, comm: &mut dyn Communicator, queries: usize, keys: usize) -> Result<Option<f64>> {
        let config = self.model.config();
        let (device, dtype) = (self.model.device(), self.model.embed(&[0])?.hidden.dtype());
        let noise = |rows: usize, heads: usize, key: u8| -> Result<Tensor> {
            let shape = [rows, heads, config.head_dim];
            match device {
                Device::Cpu => Ok(Tensor::randn(0f32, 1.0, &shape, device)?.to_dtype(dtype)?),
                _ => Ok(cuda::uniform([key; 32], 1.7, &shape, dtype, device)?),
            }
        };
        let q = noise(queries, config.heads, 1)?;
        let (k, v) = (noise(keys, config.kv_heads, 2)?, noise(keys, config.kv_heads, 3)?);
        let (rope, scale) = (self.model.rope(keys)?, self.model.scale());
        let at_q = Positions::run((keys - queries) as u32, queries);
        let blocks = [Keys { k, v, at: Positions::run(0, keys) }];
        self.time(comm, self.works, |_, _| {
            black_box(self.kernels.attend(&q, &at_q, &blocks, Some(&rope), scale)?);
            Ok(())
        })
    }

    /// Seconds of an all-gather of so many values a rank; of `repeats` in a run, the mean.
    fn gather(&self, comm: &mut dyn Communicator, values: usize, repeats: usize) -> Result<Option<f64>> {
        let part = Tensor::zeros(values, DType::F32, self.model.device())?; // [values of this rank]
        let rows = vec![values; comm.size()];
        let seconds = self.time(comm, true, |comm, _| {
            for _ in 0..repeats {
                black_box(comm.all_gather_v(&part, &rows)?);
            }
            Ok(())
        })?;
        Ok(seconds.map(|seconds| seconds / repeats as f64))
    }

    /// FLOPs of a layer's products with so many rows.
    fn layer_flops(&self, rows: usize) -> f64 {
        2.0 * rows as f64 * self.layer_parameters()
    }

    fn layer_parameters(&self) -> f64 {
        let config = self.model.config();
        let attention = 2 * (config.heads + config.kv_heads) * config.head_dim * config.hidden;
        (attention + 3 * config.hidden * config.intermediate) as f64
    }

    /// Bytes of a layer's weights.
    fn layer_bytes(&self) -> Result<f64> {
        let dtype = self.model.embed(&[0])?.hidden.dtype();
        Ok(self.layer_parameters() * dtype.size_in_bytes() as f64)
    }

    /// FLOPs of one query row and one key in one layer: scores and weighted values.
    fn pair_flops(&self) -> f64 {
        let config = self.model.config();
        4.0 * (config.heads * config.head_dim) as f64
    }
}
