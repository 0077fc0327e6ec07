//! Adapters: rows that are no tokens, around chunks or after a prompt, and low-rank matrices that
//! are active on such rows. They are learned elsewhere; here they are tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use tributary_kernels::{cast, gather, join};
use tributary_protocol::Source;

use super::{LowRank, LowRankPair, Model, Rows};
use crate::error::{Error, Result};

/// An adapter.
#[derive(Debug, Clone)]
pub struct Adapter {
    /// The embeddings of its rows, `[rows, hidden]`, on the model's device.
    pub embeddings: Tensor,
    /// The low-rank matrices beside the model's linear layers.
    pub low_rank: Option<Arc<LowRank>>,
}

impl Adapter {
    /// The same adapter on a device, for weights of `dtype`. On a GPU the matrices have that dtype
    /// too; on a CPU they are f32.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn on(&self, device: &Device, dtype: DType) -> Result<Self> {
        let dtype = if device.is_cpu() { DType::F32 } else { dtype };
        let embeddings = self.embeddings.to_device(device)?;
        let Some(low_rank) = &self.low_rank else { return Ok(Self { embeddings, low_rank: None }) };
        let placed = |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.to_dtype(dtype)?.to_device(device)?) };
        let pair = |(place, pair): (&_, &LowRankPair)| -> Result<_> {
            Ok((*place, LowRankPair { a: placed(&pair.a)?, b: placed(&pair.b)?, scale: pair.scale }))
        };
        let pairs = low_rank.pairs().map(pair).collect::<Result<Vec<_>>>()?;
        Ok(Self { embeddings, low_rank: Some(Arc::new(LowRank::new(pairs)?)) })
    }
}

impl From<Tensor> for Adapter {
    fn from(embeddings: Tensor) -> Self {
        Self { embeddings, low_rank: None }
    }
}

/// The adapters of a rank, by their numbers in plans. The same on every rank.
#[derive(Debug, Clone, Default)]
pub struct Adapters(BTreeMap<u64, Adapter>);

impl Adapters {
    /// Adapters by their numbers; embeddings alone are an adapter too.
    pub fn new<A: Into<Adapter>>(adapters: impl IntoIterator<Item = (u64, A)>) -> Self {
        Self(adapters.into_iter().map(|(number, adapter)| (number, adapter.into())).collect())
    }

    /// Whether there is an adapter of this number with at least `rows` rows.
    pub fn has(&self, adapter: u64, rows: usize) -> bool {
        self.0.get(&adapter).is_some_and(|adapter| adapter.embeddings.dims()[0] >= rows)
    }

    /// The adapter of this number.
    ///
    /// # Errors
    /// Returns [`Error::Input`] if there is none.
    pub fn get(&self, adapter: u64) -> Result<&Adapter> {
        self.0.get(&adapter).ok_or_else(|| Error::Input(format!("there is no adapter {adapter}")))
    }
}

/// Rows of a model from their sources. Rows of pictures start from their marks, until
/// [`with_pictures`](crate::with_pictures) gives them their features.
///
/// # Errors
/// Returns an error if an id is outside the vocabulary, if an adapter is missing, or if a row is
/// beyond its last.
pub fn embed(model: &dyn Model, sources: &[Source], adapters: &Adapters) -> Result<Rows> {
    let ids: Vec<u32> = sources.iter().filter_map(|source| source.token()).collect();
    let tokens = model.embed(&ids)?;
    if ids.len() == sources.len() {
        return Ok(tokens);
    }
    // The source of all rows, one below the other: the tokens, then each adapter that occurs.
    let (mut rows, mut next_token, mut first_row) = (Vec::with_capacity(sources.len()), 0, BTreeMap::new());
    let wide = if tokens.hidden.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let mut all = vec![cast(&tokens.hidden, wide)?];
    let mut end = ids.len() as u32;
    for source in sources {
        match *source {
            Source::Token(_) | Source::Picture { .. } => {
                rows.push(next_token);
                next_token += 1;
            }
            Source::Adapter { adapter, row } => {
                let first = match first_row.get(&adapter) {
                    Some(&first) => first,
                    None => {
                        let embeddings = &adapters.get(adapter)?.embeddings;
                        all.push(cast(embeddings, wide)?);
                        first_row.insert(adapter, end);
                        end += embeddings.dims()[0] as u32;
                        end - embeddings.dims()[0] as u32
                    }
                };
                let count = adapters.get(adapter)?.embeddings.dims()[0];
                if row as usize >= count {
                    return Err(Error::Input(format!("row {row} of adapter {adapter}, which has {count}")));
                }
                rows.push(first + row);
            }
        }
    }
    let filled: Vec<&Tensor> = all.iter().filter(|part| part.dims()[0] > 0).collect();
    let hidden = gather(&join(&filled, 0)?, &rows)?;
    Ok(Rows::fresh(cast(&hidden, tokens.hidden.dtype())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit;

    #[test]
    fn rows_come_from_tokens_and_adapters_in_their_order() {
        let model = kit::model(&kit::config());
        let values = |rows: &Rows| -> Vec<Vec<f32>> { rows.hidden.to_vec2().expect("f32") };
        let of = |ids: &[u32]| values(&model.embed(ids).expect("ids"));
        // An adapter with a token's own embedding in each row.
        let adapter = |ids: &[u32]| model.embed(ids).expect("ids").hidden;
        let adapters = Adapters::new([(3, adapter(&[10, 11])), (9, adapter(&[12]))]);
        let around = |adapter, row| Source::Adapter { adapter, row };
        let sources = [around(3, 1), Source::Token(4), around(9, 0), Source::Token(5), around(3, 0)];
        let rows = embed(&*model, &sources, &adapters).expect("rows");
        assert_eq!(values(&rows), of(&[11, 4, 12, 5, 10]));
        let only_adapters = embed(&*model, &[around(9, 0)], &adapters).expect("rows");
        assert_eq!(values(&only_adapters), of(&[12]));
        assert!(matches!(embed(&*model, &[around(4, 0)], &adapters), Err(Error::Input(_))));
        assert!(matches!(embed(&*model, &[around(3, 2), around(9, 0)], &adapters), Err(Error::Input(_))));
        assert!(adapters.has(3, 2) && !adapters.has(3, 3) && !adapters.has(4, 0));
        assert!(Device::Cpu.same_device(rows.hidden.device()));
    }
}
