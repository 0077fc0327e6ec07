//! Faults that only an emulated GPU has on demand: an old driver, misplaced shared memory, a
//! missing instruction, inexact results, parallel blocks, a memory of another size. The environment
//! of a process demands them, so each is another run of one of the other tests, or of a test here
//! that runs itself again.

use std::process::{Command, Output};

use candle_core::{DType, Device, Result, Tensor};
use tributary_kernels::cuda;

use crate::kit::gpu;

/// Runs one of this program's tests in a process with these variables.
fn run(test: &str, variables: &[(&str, &str)]) -> (Output, String) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", test, "--include-ignored", "--nocapture"]).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("running 1 test"), "{test} is one of the tests: {said}");
    (output, said)
}

/// Output of a test that must fail in a process with this variable.
fn refused(test: &str, variable: &str, value: &str) -> String {
    let (output, said) = run(test, &[(variable, value)]);
    assert!(!output.status.success(), "{variable}={value}: {said}");
    said
}

/// A test passes in a process with these variables, and says this.
fn passes(test: &str, variables: &[(&str, &str)]) -> String {
    let (output, said) = run(test, variables);
    assert!(output.status.success(), "{variables:?}: {said}");
    said
}

/// Whether this process is the second one of a test that runs itself again.
fn is_told(variable: &str) -> bool {
    std::env::var_os(variable).is_some()
}

#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn an_older_driver_is_refused_with_both_versions() {
    let said = refused("filling::nothing_and_other_types_are_told", "EMULATED_DRIVER_VERSION", "12080");
    let line = "its driver knows CUDA 12.8, and this program is built for 13.0: install NVIDIA's driver 580 or newer";
    assert!(said.contains(line), "{said}");
}

#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn shared_memory_that_is_not_aligned_stops_the_packed_kernel() {
    let said = refused("attention::numbers_in_hidden_keys_change_nothing", "EMULATED_SHARED_BASE", "512");
    assert!(said.contains("attend_sm90_bf16_64"), "{said}");
    assert!(said.contains("shared memory does not begin at a multiple of 1024"), "{said}");
}

/// A missing fence shows in no number: the emulated GPU must say it.
#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn a_missing_fence_stops_the_packed_kernel() {
    for (fence, line) in [
        ("shared_fence", "stored the operand, and shared_fence() is missing between its store and the barrier"),
        ("mbarrier_fence", "its mbarrier was initialised, but mbarrier_fence() is missing"),
    ] {
        let said = refused("attention::numbers_in_hidden_keys_change_nothing", "EMULATED_WITHOUT", fence);
        assert!(said.contains("attend_sm90_bf16_64") && said.contains(line), "{said}");
    }
}

/// A GPU's exponentials and reciprocals are off by two units in the last place: bounds leave room
/// for that, but not for much more.
#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn inexact_exponentials_stay_within_the_bounds() {
    let noise = |units| [("EMULATED_NOISE", units)];
    for test in [
        "attention::a_long_staircase_is_that_of_f64_in_both_ways",
        "layers::activations_and_sums",
        "layers::norms_of_rows_and_heads",
        "merging::parts_of_every_number_and_type",
        "precision::packed_131072_keys_weigh_what_they_should",
    ] {
        passes(test, &noise("2"));
    }
    let said = refused("layers::activations_and_sums", "EMULATED_NOISE", "2000");
    assert!(said.contains("relative error"), "{said}");
}

/// Blocks that run at a time share the items, and every other test runs two of them; a block that
/// is alone has all items.
#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn items_are_shared_by_as_many_blocks_as_run_at_a_time() {
    for blocks in ["1", "3"] {
        passes("attention::more_items_than_multiprocessors_are_that_of_f64", &[("EMULATED_BLOCKS", blocks)]);
    }
}

fn bytes(count: usize, device: &Device) -> Result<Tensor> {
    Tensor::zeros(count, DType::U8, device)
}

fn is_refused(answer: Result<Tensor>) -> bool {
    answer.is_err_and(|error| cuda::is_out_of_memory(&error))
}

/// A card of 80 GB on a host with less.
#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn a_large_card_is_full_when_it_would_be() {
    const GIB: usize = 1 << 30;
    const VARIABLE: &str = "EMULATED_GPU_BYTES";
    if !is_told(VARIABLE) {
        passes("emulated::a_large_card_is_full_when_it_would_be", &[(VARIABLE, &(80 * GIB).to_string())]);
        return;
    }
    let device = gpu();
    assert_eq!(cuda::memory(&device).unwrap().total_bytes, 80 << 30);
    let most = bytes(70 * GIB, &device).unwrap();
    assert!(cuda::memory(&device).unwrap().free_bytes <= 10 << 30);
    assert!(is_refused(bytes(11 * GIB, &device)), "there is no room for it");
    let small = bytes((50 << 20) + 7, &device).unwrap();
    assert!(cuda::download(&small).unwrap().to_vec1::<u8>().unwrap().iter().all(|&byte| byte == 0));
    drop(most);
    bytes(70 * GIB, &device).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let most_kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    assert!(most_kib.is_some_and(|kib: u64| kib < 1 << 20), "the host gave {most_kib:?} KiB");
}

/// Half of the memory is free, in pieces: a tensor of two of them has no place before its
/// neighbours are free too.
#[test]
#[ignore = "needs an emulated GPU: make cuda-test"]
fn free_memory_in_pieces_holds_no_larger_tensor() {
    const PIECE: usize = 4 << 20;
    let variables = [("EMULATED_POOL", "pieces"), ("EMULATED_GPU_BYTES", "67108864")];
    if !is_told(variables[0].0) {
        passes("emulated::free_memory_in_pieces_holds_no_larger_tensor", &variables);
        return;
    }
    let device = gpu();
    let mut all: Vec<_> = (0..16).map_while(|_| bytes(PIECE, &device).ok()).map(Some).collect();
    assert!(all.len() >= 15, "{} pieces", all.len());
    all.iter_mut().step_by(2).for_each(|piece| *piece = None);
    device.synchronize().unwrap();
    assert!(cuda::memory(&device).unwrap().free_bytes >= 7 * PIECE as u64);
    assert!(is_refused(bytes(2 * PIECE, &device)), "no piece is so large");
    all.iter_mut().step_by(2).for_each(|piece| *piece = Some(bytes(PIECE, &device).unwrap()));
    all[2] = None;
    all[3] = None;
    all[2] = Some(bytes(2 * PIECE, &device).unwrap());
}
