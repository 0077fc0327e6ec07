//! Anchors of chunks: the few rows by which a query ranks chunks before it sees all rows of any.
//!
//! They are a chunk's first row, its last row, and those that a typical row attends to most in one
//! layer. The queries of a chunk's own rows are not cached, so the mean query of drawn tokens
//! stands for them. It meets keys before RoPE: their distance does not count, which would favour
//! the chunk's last rows. Cached keys and the model determine anchors, so that a chunk has the same
//! ones wherever it stands, and whichever request or method left it in a cache.

use candle_core::Tensor;
use tributary_kernels::{DeviceList, Keys, Positions, Reduce, cuda, gather_list, join};
use tributary_methods::{Anchors, TYPICAL_ROWS, top_rows};

use crate::attention::TypicalRows;
use crate::context::{Context, Math};
use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::layer_math::LayerMath;
use crate::placement::Placement;

/// The anchors of this rank's chunks, one chunk after the other, with keys and values of the layers
/// up to `layer`, whose keys determine them.
///
/// # Errors
/// Returns an error if a kernel fails.
pub(super) fn view(
    cx: &mut Context<'_>,
    cache: &KvCache,
    placement: &Placement,
    layer: usize,
    anchors: Anchors,
) -> Result<View> {
    if cache.own.is_empty() {
        return Ok(View::default());
    }
    let (query, math) = (mean_query(cx, layer)?, cx.math.layer(layer));
    let (mut rows, mut places) = (Vec::new(), Vec::new());
    for block in &cache.own {
        let of_block = places_of(math, &query, block.layer(layer), anchors)?;
        rows.extend(of_block.iter().map(|&place| block.rows()[place as usize]));
        places.push(DeviceList::from(of_block));
    }
    let of_layer = |layer: usize| -> Result<(Tensor, Tensor)> {
        let picked = |(block, places): (&Block, &DeviceList)| -> Result<(Tensor, Tensor)> {
            let (k, v) = block.layer(layer);
            Ok((gather_list(k, places)?, gather_list(v, places)?))
        };
        let picked = cache.own.iter().zip(&places).map(picked).collect::<Result<Vec<_>>>()?;
        let (k, v): (Vec<&Tensor>, Vec<&Tensor>) = picked.iter().map(|(k, v)| (k, v)).unzip();
        Ok((join(&k, 0)?, join(&v, 0)?))
    };
    let layers = (0..=layer).map(of_layer).collect::<Result<Vec<_>>>()?;
    let at = placement.at(&rows);
    Ok(View::of(Block::of(rows, layers), at))
}

/// The mean query of a layer; computed once while the rank's chunk cache lives.
fn mean_query(cx: &mut Context<'_>, layer: usize) -> Result<Tensor> {
    if let Some(query) = cx.chunk_cache.mean_query(layer) {
        return Ok(query);
    }
    let Math { kernels, progress, kept_free, .. } = &cx.math;
    let math = Math::of(cx.models.main, TYPICAL_ROWS, (*kernels, &progress.alone(), kept_free.clone()))?;
    let query = TypicalRows::mean_query(cx.models.main, math, layer)?;
    cx.chunk_cache.keep_mean_query(layer, query.clone());
    Ok(query)
}

