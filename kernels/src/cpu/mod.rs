//! Attention on the CPU: blocked, with an online softmax, in f32 whatever the keys are stored in.
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
mod merge;
mod micro;
mod pack;
mod product;
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

use crate::attention::Read;
use crate::error::Result;
use crate::{Keys, Partial, Positions, Reduce, Rope};
pub(crate) use layer::{add, rms_norm, silu_mul};
use level::Level;
pub(crate) use merge::merge;
pub(crate) use product::product;
pub(crate) use rope::rotated;

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
    let scores = scores::column_scores(Level::best(), q, at_q, keys, rope, scale, lse, Read::Reduced(reduce))?;
    let count = scores.len();
    Ok(Tensor::from_vec(scores, count, q.device())?)
}

/// See [`crate::Kernels::readings`], each row's.
pub fn row_readings(
    q: &Tensor,
    at_q: &Positions,
    keys: &[Keys],
    rope: Option<&Rope>,
    scale: f32,
    lse: &Tensor,
) -> Result<Tensor> {
    let readings = scores::column_scores(Level::best(), q, at_q, keys, rope, scale, lse, Read::Rows)?;
    let total: usize = keys.iter().map(|block| block.at.len()).sum();
    Ok(Tensor::from_vec(readings, (at_q.len(), total), q.device())?)
}
