//! Attention by tiles of query rows, whose backward pass computes the probabilities again from the
//! log-sum-exp.
//!
//! With P = exp(S − lse), S = scale·Q·Kᵀ and out = P·V: dV = Pᵀ·dout, dP = dout·Vᵀ, dS = P ∘ (dP −
//! rowsum(dout ∘ out) + dlse), dQ = scale·dS·K, dK = scale·dSᵀ·Q (Dao et al. 2022, FlashAttention,
//! appendix B, with a gradient of lse added).

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, WithDType};

use super::sight::{Tile, tiles};
use super::{computes, slice, unknown, with};
use crate::backend::Backend;
use crate::cpu::{Matrix, Number, multiply};
use crate::{Keys, Partial, Positions, Query, join};

/// The backend with a backward pass of its own, on the host. Other types, devices and positions are
/// not its calls.
pub(crate) struct Tiled;

impl Backend for Tiled {
    fn attend(&self, query: &Query<'_>) -> crate::Result<Option<Partial>> {
        attend(query)
    }
}

fn attend(query: &Query<'_>) -> crate::Result<Option<Partial>> {
    let &Query { q, at, keys, rope, scale, .. } = query;
    let filled: Vec<&Keys> = keys.iter().filter(|block| !block.at.is_empty()).collect();
    let tensors: Vec<&Tensor> = filled.iter().flat_map(|block| [&block.k, &block.v]).chain([q]).collect();
    if filled.is_empty() || q.elem_count() == 0 || !computes(&tensors) {
        return Ok(None);
    }
    let at_k = Positions::concat(&filled.iter().map(|block| &block.at).collect::<Vec<_>>());
    let Some(tiles) = tiles(at, &at_k) else { return Ok(None) };
    let mut k = join(&filled.iter().map(|block| &block.k).collect::<Vec<_>>(), 0)?;
    let v = join(&filled.iter().map(|block| &block.v).collect::<Vec<_>>(), 0)?;
    let mut q = q.clone();
    if let Some(rope) = rope {
        (q, k) = (rope.apply(&q, at)?, rope.apply(&k, &at_k)?);
    }
    let (_, heads, head_dim) = q.dims3()?;
    let op = Attend { tiles: tiles.into(), heads, kv_heads: k.dim(1)?, head_dim, scale: f64::from(scale) };
    let both = q.contiguous()?.apply_op3(&k.contiguous()?, &v.contiguous()?, op)?; // [queries, heads, head_dim + 1]
    let out = both.narrow(2, 0, head_dim)?.contiguous()?;
    Ok(Some(Partial { out, lse: both.narrow(2, head_dim, 1)?.squeeze(2)?.contiguous()? }))
}

struct Attend {
    tiles: Arc<[Tile]>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f64,
}

/// The rows of one KV head that a tile reads, one after the other.
struct Read<T> {
    q: Vec<T>, // [group · count, head_dim]
    k: Vec<T>, // [keys, head_dim]
    v: Vec<T>, // [keys, head_dim]
}

impl Attend {
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Offsets of the rows of a tile in `[queries, heads, width]`, head by head of a KV head's
    /// group.
    fn starts(&self, tile: &Tile, kv_head: usize, width: usize) -> Vec<usize> {
        let heads = kv_head * self.group()..(kv_head + 1) * self.group();
        let rows = |head| (0..tile.count).map(move |row| ((tile.from + row) * self.heads + head) * width);
        heads.flat_map(rows).collect()
    }

    fn read<T: Number>(&self, tile: &Tile, kv_head: usize, (q, k, v): (&[T], &[T], &[T])) -> Read<T> {
        let dim = self.head_dim;
        let rows = |from: &[T], starts: Vec<usize>| {
            let mut rows = Vec::with_capacity(starts.len() * dim);
            starts.iter().for_each(|&start| rows.extend_from_slice(&from[start..start + dim]));
            rows
        };
        let keys = || tile.keys.iter().map(|&key| (key as usize * self.kv_heads + kv_head) * dim).collect();
        Read { q: rows(q, self.starts(tile, kv_head, dim)), k: rows(k, keys()), v: rows(v, keys()) }
    }