/// Places of a chunk's anchors, ascending, from its keys and values `[rows, kv_heads, head_dim]` of
/// the layer: by the softmax over the chunk of a query `[1, heads, head_dim]` that stands where
/// each key stands, mean over heads.
fn places_of(math: LayerMath<'_>, query: &Tensor, (k, v): &(Tensor, Tensor), anchors: Anchors) -> Result<Vec<u32>> {
    let rows = k.dim(0)?;
    let count = anchors.of_chunk(rows);
    if count == rows {
        return Ok((0..rows as u32).collect());
    }
    let (at, all) = (Positions::in_sequence(vec![0], vec![0]), Positions::in_sequence(vec![0; rows], vec![0; rows]));
    let keys = [Keys { k: k.clone(), v: v.clone(), at: all }];
    let lse = math.attend(query, &at, &keys)?.lse;
    let received = cuda::download(&math.scores(query, &at, &keys, &lse, Reduce::Mass)?)?.to_vec1::<f32>()?;
    let last = rows as u32 - 1;
    let between: Vec<u32> = (1..last).collect();
    let best = top_rows(&between, |row| received[row as usize], count - 2);
    Ok(std::iter::once(0).chain(best).chain([last]).collect())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use tributary_comm::Communicator;
    use tributary_kernels::{Kernels, to_eight_bits};
    use tributary_protocol::Layout;

    use super::*;
    use crate::kit;

    const TWO: Anchors = Anchors { rows: 2, chunks: 0.5 };

    fn tensor(numbers: Vec<f32>, shape: (usize, usize, usize)) -> Tensor {
        Tensor::from_vec(numbers, shape, &Device::Cpu).expect("numbers")
    }

    /// Keys of two heads that a query along the first axis does not meet, but for some rows in some
    /// heads: each more than the ones before. Values are the keys.
    fn keys(rows: usize, others: &[(usize, usize)]) -> (Tensor, Tensor) {
        let mut numbers = vec![0.0; rows * 2 * 8];
        for (number, &(row, head)) in others.iter().enumerate() {
            numbers[8 * (2 * row + head)] = 4.0 + number as f32;
        }
        let keys = tensor(numbers, (rows, 2, 8));
        (keys.clone(), keys)
    }

    /// Places by a query of four heads along the first axis.
    fn places(pair: &(Tensor, Tensor), anchors: Anchors) -> Vec<u32> {
        let model = kit::model(&kit::config());
        let math = kit::math(&*model, 64);
        let query: Vec<f32> = (0..4).flat_map(|_| [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).collect();
        places_of(math.layer(0), &tensor(query, (1, 4, 8)), pair, anchors).expect("anchors")
    }

    #[test]
    fn ends_and_the_rows_that_get_attention_are_anchors() {
        assert_eq!(places(&keys(9, &[(4, 1), (6, 1), (2, 0)]), TWO), [0, 2, 6, 8], "the best of each head");
        assert_eq!(places(&keys(9, &[(5, 1), (0, 1), (8, 0)]), TWO), [0, 1, 5, 8], "ends count once; ties go down");
        assert_eq!(places(&keys(4, &[]), TWO), [0, 1, 2, 3]);
        assert_eq!((places(&keys(2, &[]), TWO), places(&keys(1, &[]), TWO)), (vec![0, 1], vec![0]));
        let all = Anchors { rows: usize::MAX, ..TWO };
        assert_eq!(places(&keys(6, &[]), all), [0, 1, 2, 3, 4, 5]);
        let (k, v) = keys(9, &[(3, 0), (6, 1)]);
        let packed = [k, v].map(|x| to_eight_bits(&x).expect("packed"));
        assert_eq!(places(&packed.into(), TWO), [0, 3, 6, 8], "keys in eight bits");
    }

    /// Rows, positions and tensors of the view are those of the anchors in each chunk; the mean
    /// query is computed once.
    #[test]
    fn a_view_has_the_anchors_of_every_chunk() {
        kit::on_ranks(1, |comm| is_of_every_chunk(comm));
    }

    fn is_of_every_chunk(comm: &mut dyn Communicator) {
        let (model, plan) = (kit::model(&kit::config()), kit::plan(2, &[5, 7, 1], 3, 1));
        let mut chunk_cache = crate::chunk_cache::ChunkCache::none();
        let progress = tributary_model::Progress::default();
        let of = (&plan, 64);
        let mut cx = Context::new(&*model, comm, Kernels::Auto, of, &progress, &mut chunk_cache).expect("tools");
        let placement = Placement::new(&plan, &[1, 0, 2], Layout::Global);
        let block = |first: usize, rows: usize| {
            let number = |layer: usize, i: usize| ((layer * 7 + i * 37 + first) % 101) as f32 / 50.0 - 1.0;
            let layer = |layer| tensor((0..rows * 16).map(|i| number(layer, i)).collect(), (rows, 2, 8));
            let rows: Vec<u32> = (first as u32..(first + rows) as u32).collect();
            Block::of(rows, vec![(layer(0), layer(1)), (layer(2), layer(3))])
        };
        let cache = KvCache { own: vec![block(2, 5), block(7, 7), block(14, 1)], ..KvCache::default() };
        let found = view(&mut cx, &cache, &placement, 1, TWO).expect("a view");
        let query = cx.chunk_cache.mean_query(1).expect("it is kept");
        assert!(query.dims() == [1, 4, 8] && cx.chunk_cache.mean_query(0).is_none());
        let mut rows = Vec::new();
        for block in &cache.own {
            let places = places_of(cx.math.layer(1), &query, block.layer(1), TWO).expect("anchors");
            rows.extend(places.iter().map(|&place| block.rows()[place as usize]));
        }
        assert!(rows.len() == 9 && [2, 6, 7, 13, 14].iter().all(|end| rows.contains(end)), "{rows:?}");
        assert_eq!(found.rows().collect::<Vec<_>>(), rows);
        let numbers = |x: &Tensor| x.to_vec3::<f32>().expect("numbers");
        for layer in [0, 1] {
            let [keys] = &found.keys(layer)[..] else { panic!("one block") };
            assert_eq!(keys.at.order(), placement.at(&rows).order());
            let of = |part: fn(&(Tensor, Tensor)) -> &Tensor| -> Vec<_> {
                let all: Vec<_> = cache.own.iter().flat_map(|block| numbers(part(block.layer(layer)))).collect();
                rows.iter().map(|&row| all[row as usize - 2].clone()).collect()
            };
            assert_eq!((numbers(&keys.k), numbers(&keys.v)), (of(|pair| &pair.0), of(|pair| &pair.1)), "layer {layer}");
        }
        assert!(view(&mut cx, &KvCache::default(), &placement, 1, TWO).expect("none").rows().next().is_none());
    }
}
