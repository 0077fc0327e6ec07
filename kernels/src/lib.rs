//! Math on tensors: attention over keys at arbitrary positions, its exact merge, rotary embedding,
//! movement of rows.
//!
//! This crate has no ranks, no caches and no files. Tensors are row-major by token,
//! `[tokens, heads, head_dim]`, so that a token is one contiguous row to gather and to send. A
//! row's position is data ([`Positions`]), never an offset.
//!
//! Every operation exists as a plain version in candle operations (any device, differentiable, the
//! reference) and, where speed matters, as a fast version for the CPU or for NVIDIA GPUs.
//! [`Kernels`] chooses; for attention it asks one backend after the other.

mod attend;
mod attention;
mod backend;
mod cpu;
#[cfg_attr(not(feature = "cuda"), path = "cuda/absent.rs")]
pub mod cuda;
mod device_list;
mod distance;
mod eight_bits;
mod error;
mod experts;
mod gate;
mod gated;
mod gelu;
mod gradient;
mod linear;
mod merge;
mod moment;
mod norm;
mod packed;
mod packing;
mod per_head;
mod plain;
mod positions;
mod query;
mod rope;
mod rotate;
mod row_sums;
mod rows;
mod sinks;
mod threads;
pub mod tiles;
mod to_eight_bits;
mod weight;

pub use attend::Kernels;
pub use attention::{Keys, Partial, Readings, Reduce};
pub use cpu::instructions;
pub use device_list::DeviceList;
pub use distance::{Distance, distance};
pub use eight_bits::{SCALE_BYTES, is_in_eight_bits, numbers_of_head};
pub use error::{Error, Result};
pub use experts::Pairs;
pub use gate::Gate;
pub use gated::{gated, gated_linear};
pub use gelu::{Gelu, gelu};
pub use linear::{add_linear, linear, linear_f32, linear_onto};
pub use merge::{merge, merge_all};
pub use moment::Moment;
pub use norm::{add, cast, layer_norm, rms_norm, scale, scale_rows};
pub use packed::Packed;
pub use packing::{Packing, of_e4m3};
pub use positions::{PAD, Positions, Rule, SHARED};
pub use query::Query;
pub use rope::{Pairing, QueryGrowth, Rope, RopeConfig, RopeScaling};
pub use row_sums::RowSums;
pub use rows::{add_rows, contiguous, gather, gather_list, join, write_rows};
pub use sinks::{lse_with_sinks, with_sinks};
pub use threads::Threads;
pub use to_eight_bits::{from_eight_bits, to_eight_bits};
pub use weight::{Weight, WeightRef};
