//! The kernels' arguments, laid out as in `kernels/cu/attention.cuh` and the kernels' own files. Addresses are those of the
//! device.

use cudarc::driver::{CudaStream, DeviceRepr};

use super::reading::{Address, of};
use super::rope::Tables;
use super::sight::MAX_BLOCKS;
use crate::{Pairing, Rope};

/// A rotary embedding on the device; `half` 0: none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Turn {
    cosine: u64,
    sine: u64,
    half: u32,
    interleaved: u32,
}

impl Turn {
    /// No rotation.
    pub fn none() -> Self {
        Self::default()
    }

    /// By the tables of a rotary embedding, which must live until the launch is in the stream.
    pub fn new(rope: &Rope, tables: &Tables, stream: &CudaStream) -> Self {
        let interleaved = u32::from(rope.pairing() == Pairing::Interleaved);
        let half = (rope.rotary_dims() / 2) as u32;
        Self { cosine: of(&tables.cosine, stream).0, sine: of(&tables.sine, stream).0, half, interleaved }
    }
}

/// Where blocks of keys and values begin.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    k: [u64; MAX_BLOCKS],
    v: [u64; MAX_BLOCKS],
}

impl Blocks {
    /// From the addresses of keys and values, block by block.
    pub fn new(addresses: &[(Address<'_>, Address<'_>)]) -> Self {
        let mut blocks = Self { k: [0; MAX_BLOCKS], v: [0; MAX_BLOCKS] };
        for (index, (k, v)) in addresses.iter().enumerate() {
            (blocks.k[index], blocks.v[index]) = (k.0, v.0);
        }
        blocks
    }
}

/// `AttendArguments` of attention.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AttendArguments {
    pub q: u64,
    pub rows: u64,
    pub rope: u64,
    pub sight: u64,
    pub tiles: u64,
    pub items: u64,
    pub key_source: u64,
    pub key_rope: u64,
    pub packed_k: u64,
    pub packed_v: u64,
    pub out: u64,
    pub lse: u64,
    pub part_out: u64,
    pub part_lse: u64,
    pub turn: Turn,
    pub key_turn: Turn,
    pub queries: u32,
    pub keys: u32,
    pub kv_heads: u32,
    pub group: u32,
    pub key_tiles: u32,
    pub scale_log2: f32,
}

/// `PackArguments` of pack_sm90.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct PackArguments {
    pub key_source: u64,
    pub key_rope: u64,
    pub packed_k: u64,
    pub packed_v: u64,
    pub turn: Turn,
    pub keys: u32,
    pub kv_heads: u32,
    pub key_tiles: u32,
}

/// `CombineArguments` of attend_combine.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct CombineArguments {
    pub part_out: u64,
    pub part_lse: u64,
    pub splits: u64,
    pub rows: u64,
    pub out: u64,
    pub lse: u64,
    pub queries: u32,
    pub kv_heads: u32,
    pub group: u32,
    pub tile_rows: u32,
    pub head_dim: u32,
}

/// `ScoreArguments` of scores.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct ScoreArguments {
    pub q: u64,
    pub lse: u64,
    pub weights: u64,
    pub rows: u64,
    pub sight: u64,
    pub tile_sight: u64,
    pub key_source: u64,
    pub key_rope: u64,
    pub key_number: u64,
    pub out: u64,
    pub key_turn: Turn,
    pub queries: u32,
    pub keys: u32,
    pub kv_heads: u32,
    pub group: u32,
    pub reduce: u32,
    pub scale_log2: f32,
}

// SAFETY: plain numbers laid out as in C, copied to the kernel as they are.
unsafe impl DeviceRepr for Blocks {}
// SAFETY: as above.
unsafe impl DeviceRepr for AttendArguments {}
// SAFETY: as above.
unsafe impl DeviceRepr for PackArguments {}
// SAFETY: as above.
unsafe impl DeviceRepr for CombineArguments {}
// SAFETY: as above.
unsafe impl DeviceRepr for ScoreArguments {}