    /// Scaled dot products of a tile's rows and keys, `[group · count, keys]`, seen or not.
    fn scores<T: Number>(&self, tile: &Tile, read: &Read<T>) -> Vec<T> {
        let (rows, keys, dim) = (self.group() * tile.count, tile.keys.len(), self.head_dim);
        let mut scores = vec![T::zero(); rows * keys];
        let (q, k) = (Matrix::new(&read.q[..], rows, dim), Matrix::new(&read.k[..], keys, dim));
        multiply(T::from_f64(self.scale), q, k.turned(), Matrix::new(&mut scores[..], rows, keys));
        scores
    }

    /// Output and log-sum-exp, `[queries, heads, head_dim + 1]`.
    fn forward<T: Number>(&self, q: &[T], k: &[T], v: &[T]) -> Vec<T> {
        let (dim, queries) = (self.head_dim, q.len() / (self.heads * self.head_dim));
        let mut both = vec![T::zero(); queries * self.heads * (dim + 1)];
        for (tile, kv_head) in self.parts() {
            let (rows, keys) = (self.group() * tile.count, tile.keys.len());
            let read = self.read(tile, kv_head, (q, k, v));
            let mut weights = self.scores(tile, &read);
            let mut sums = Vec::with_capacity(rows);
            for (row, weights) in weights.chunks_mut(keys.max(1)).enumerate() {
                let visible = &tile.visible[row % tile.count * keys..][..keys];
                sums.push(soften(weights, visible));
            }
            sums.resize(rows, None);
            let mut out = vec![T::zero(); rows * dim];
            let (weights, v) = (Matrix::new(&weights[..], rows, keys), Matrix::new(&read.v[..], keys, dim));
            multiply(T::ONE, weights, v, Matrix::new(&mut out[..], rows, dim));
            for ((start, out), sum) in self.starts(tile, kv_head, dim + 1).iter().zip(out.chunks(dim)).zip(sums) {
                both[*start..start + dim].copy_from_slice(out);
                both[start + dim] = sum.unwrap_or(T::from_f64(f64::NEG_INFINITY));
            }
        }
        both
    }

    /// A tile and a KV head at a time.
    fn parts(&self) -> impl Iterator<Item = (&Tile, usize)> {
        self.tiles.iter().flat_map(|tile| (0..self.kv_heads).map(move |kv_head| (tile, kv_head)))
    }

    /// The gradients of queries, keys and values from the output and its gradient.
    fn backward<T: Number>(&self, (q, k, v): (&[T], &[T], &[T]), both: &[T], grad: &[T]) -> [Vec<T>; 3] {
        let dim = self.head_dim;
        let (mut dq, mut dk) = (vec![T::zero(); q.len()], vec![T::zero(); k.len()]);
        let mut dv = vec![T::zero(); v.len()];
        for (tile, kv_head) in self.parts().filter(|(tile, _)| !tile.keys.is_empty()) {
            let (rows, keys) = (self.group() * tile.count, tile.keys.len());
            let read = self.read(tile, kv_head, (q, k, v));
            let starts = self.starts(tile, kv_head, dim + 1);
            let mut dout = Vec::with_capacity(rows * dim);
            starts.iter().for_each(|&start| dout.extend_from_slice(&grad[start..start + dim]));

            let mut p = self.scores(tile, &read);
            let mut ds = vec![T::zero(); rows * keys]; // dP at first
            let v = Matrix::new(&read.v[..], keys, dim);
            multiply(T::ONE, Matrix::new(&dout, rows, dim), v.turned(), Matrix::new(&mut ds, rows, keys));
            for (row, &start) in starts.iter().enumerate() {
                let visible = &tile.visible[row % tile.count * keys..][..keys];
                let (out, lse) = (&both[start..start + dim], both[start + dim]);
                let product = out.iter().zip(&grad[start..]).fold(T::zero(), |sum, (&out, &grad)| sum + out * grad);
                let shift = product - grad[start + dim];
                let row = row * keys..(row + 1) * keys;
                for ((p, ds), &sees) in p[row.clone()].iter_mut().zip(&mut ds[row]).zip(visible) {
                    *p = if sees { (*p - lse).exp() } else { T::zero() };
                    *ds = *p * (*ds - shift);
                }
            }
            let factor = T::from_f64(self.scale);
            let mut part = vec![T::zero(); rows.max(keys) * dim];
            let k = Matrix::new(&read.k[..], keys, dim);
            multiply(factor, Matrix::new(&ds, rows, keys), k, Matrix::new(&mut part, rows, dim));
            for (start, part) in self.starts(tile, kv_head, dim).iter().zip(part.chunks(dim)) {
                dq[*start..start + dim].copy_from_slice(part);
            }
            for (sum, a, b, factor) in [(&mut dk, &ds, &read.q, factor), (&mut dv, &p, &dout, T::ONE)] {
                let (a, b) = (Matrix::new(&a[..], rows, keys), Matrix::new(&b[..], rows, dim));
                multiply(factor, a.turned(), b, Matrix::new(&mut part, keys, dim));
                for (&key, part) in tile.keys.iter().zip(part.chunks(dim)) {
                    let start = (key as usize * self.kv_heads + kv_head) * dim;
                    sum[start..start + dim].iter_mut().zip(part).for_each(|(sum, &part)| *sum += part);
                }
            }
        }
        [dq, dk, dv]
    }

