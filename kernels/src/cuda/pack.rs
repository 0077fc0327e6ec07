//! Keys and values packed for the kernel of many query rows on Hopper (`kernels/cu/pack_sm90.cu`).

use candle_core::{DType, Tensor};

use super::arguments::{NO_TURN, blocks, pair, turn};
use super::attention_launch::AttentionLaunch;
use super::call::{Call, Output};
use super::inputs::{inputs, tables};
use crate::error::Result;

/// Rows and keys of a tile of the kernel that reads packed keys.
pub(super) const WIDE_TILE: usize = 128;

/// Bytes of a packed tile of keys, and of values.
pub(super) fn tile_bytes(head_dim: usize) -> (usize, usize) {
    (head_dim.div_ceil(64) * WIDE_TILE * 128, WIDE_TILE / 64 * head_dim * 128)
}

/// Keys and values as `pack_sm90` leaves them.
pub(super) struct Packed {
    pub k: Tensor,
    pub v: Tensor,
}

impl AttentionLaunch<'_> {
    /// Keys and values of this call, packed.
    ///
    /// # Errors
    /// Returns an error if the CUDA driver fails.
    pub(super) fn pack(&self) -> Result<Packed> {
        let (kv_heads, head_dim) = (self.shape.kv_heads, self.shape.head_dim);
        let tiles = self.ready.keys.div_ceil(WIDE_TILE);
        let (k_bytes, v_bytes) = tile_bytes(head_dim);
        let count = kv_heads * tiles;
        let mut k = Output::new(self.device, DType::U8, count * k_bytes)?;
        let mut v = Output::new(self.device, DType::U8, count * v_bytes)?;
        if tiles > 0 {
            let tables = tables(self.rope, self.device)?;
            let [lists, places] = self.ready.inputs()?;
            let held = inputs(&self.keys)?;
            let mut call = Call::new(self.device, &self.stream, &self.name("pack_sm90"))?;
            let lists = self.ready.addresses(call.address_of(&lists), call.address_of(&places));
            let mut words =
                vec![lists.key_source, lists.key_rope, call.address_of_output(&mut k), call.address_of_output(&mut v)];
            words.extend(match (self.rope, &tables) {
                (Some(rope), Some(tables)) => turn(&mut call, rope, tables),
                _ => NO_TURN,
            });
            words.extend([pair(self.ready.keys, kv_heads), pair(tiles, 0)]);
            let table = blocks(&mut call, &held);
            call.block(words).block(table);
            let shared_bytes = (WIDE_TILE * (head_dim / 2 + 1) * 4) as u32;
            // SAFETY: PackArguments and Blocks. It reads the keys that the lists name and writes
            // `tiles` tiles a KV head.
            unsafe { call.launch((tiles as u32, kv_heads as u32, 1), 256, shared_bytes) }?;
        }
        Ok(Packed { k: k.tensor(), v: v.tensor() })
    }
}
