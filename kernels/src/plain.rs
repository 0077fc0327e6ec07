//! Attention in candle operations: any device, differentiable, the reference for the others. It
//! holds the whole `[heads, queries, keys]` score matrix, so it is for tests, training and devices
//! without a kernel of their own. It computes in f32, or in f64 where the queries are.

use candle_core::{D, DType, Device, Tensor};

use crate::backend::Backend;
use crate::error::Result;
use crate::{Keys, Partial, Positions, Query, Readings, Reduce, cuda, gather, tiles};

/// The backend that answers every call.
pub struct Plain;

impl Backend for Plain {
    fn attend(&self, query: &Query<'_>) -> Result<Option<Partial>> {
        attend(query).map(Some)
    }

    fn column_scores(&self, query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Option<Tensor>> {
        column_scores(query, lse, reduce).map(Some)
    }

    fn readings(&self, query: &Query<'_>, lse: &Tensor, by: Readings) -> Result<Option<Tensor>> {
        readings(query, lse, by).map(Some)
    }
}

fn attend(query: &Query<'_>) -> Result<Partial> {
    let q = query.q;
    let (queries, heads, head_dim) = q.dims3()?;
    let Some(seen) = Seen::new(query)? else {
        return nothing_seen(q);
    };
    let (kv_heads, group) = (seen.kv_heads, heads / seen.kv_heads);
    let scores = seen.scores(query)?; // [kv_heads, group, queries, keys], −∞ where not seen

    // Subtracting a constant changes neither result nor gradient, so the row's largest score is
    // detached.
    let largest = scores.detach().max_keepdim(D::Minus1)?.maximum(f32::MIN)?;
    let weights = scores.broadcast_sub(&largest)?.exp()?;
    // A row that sees nothing has the sum 0; adding 1 there keeps the quotient and its gradient
    // finite.
    let blind = seen.blind_rows(q.device())?; // [1, 1, queries, 1]
    let sum = weights.sum_keepdim(D::Minus1)?.broadcast_add(&blind.to_dtype(wide(q))?)?;
    let flat = (kv_heads, group * queries, ());
    let values = seen.v.transpose(0, 1)?.contiguous()?; // [kv_heads, keys, head_dim]
    let out = weights.reshape(flat)?.matmul(&values)?.reshape((kv_heads, group, queries, head_dim))?;
    let out = out.broadcast_div(&sum)?.permute((2, 0, 1, 3))?.reshape((queries, heads, head_dim))?;
    let lse = (largest + sum.log()?)?;
    let nothing = filled(f64::NEG_INFINITY, &lse)?;
    let lse = blind.broadcast_as(lse.dims())?.where_cond(&nothing, &lse)?;
    let lse = lse.permute((2, 0, 1, 3))?.reshape((queries, heads))?;
    Ok(Partial { out: out.contiguous()?.to_dtype(answer(q))?, lse: lse.contiguous()? })
}

/// The type of attention's output: see [`Partial`].
fn answer(q: &Tensor) -> DType {
    if q.device().is_cpu() { wide(q) } else { q.dtype() }
}

/// The type that is computed in.
fn wide(q: &Tensor) -> DType {
    if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 }
}

/// A tensor like another one, with one number in all places.
fn filled(number: f64, like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::full(number, like.dims(), like.device())?.to_dtype(like.dtype())?)
}

/// The result of attention over no key at all. Made without one of candle's kernels: on a device
/// every implementation comes here when it is given no key.
fn nothing_seen(q: &Tensor) -> Result<Partial> {
    let (queries, heads, head_dim) = q.dims3()?;
    if q.elem_count() == 0 {
        let out = cuda::nothing(q.shape(), answer(q), q.device())?;
        return Ok(Partial { out, lse: cuda::nothing((queries, heads), wide(q), q.device())? });
    }
    let out = Tensor::zeros((queries, heads, head_dim), answer(q), q.device())?;
    let lse = Tensor::from_vec(vec![f32::NEG_INFINITY; queries * heads], (queries, heads), q.device())?;
    let lse = lse.to_dtype(wide(q))?;
    Ok(Partial { out, lse })
}

