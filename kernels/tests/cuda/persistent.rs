//! The kernel whose blocks take item after item, on one multiprocessor and on two, each row of its
//! answer on its own.

use std::io::Write;

use candle_core::{CudaDevice, DType, Device};
use tributary_kernels::Pairing;
use tributary_kernels::cuda::{identity, multiprocessors};

use crate::attention::{attend, cases, flat, relative, tolerance};
use crate::kit::{Leaving, gpu};
use crate::naive::{self, Sizes};

/// The GPU, if it has this kernel.
fn hopper() -> Option<CudaDevice> {
    let (major, minor) = identity(0).unwrap().capability;
    if major < 9 {
        let _ = writeln!(std::io::stderr(), "skipped: compute capability {major}.{minor} has no blocks that stay");
        return None;
    }
    let Device::Cuda(device) = gpu() else { unreachable!("a GPU was asked for") };
    Some(device)
}

/// Every row and head against f64: an error in one of a thousand rows does not drown among the
/// others.
fn every_row_is_that_of_f64(sizes: &Sizes) {
    let (host, case) = cases(sizes, &gpu());
    let (out, lse) = naive::attend(&host, sizes.rotary);
    let found = attend(&case);
    let (found, found_lse) = (flat(&found.out), flat(&found.lse));
    for (row, (found, expected)) in found.chunks(sizes.head_dim).zip(out.chunks(sizes.head_dim)).enumerate() {
        let what = format!("{:?}, heads of {}: row {row}", sizes.dtype, sizes.head_dim);
        let error = relative(found, expected);
        assert!(error < 2.0 * tolerance(sizes.dtype), "{what}: {error:e}");
        let far = naive::distance(&found_lse[row..=row], &lse[row..=row]);
        assert!(far < 2.0 * tolerance(sizes.dtype), "{what}: lse {far:e}");
    }
}

/// Three query tiles of 11 key tiles on two blocks: each list is cut in two, and a block has three
/// items or so. On one block: three whole lists, one after the other.
#[test]
fn one_and_two_blocks_take_item_after_item() {
    let Some(device) = hopper() else { return };
    let all = multiprocessors(&device).unwrap();
    for resident in [1, 2] {
        let _leaving = Leaving::these(all - resident);
        for (seed, head_dim) in [(1, 64), (2, 96), (3, 128)] {
            for dtype in [DType::BF16, DType::F16] {
                every_row_is_that_of_f64(&Sizes {
                    seed,
                    queries: 180,
                    keys: vec![900, 500],
                    kv_heads: 1,
                    group: 2,
                    head_dim,
                    segments: 1,
                    orders: 1400,
                    rotary: Some((Pairing::Half, head_dim)),
                    dtype,
                    ascending: false,
                });
            }
        }
    }
}

/// Lists of several lengths and KV heads, tiles with rows of several segments: 12 KV heads on two
/// blocks, some hundred items.
#[test]
fn two_blocks_take_hundreds_of_items() {
    let Some(device) = hopper() else { return };
    let _leaving = Leaving::these(multiprocessors(&device).unwrap() - 2);
    every_row_is_that_of_f64(&Sizes {
        seed: 7,
        queries: 1100,
        keys: vec![300, 90],
        kv_heads: 12,
        group: 1,
        head_dim: 64,
        segments: 3,
        orders: 380,
        rotary: Some((Pairing::Interleaved, 32)),
        dtype: DType::BF16,
        ascending: false,
    });
}
