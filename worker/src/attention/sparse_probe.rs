//! SAM-KV's probe: the query's rows run over the first and last rows of every document (and prefix
//! and query), and in the scored layers each row reads every document by itself, with its query
//! shifted towards that document.

use candle_core::{DType, Tensor};
use tributary_kernels::{DeviceList, Partial, Positions, Reduce, cast, contiguous, cuda, from_eight_bits, gather_list};
use tributary_model::{Attention, Progress, Qkv};
use tributary_protocol::SamKv;

use super::QueryProbe;
use super::rounds::{added, join};
use crate::error::{Error, Result};
use crate::kv::{Block, View};

/// Rows: the query's.
pub struct SparseProbe<'a> {
    probe: QueryProbe<'a>,
    documents: Vec<Document>,
    /// Sum over the scored layers so far, `[context rows of this rank]` f32; absent before the
    /// first of them, and if there are no rows.
    pub sums: Option<Tensor>,
}

/// A document of this rank.
struct Document {
    all: View,
    block: Block,
    /// Its first and last rows, whose mean key is its direction.
    ends: DeviceList,
}

impl<'a> SparseProbe<'a> {
    /// The probe over `documents`, blocks with the positions of their rows; `probe` sees the first
    /// and last rows of each.
    pub fn new(probe: QueryProbe<'a>, documents: Vec<(Block, Positions)>, parameters: SamKv) -> Self {
        let document = |(block, at): (Block, Positions)| {
            let ends: Vec<u32> = parameters.always_of(at.len()).into_iter().flatten().map(|row| row as u32).collect();
            Document { all: View::of(block.clone(), at), block, ends: ends.into() }
        };
        Self { probe, documents: documents.into_iter().map(document).collect(), sums: None }
    }

    /// Attention of the query's rows to the rows of each document, one document below the other.
    fn read(&self, layer: usize, q: &Tensor) -> Result<Option<Tensor>> {
        let math = self.probe.math.layer(layer);
        let read = |document: &Document| -> Result<Tensor> {
            let ends = gather_list(&document.block.layer(layer).0, &document.ends)?;
            let ends = from_eight_bits(&ends, DType::F32)?;
            let q = leaning(q, &ends)?;
            let keys = document.all.keys(layer);
            let lse = math.attend(&q, &self.probe.at, &keys)?.lse;
            math.scores(&q, &self.probe.at, &keys, &lse, Reduce::Mass)
        };
        let parts = self.documents.iter().map(read).collect::<Result<Vec<_>>>()?;
        if parts.is_empty() { Ok(None) } else { Ok(Some(join(&parts)?)) }
    }
}

impl Attention for SparseProbe<'_> {
    type Error = Error;

    fn progress(&self) -> &Progress {
        self.probe.progress()
    }

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let scored = if self.probe.scores(layer) { self.read(layer, &qkv.q)? } else { None };
        if let Some(scores) = scored {
            self.sums = Some(added(self.sums.take(), scores)?);
        }
        Ok(self.probe.look(layer, qkv)?.everything)
    }
}

/// Queries before RoPE, `[rows, heads, head_dim]`, each with its own projection on the mean of
/// `keys` `[keys, kv_heads, head_dim]` added, head by head.
fn leaning(q: &Tensor, keys: &Tensor) -> Result<Tensor> {
    let (rows, heads, head_dim) = q.dims3()?;
    let on_host = |x: &Tensor| -> Result<Vec<f32>> {
        Ok(cuda::download(&cast(&contiguous(x)?, DType::F32)?)?.flatten_all()?.to_vec1()?)
    };
    let (mut numbers, keys_there, kv_heads) = (on_host(q)?, on_host(keys)?, keys.dim(1)?);
    let mut direction = vec![0.0; kv_heads * head_dim];
    for key in keys_there.chunks_exact(direction.len()) {
        direction.iter_mut().zip(key).for_each(|(sum, number)| *sum += number);
    }
    for (number, query) in numbers.chunks_exact_mut(head_dim).enumerate() {
        let kv_head = number % heads / (heads / kv_heads);
        lean(query, &direction[kv_head * head_dim..][..head_dim]);
    }
    let leaning = Tensor::from_vec(numbers, (rows, heads, head_dim), q.device())?;
    Ok(cast(&leaning, q.dtype())?)
}

/// Adds to a query its projection on a direction: cos(query, direction) · ‖query‖ · direction /
/// ‖direction‖.
fn lean(query: &mut [f32], direction: &[f32]) {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let square = dot(direction, direction);
    if square > 0.0 {
        let share = dot(query, direction) / square;
        query.iter_mut().zip(direction).for_each(|(number, along)| *number += share * along);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_leans_as_far_as_it_agrees() {
        let leaned = |query: [f32; 2], direction: [f32; 2]| {
            let mut query = query;
            lean(&mut query, &direction);
            query
        };
        assert_eq!(leaned([3.0, 4.0], [2.0, 0.0]), [6.0, 4.0]);
        assert_eq!(leaned([3.0, 4.0], [0.0, -0.5]), [3.0, 8.0], "the length and sign of the direction do not count");
        assert_eq!(leaned([3.0, 0.0], [0.0, 7.0]), [3.0, 0.0]);
        assert_eq!(leaned([3.0, 4.0], [0.0, 0.0]), [3.0, 4.0]);
    }
}
