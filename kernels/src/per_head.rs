//! Keys with other positions in each KV head, as after an eviction: a call over them is split into
//! one ordinary call a head, so that no implementation has to support them.

use candle_core::Tensor;

use crate::error::Result;
use crate::rows::join;
use crate::{Keys, Partial, Query};

/// One KV head's part of a call.
pub(crate) struct HeadCall {
    /// Its query heads `[queries, heads / kv_heads, head_dim]`.
    pub q: Tensor,
    /// Its head of every block `[keys, 1, head_dim]`, with the rows' positions in it.
    pub keys: Vec<Keys>,
    /// The first of its query heads.
    first: usize,
}

impl HeadCall {
    /// Its part of a call.
    pub(crate) fn query<'a>(&'a self, whole: &Query<'a>) -> Query<'a> {
        Query { q: &self.q, keys: &self.keys, ..*whole }
    }

    /// Its query heads' part of `x` `[queries, heads]`.
    pub(crate) fn part_of(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.narrow(1, self.first, self.q.dim(1)?)?)
    }
}

/// The call head by head if some of the keys have positions per KV head; none otherwise. The call
/// has been checked.
pub(crate) fn split(q: &Tensor, keys: &[Keys]) -> Result<Option<Vec<HeadCall>>> {
    let Some(kv_heads) = keys.iter().find_map(|block| block.at.heads()) else { return Ok(None) };
    assert_eq!(q.dim(1)? % kv_heads, 0, "query heads of {kv_heads} KV heads");
    let group = q.dim(1)? / kv_heads;
    let of_head = |head: usize| -> Result<HeadCall> {
        let cut = |block: &Keys| -> Result<Keys> {
            let at = block.at.of_head(head).clone();
            Ok(Keys { k: block.k.narrow(1, head, 1)?, v: block.v.narrow(1, head, 1)?, at })
        };
        let first = head * group;
        let keys = keys.iter().map(cut).collect::<Result<_>>()?;
        Ok(HeadCall { q: q.narrow(1, first, group)?, keys, first })
    };
    (0..kv_heads).map(of_head).collect::<Result<_>>().map(Some)
}

/// The heads' results as those of the whole call.
pub(crate) fn joined(parts: &[Partial]) -> Result<Partial> {
    let of = |pick: fn(&Partial) -> &Tensor| join(&parts.iter().map(pick).collect::<Vec<_>>(), 1);
    Ok(Partial { out: of(|part| &part.out)?, lse: of(|part| &part.lse)? })
}

/// The mean over the heads of the attention received.
pub(crate) fn mean(parts: &[Tensor]) -> Result<Tensor> {
    let (first, rest) = parts.split_first().expect("a call has at least one KV head");
    let sum = rest.iter().try_fold(first.clone(), |sum, part| sum + part)?;
    Ok((sum / parts.len() as f64)?)
}

/// The largest over the heads of the attention received.
pub(crate) fn largest(parts: &[Tensor]) -> Result<Tensor> {
    let (first, rest) = parts.split_first().expect("a call has at least one KV head");
    Ok(rest.iter().try_fold(first.clone(), |largest, part| largest.maximum(part))?)
}
