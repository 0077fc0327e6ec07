//! NVIDIA GPUs: devices, and the kernels of our own that run on them. Sources are in `kernels/cu`,
//! one file an operation; `kernels/build.rs` compiles them, `module` finds them.
//!
//! Everything of one [`Device`] runs on one stream, in the order of the calls; nothing here waits
//! for the device unless its documentation says so. Operations answer `None` for tensors they do
//! not know (another device, another type, a layout that is not contiguous): then candle's own do
//! the work.
//!
//! [`Device`]: candle_core::Device

mod arguments;
mod attend;
mod attention_launch;
mod attribute;
mod blas;
mod call;
mod device;
mod device_event;
mod device_info;
mod distance;
mod eight_bits;
mod failure;
mod fill;
mod gpu;
mod grouped;
mod inputs;
mod launch_cost;
mod layer;
mod linear;
mod memory;
mod merge;
mod module;
mod occupancy;
mod out_of_memory;
mod pack;
mod packed;
mod prepared;
mod rising;
mod rope;
mod rope_tables;
mod rows;
mod scores;
mod shape;
mod sight;
mod write;

pub use attend::visible_share;
pub(crate) use attribute::capability;
pub use device::{attach_thread, count, device, identity};
pub use device_event::DeviceEvent;
pub use device_info::{Identity, Memory, Pool};
pub(crate) use distance::distance;
pub(crate) use eight_bits::{from_eight_bits, to_eight_bits};
pub use fill::uniform;
pub(crate) use gpu::Gpu;
pub(crate) use grouped::grouped;
pub use launch_cost::{LaunchCost, launch_cost};
pub(crate) use layer::{add, add_biases, cast, gated, rms_norm, scale};
pub(crate) use linear::{add_product, product};
pub use memory::{download, memory, nothing, pool, upload, uploaded_bytes};
pub(crate) use merge::merge;
pub use module::loads;
pub use occupancy::{leave_multiprocessors, multiprocessors};
pub use out_of_memory::is_out_of_memory;
pub(crate) use packed::unpack;
pub(crate) use rope::rotated;
pub(crate) use rope_tables::RopeTables;
pub(crate) use rows::{contiguous, gather, gather_by, join};
pub use shape::attends;
pub(crate) use write::{add_pairs, write_rows};