fn column_scores(query: &Query<'_>, lse: &Tensor, reduce: Reduce<'_>) -> Result<Tensor> {
    let (q, total) = (query.q, query.key_count());
    let (queries, heads, _) = q.dims3()?;
    let Some(seen) = Seen::new(query)? else {
        return match total {
            0 => cuda::nothing(0, wide(q), q.device()),
            _ => Ok(Tensor::zeros(total, wide(q), q.device())?),
        };
    };
    let p = seen.probabilities(query, lse)?.reshape((heads, queries, ()))?;
    let p = (p.sum(0)? / heads as f64)?; // [queries, keys]
    let column = reduced(&p, reduce)?;
    seen.spread(&column, total)
}

/// One number a key from every query row's attention, `[queries, keys]`.
pub fn reduced(p: &Tensor, reduce: Reduce<'_>) -> Result<Tensor> {
    Ok(match reduce {
        Reduce::Norm => {
            let squares = p.sqr()?.sum(0)?;
            // The root's slope at 0 is infinite: a 1 that is added below the root and subtracted
            // after it makes the gradient 0.
            let unseen = squares.detach().eq(0f32)?.to_dtype(p.dtype())?;
            ((squares + &unseen)?.sqrt()? - unseen)?
        }
        Reduce::Mass => p.sum(0)?,
        Reduce::Weighted(weights) => {
            let weights = Tensor::from_slice(weights, (weights.len(), 1), p.device())?.to_dtype(p.dtype())?;
            p.broadcast_mul(&weights)?.sum(0)?
        }
    })
}

fn readings(query: &Query<'_>, lse: &Tensor, by: Readings) -> Result<Tensor> {
    let (q, total) = (query.q, query.key_count());
    let (queries, heads, _) = q.dims3()?;
    let lists = match by {
        Readings::PerKvHead => query.keys.first().map_or(Ok(0), |block| block.k.dim(1))?,
        Readings::PerRow | Readings::Largest => queries,
    };
    let Some(seen) = Seen::new(query)? else {
        return match total * lists {
            0 => cuda::nothing((lists, total), wide(q), q.device()),
            _ => Ok(Tensor::zeros((lists, total), wide(q), q.device())?),
        };
    };
    let p = seen.probabilities(query, lse)?; // [kv_heads, group, queries, keys]
    let read = match by {
        Readings::PerKvHead => (p.sum((1, 2))? / (heads / seen.kv_heads) as f64)?,
        Readings::PerRow => (p.sum((0, 1))? / heads as f64)?,
        Readings::Largest => p.flatten(0, 1)?.max(0)?,
    };
    Ok(seen.spread(&read.t()?.contiguous()?, total)?.t()?.contiguous()?)
}

/// See [`crate::Kernels::peaks`].
pub fn peaks(query: &Query<'_>, lse: &Tensor) -> Result<Tensor> {
    let (q, total) = (query.q, query.key_count());
    let (queries, heads, _) = q.dims3()?;
    // A tile's scores are held at once.
    let tile = (PEAK_SCORES / (heads * total).max(1)).clamp(1, queries.max(1));
    let mut found = Vec::new();
    for from in (0..queries).step_by(tile) {
        let count = tile.min(queries - from);
        let places: Vec<u32> = (from as u32..(from + count) as u32).collect();
        let (q, at) = (q.narrow(0, from, count)?, query.at.select(&places));
        let tile = Query { q: &q, at: &at, ..*query };
        found.push(match Seen::new(&tile)? {
            None => Tensor::zeros((count, heads), wide(&q), q.device())?,
            Some(seen) => {
                let p = seen.probabilities(&tile, &lse.narrow(0, from, count)?)?;
                p.max(D::Minus1)?.permute((2, 0, 1))?.reshape((count, heads))?
            }
        });
        tiles::done();
    }
    match found.as_slice() {
        [] => cuda::nothing((0, heads), wide(q), q.device()),
        found => Ok(Tensor::cat(found, 0)?),
    }
}

/// Scores that a tile of query rows may have in all heads.
const PEAK_SCORES: usize = 1 << 24;

/// The keys that at least one query sees, out of all blocks, as one.
struct Seen {
    k: Tensor,         // [keys, kv_heads, head_dim], rotated
    v: Tensor,         // [keys, kv_heads, head_dim]
    indices: Vec<u32>, // of each key among all blocks' rows
    visible: Vec<u8>,  // [queries, keys]
    kv_heads: usize,
    queries: usize,
}

