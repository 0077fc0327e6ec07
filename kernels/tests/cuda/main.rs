//! The CUDA kernels against sums in f64, on random data of odd shapes. On a machine without a GPU
//! they run on an emulated one (`make cuda-test`); fresh memory is NaN there, so omissions of a
//! kernel show.

#![allow(clippy::unwrap_used)] // a test may panic, its helpers too

mod attention;
mod device;
#[path = "../naive/drawn.rs"]
mod drawn;
mod emulated;
mod experts;
mod filling;
#[path = "../naive/gates.rs"]
mod gates;
mod growing;
mod kit;
mod layers;
mod merging;
mod moving;
#[path = "../naive/mod.rs"]
#[allow(dead_code)] // random cases of every kind are for the CPU
mod naive;
mod packed;
mod persistent;
mod precision;

use tributary_kernels::{
    Keys, PAD, Packed, Packing, Pairing, Positions, Query, Reduce, Rope, RopeConfig, RopeScaling, Rule, SHARED,
};
