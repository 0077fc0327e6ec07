//! Attention and products on the CPU. Attention is blocked, with an online softmax, in f32, or in
//! pairs of bf16 where keys and values are stored so and the machine multiplies pairs.
//!
//! A task is one KV head and a tile of query rows ([`mod@attend`]); it packs a tile of keys once
//! ([`pack`]) and takes it into its rows six at a time ([`strip`]). A key that no query sees is
//! never read ([`sight`]). The inner loops are written for any vector width ([`lanes`]) and
//! compiled for each one; the machine's best is chosen when they run ([`level`]). Where the machine
//! multiplies pairs in tile registers ([`amx`]), products of many rows and attention to pairs take
//! blocks of 32 rows there ([`mod@multiply`], [`strip_amx`]).
//!
//! Nothing here keeps state between calls, and the bits of a result do not depend on the number of
//! threads.

mod amx;
mod attend;
mod block;
mod blocks;
mod codes;
mod eight_bits;
mod few_rows;
mod fixed_point;
mod fresh;
mod gated;
mod inputs;
mod integers;
mod lanes;
mod layer;
mod level;
mod many_rows;
mod matrices;
mod merge;
mod micro;
mod multiply;
mod pack;
mod packed_integers;
mod packed_pairs;
mod packed_rows;
#[cfg(test)]
mod packed_tests;
mod pairs;
mod product;
mod readings;
mod rope;
mod scores;
mod sight;
mod single;
mod single_walk;
mod stored;
mod strip;
mod strip_amx;
mod super_blocks;
mod tasks;
#[cfg(test)]
mod tests;
mod unpacked;
#[cfg(target_arch = "x86_64")]
mod x86;

use candle_core::{DType, Tensor};

use crate::backend::Backend;
use crate::eight_bits::is_in_eight_bits;
use crate::error::Result;
use crate::{Partial, Query, Readings, Reduce};
pub(crate) use eight_bits::{from_eight_bits, to_eight_bits};
pub(crate) use gated::{gated, gelu_exact, gelu_tanh};
pub(crate) use layer::{add, layer_norm, rms_norm, to_bf16};
use level::Level;
pub use level::instructions;
pub(crate) use matrices::num_like::Number;
pub(crate) use matrices::{Matrix, multiply};
pub(crate) use merge::merge;
pub(crate) use packed_rows::unpack_all;
pub(crate) use product::{gated_product, product, product_of_packed};
pub(crate) use rope::rotated;
use scores::Asked;

/// The CPU's own backend, for tensors on the host of which no gradient is wanted.
pub struct Host;

/// Whether attention to these keys is computed here.
fn attends(query: &Query<'_>) -> bool {
    let q = query.q;
    q.device().is_cpu() && matches!(q.dtype(), DType::F32 | DType::BF16 | DType::F16) && !query.tracks()
}

/// Whether attention, normalised by `lse`, is read here.
pub fn reads(query: &Query<'_>, lse: &Tensor) -> bool {
    attends(query) && !lse.track_op()
}

impl Backend for Host {
    fn reads_eight_bits(&self) -> bool {
        true
    }

    fn attend(&self, query: &Query<'_>) -> Result<Option<Partial>> {
        if !attends(query) {
            return Ok(None);
        }
        let unpacks = query.keys.iter().all(|block| is_in_eight_bits(&block.k));
        if (query.rope.is_none() || unpacks)
            && let Some(partial) = single::attend(Level::best(), query)?
        {
            return Ok(Some(partial));
        }
        attend::attend(Level::best(), query).map(Some)
    }

    fn column_scores(&self, query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Option<Tensor>> {
        if !reads(query, lse) {
            return Ok(None);
        }
        let scores = scores::column_scores(Level::best(), Asked { query, lse }, reduce)?;
        let count = scores.len();
        Ok(Some(Tensor::from_vec(scores, count, query.q.device())?))
    }

    fn readings(&self, query: &Query<'_>, lse: &Tensor, by: Readings) -> Result<Option<Tensor>> {
        if by != Readings::PerRow || !reads(query, lse) {
            return Ok(None);
        }
        let (queries, keys) = (query.at.len(), query.key_count());
        let mut sums = vec![0.0; queries * keys];
        add_row_readings(query, lse, &mut sums)?;
        Ok(Some(Tensor::from_vec(sums, (queries, keys), query.q.device())?))
    }
}

/// Adds to `sums` `[queries, keys]` what each query row pays to each key, the mean over the heads.
pub fn add_row_readings(query: &Query<'_>, lse: &Tensor, sums: &mut [f32]) -> Result<()> {
    readings::add_row_readings(Level::best(), Asked { query, lse }, sums)
}