impl Seen {
    fn new(query: &Query<'_>) -> Result<Option<Self>> {
        let &Query { q, at: at_q, keys, rope, .. } = query;
        let parts: Vec<&Positions> = keys.iter().map(|block| &block.at).collect();
        let at_k = Positions::concat(&parts);
        let queries = at_q.len();
        let anyone_sees = |j: u32| (0..queries).any(|i| at_q.sees(i, &at_k, j as usize));
        let indices: Vec<u32> = (0..at_k.len() as u32).filter(|&j| anyone_sees(j)).collect();
        if indices.is_empty() || q.elem_count() == 0 {
            return Ok(None);
        }
        // Unseen rows are dropped, not masked: their values (NaN too) cannot come through.
        let join = |pick: fn(&Keys) -> &Tensor| -> Result<Tensor> {
            let blocks = keys.iter().filter(|block| !block.at.is_empty());
            let all = blocks.map(|block| pick(block).to_dtype(wide(q)));
            gather(&Tensor::cat(&all.collect::<candle_core::Result<Vec<_>>>()?, 0)?, &indices)
        };
        let (mut k, v) = (join(|block| &block.k)?, join(|block| &block.v)?);
        let at_seen = at_k.select(&indices);
        if let Some(rope) = rope {
            k = rope.apply(&k, &at_seen)?;
        }
        let visible = (0..queries)
            .flat_map(|i| (0..indices.len()).map(move |j| (i, j)))
            .map(|(i, j)| u8::from(at_q.sees(i, &at_seen, j)))
            .collect();
        let kv_heads = k.dim(1)?;
        Ok(Some(Self { k, v, indices, visible, kv_heads, queries }))
    }

    /// Scaled dot products `[kv_heads, group, queries, keys]`, −∞ where a query does not see a key.
    fn scores(&self, query: &Query<'_>) -> Result<Tensor> {
        let &Query { q, at, rope, scale, .. } = query;
        let (queries, heads, head_dim) = q.dims3()?;
        let (group, count) = (heads / self.kv_heads, self.indices.len());
        let mut q = q.to_dtype(wide(q))?;
        if let Some(rope) = rope {
            q = rope.apply(&q, at)?;
        }
        let q = (q.transpose(0, 1)?.contiguous()? * f64::from(scale))?; // [heads, queries, head_dim]
        let q = q.reshape((self.kv_heads, group * queries, head_dim))?;
        let k = self.k.permute((1, 2, 0))?.contiguous()?; // [kv_heads, head_dim, keys]
        let scores = q.matmul(&k)?.reshape((self.kv_heads, group, queries, count))?;
        let visible = Tensor::from_slice(&self.visible, (1, 1, queries, count), scores.device())?;
        let hidden = filled(f64::NEG_INFINITY, &scores)?;
        Ok(visible.broadcast_as(scores.dims())?.where_cond(&scores, &hidden)?)
    }

    /// Attention of every query to every key, `[kv_heads, group, queries,
    /// keys]`, normalised by `lse` `[queries, heads]`.
    fn probabilities(&self, query: &Query<'_>, lse: &Tensor) -> Result<Tensor> {
        let q = query.q;
        let (queries, heads, _) = q.dims3()?;
        let scores = self.scores(query)?;
        let lse = lse.to_dtype(wide(q))?.reshape((queries, self.kv_heads, heads / self.kv_heads))?;
        let lse = lse.permute((1, 2, 0))?.contiguous()?;
        // lse = −∞ says that the row saw nothing anywhere: +∞ in its place makes every
        // probability 0.
        let lse = lse.eq(f32::NEG_INFINITY)?.where_cond(&filled(f64::INFINITY, &lse)?, &lse)?.unsqueeze(D::Minus1)?;
        Ok(scores.broadcast_sub(&lse)?.exp()?)
    }

    /// The attention that the seen keys received, `[keys, ..]`, as a list of all keys: a key that
    /// no query sees gets 0.
    fn spread(&self, received: &Tensor, total: usize) -> Result<Tensor> {
        let mut source = vec![self.indices.len() as u32; total];
        for (place, &index) in self.indices.iter().enumerate() {
            source[index as usize] = place as u32;
        }
        let zero = received.narrow(0, 0, 1)?.zeros_like()?;
        gather(&Tensor::cat(&[received, &zero], 0)?, &source)
    }

    /// 1 where a query sees none of the keys, `[1, 1, queries, 1]` u8.
    fn blind_rows(&self, device: &Device) -> Result<Tensor> {
        let rows = self.visible.chunks(self.indices.len());
        let blind: Vec<u8> = rows.map(|row| u8::from(row.iter().all(|&sees| sees == 0))).collect();
        Ok(Tensor::from_vec(blind, (1, 1, self.queries, 1), device)?)
    }
}
