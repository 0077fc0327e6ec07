//! Speed of the CUDA kernels on this machine's first GPU, compared with its matrix products and its
//! memory in the same run, and with PyTorch where `gpu/pytorch.py` has left its numbers.
//!
//! Heads are 32 over 8 of 128, bf16. Cases run one after the other: the case makes its tensors,
//! checks its result (attention against f64 on some rows, others against the CPU in f32), runs
//! several times, and prints its line. A case with a wrong result or a failure is marked, the
//! others go on, and the exit code is 1. The final table has medians with their range, the error,
//! and the share of the bound. Operations count only pairs of rows that see each other; their share
//! in the computed pairs is printed beside them. Times are not asserted.
//!
//! Copies run in front of every timed case, so that the host is ahead of the device and launches do
//! not count. The host's cost of a launch is measured separately, last.
//!
//! Environment: `GPU_BENCH_KEYS` (default 32768), `GPU_BENCH_ROUNDS` (7), `GPU_BENCH_PEAK` (8192:
//! the side of the measured matrix product), `GPU_BENCH_COPY` (bytes), `GPU_BENCH_ONLY` (a part of
//! the names of the cases to run, for a profiler), `GPU_BENCH_JSON` (a file for the numbers),
//! `PYTORCH_JSON` (PyTorch's numbers).

#![allow(clippy::unwrap_used)] // a measurement may panic, its helpers too

mod attention;
mod case;
mod report;
mod small;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::cuda::{device, download, identity, launch_cost, uniform};
use tributary_kernels::linear;

use case::{Bound, Case, Measured, Planned};
use report::Report;

const HEADS: usize = 32;
const KV_HEADS: usize = 8;
const DIM: usize = 128;
const SCALE: f32 = 0.088_388_35;
/// Rows that are checked against f64.
const CHECKED: usize = 5;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn random(key: u8, dims: &[usize], device: &Device) -> Tensor {
    uniform([key; 32], 1.7, dims, DType::BF16, device).unwrap()
}

/// The rows that are checked.
fn picked(count: usize) -> Vec<u32> {
    (0..CHECKED).map(|i| ((count - 1) * i / (CHECKED - 1)) as u32).collect()
}

/// Rows of a tensor, in f32 on the host.
fn host_rows(x: &Tensor, rows: &[u32]) -> Tensor {
    let x = download(x).unwrap().to_dtype(DType::F32).unwrap();
    x.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap()
}

fn distance(found: &[f64], expected: &[f64]) -> f64 {
    let square = |list: &mut dyn Iterator<Item = f64>| list.map(|x| x * x).sum::<f64>();
    let far = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    (far / square(&mut expected.iter().copied())).sqrt()
}

/// The two cases by which the others are judged.
fn ceilings(side: usize, copy: usize, device: &Device) -> Vec<Planned> {
    let (on, of) = (device.clone(), device.clone());
    vec![
        Planned::new("matrix product", move || {
            let (a, b) = (random(15, &[side, side], &on), random(16, &[side, side], &on));
            Case::new(Bound::Nothing, 2.0 * (side as f64).powi(3), 0.0, move || linear(&a, &b, None).unwrap())
        })
        .beside("matmul_8192"),
        Planned::new("copy", move || {
            let piece = random(17, &[copy / 2], &of);
            Case::new(Bound::Nothing, 0.0, 2.0 * copy as f64, move || piece.copy().unwrap())
        })
        .beside("copy_1gib"),
    ]
}

/// Message of a panic.
fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

fn main() -> ExitCode {
    if tributary_kernels::cuda::count().unwrap_or(0) == 0 {
        println!("no GPU here: nothing measured");
        return ExitCode::SUCCESS;
    }
    let device = device(0).unwrap();
    let who = identity(0).unwrap();
    let keys = setting("GPU_BENCH_KEYS", 32768);
    let side = setting("GPU_BENCH_PEAK", 8192);
    let copy = setting("GPU_BENCH_COPY", 1 << 30);
    let rounds = setting("GPU_BENCH_ROUNDS", 7);
    let only = std::env::var("GPU_BENCH_ONLY").unwrap_or_default();
    println!(
        "# {}, driver for CUDA {}.{}; {keys} keys, {HEADS} over {KV_HEADS} heads of {DIM}, bf16",
        who.name, who.driver.0, who.driver.1
    );
    let before = random(18, &[copy / 2], &device);
    // PyTorch's measurements have one size.
    let mut report = Report::new(keys, (keys, side, copy) == (32768, 8192, 1 << 30));
    let planned = ceilings(side, copy, &device)
        .into_iter()
        .chain(attention::planned(keys, &device))
        .chain(small::planned(keys, &device))
        .filter(|planned| planned.name.contains(&only));
    for Planned { name, pytorch, make } in planned {
        let measured = catch_unwind(AssertUnwindSafe(|| Measured::of(make(), rounds, &device, &before)));
        report.add(name, pytorch, measured.map_err(|panic| words(&*panic)));
        std::io::stdout().flush().unwrap();
    }
    report.write(None);
    report.print();
    let cost = launch_cost(0, copy);
    println!("{}", report::launches(&cost));
    report.write(cost.as_ref().ok());
    if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
