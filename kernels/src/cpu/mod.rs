//! Attention on the CPU: blocked, with an online softmax, in f32 for any type of the stored keys.
//!
//! A task is one KV head and a tile of query rows ([`mod@attend`]); it packs a tile of keys once ([`pack`]) and takes it into
//! its rows six at a time ([`strip`]). A key that no query sees is never read ([`sight`]). The inner loops are written for any
//! vector width ([`lanes`]) and compiled for each one; the machine's best is chosen when they run ([`level`]).
//!
//! Nothing here keeps state between calls, and the bits of a result do not depend on the number of threads.

mod attend;
mod few_rows;
mod inputs;
mod lanes;
mod layer;
mod level;
mod matrices;
mod merge;
mod micro;
mod pack;
mod product;
mod readings;
mod rope;
mod scores;
mod sight;
mod single;
mod single_walk;
mod stored;
mod strip;
mod tasks;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use candle_core::Tensor;

use crate::error::Result;
use crate::{Keys, Partial, Positions, Reduce, Rope};
pub(crate) use layer::{add, rms_norm, silu_mul};
use level::Level;
pub(crate) use matrices::num_like::Number;
pub(crate) use matrices::{Lie, multiply};
pub(crate) use merge::merge;
pub(crate) use product::product;
pub(crate) use rope::rotated;
use scores::Asked;

/// See [`crate::Kernels::attend`].
pub fn attend(q: &Tensor, at_q: &Positions, keys: &[Keys], rope: Option<&Rope>, scale: f32) -> Result<Partial> {
    if rope.is_none()
        && let Some(partial) = single::attend(Level::best(), q, at_q, keys, scale)?
    {
        return Ok(partial);
    }
    attend::attend(Level::best(), q, at_q, keys, rope, scale)
}

/// See [`crate::Kernels::column_scores`].
pub fn column_scores(
    q: &Tensor,
    at_q: &Positions,
    keys: &[Keys],
    rope: Option<&Rope>,
    scale: f32,
    lse: &Tensor,
    reduce: Reduce<'_>,
) -> Result<Tensor> {
    let asked = Asked { q, at_q, keys, rope, scale, lse };
    let scores = scores::column_scores(Level::best(), asked, reduce)?;
    let count = scores.len();
    Ok(Tensor::from_vec(scores, count, q.device())?)
}

/// See [`crate::Kernels::add_row_readings`]; `sums` `[queries, keys]`.
#[allow(clippy::too_many_arguments)]
pub fn add_row_readings(
    q: &Tensor,
    at_q: &Positions,
    keys: &[Keys],
    rope: Option<&Rope>,
    scale: f32,
    lse: &Tensor,
    sums: &mut [f32],
) -> Result<()> {
    readings::add_row_readings(Level::best(), Asked { q, at_q, keys, rope, scale, lse }, sums)
}