    fn back<T: Number>(&self, args: [&Tensor; 3], both: &Tensor, grad: &Tensor) -> Result<[Tensor; 3]> {
        let [q, k, v] = args;
        let grads = with(q, |q: &[T]| {
            with(k, |k: &[T]| {
                with(v, |v: &[T]| {
                    with(both, |both: &[T]| with(grad, |grad: &[T]| Ok(self.backward((q, k, v), both, grad))))
                })
            })
        })?;
        let [dq, dk, dv] = grads;
        let tensor = |values, like: &Tensor| Tensor::from_vec(values, like.dims(), like.device());
        Ok([tensor(dq, q)?, tensor(dk, k)?, tensor(dv, v)?])
    }
}

/// A row's scores become its probabilities, 0 where it does not see a key. Gives its log-sum-exp;
/// none where it sees no key.
fn soften<T: Number>(row: &mut [T], visible: &[bool]) -> Option<T> {
    let seen = row.iter().zip(visible).filter(|(_, sees)| **sees).map(|(&score, _)| score);
    let largest = seen.fold(None, |most: Option<T>, score| most.filter(|most| *most >= score).or(Some(score)));
    let Some(largest) = largest else {
        row.fill(T::zero());
        return None;
    };
    let mut sum = T::zero();
    for (score, &sees) in row.iter_mut().zip(visible) {
        *score = if sees { (*score - largest).exp() } else { T::zero() };
        sum += *score;
    }
    row.iter_mut().for_each(|weight| *weight /= sum);
    Some(largest + sum.ln())
}

impl CustomOp3 for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        at_q: &Layout,
        k: &CpuStorage,
        at_k: &Layout,
        v: &CpuStorage,
        at_v: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = Shape::from((at_q.dims()[0], self.heads, self.head_dim + 1));
        let both = match q {
            CpuStorage::F32(_) => {
                let both = self.forward::<f32>(slice(q, at_q)?, slice(k, at_k)?, slice(v, at_v)?);
                f32::to_cpu_storage_owned(both)
            }
            CpuStorage::F64(_) => {
                let both = self.forward::<f64>(slice(q, at_q)?, slice(k, at_k)?, slice(v, at_v)?);
                f64::to_cpu_storage_owned(both)
            }
            _ => return Err(unknown("attention", DType::F32)),
        };
        Ok((both, shape))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        both: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dq, dk, dv] = match grad.dtype() {
            DType::F32 => self.back::<f32>([q, k, v], both, grad)?,
            DType::F64 => self.back::<f64>([q, k, v], both, grad)?,
            other => return Err(unknown("attention", other)),
        };
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}
