//! Anchors of chunks: the few rows by which a query ranks chunks before it sees all rows of any.
//!
//! They are a chunk's first row, its last row, and those whose keys in one layer differ most from
//! the chunk's other keys. Cached keys, which are before RoPE, determine them, so that a chunk has
//! the same anchors wherever it stands, and whichever request or method left it in a cache.

use candle_core::{DType, Tensor};
use tributary_kernels::{DeviceList, cast, contiguous, cuda, from_eight_bits, gather_list, join};
use tributary_methods::{Anchors, top_rows};

use crate::error::Result;
use crate::kv::{Block, KvCache, View};
use crate::placement::Placement;

/// The anchors of this rank's chunks, one chunk after the other, with keys and values of the layers
/// up to `layer`, whose keys determine them.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub(super) fn view(cache: &KvCache, placement: &Placement, layer: usize, anchors: Anchors) -> Result<View> {
    if cache.own.is_empty() {
        return Ok(View::default());
    }
    let (mut rows, mut places) = (Vec::new(), Vec::new());
    for block in &cache.own {
        let of_block = places_of(&block.layer(layer).0, anchors)?;
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

/// Places of a chunk's anchors, ascending, from its keys `[rows, kv_heads, head_dim]` of the layer.
fn places_of(keys: &Tensor, anchors: Anchors) -> Result<Vec<u32>> {
    let rows = keys.dim(0)?;
    let count = anchors.of_chunk(rows);
    if count == rows {
        return Ok((0..rows as u32).collect());
    }
    let keys = from_eight_bits(&contiguous(keys)?, DType::F32)?;
    let (kv_heads, head_dim) = (keys.dim(1)?, keys.dim(2)?);
    let numbers = cuda::download(&cast(&keys, DType::F32)?)?.flatten_all()?.to_vec1::<f32>()?;
    let differences = differences(&numbers, kv_heads, head_dim);
    let last = rows as u32 - 1;
    let between: Vec<u32> = (1..last).collect();
    let best = top_rows(&between, |row| differences[row as usize], count - 2);
    Ok(std::iter::once(0).chain(best).chain([last]).collect())
}

/// The difference of each row's keys from those of all rows, given row by row and head by head: 1
/// less the cosine between a row's key and the sum of all rows' keys of unit length, the mean over
/// the KV heads (KeyDiff, Park et al. 2025).
fn differences(keys: &[f32], kv_heads: usize, head_dim: usize) -> Vec<f32> {
    let width = kv_heads * head_dim;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let length = |key: &[f32]| dot(key, key).sqrt().max(f32::MIN_POSITIVE);
    let mut sums = vec![0.0; width];
    for row in keys.chunks_exact(width) {
        for (sum, key) in sums.chunks_exact_mut(head_dim).zip(row.chunks_exact(head_dim)) {
            let length = length(key);
            sum.iter_mut().zip(key).for_each(|(sum, number)| *sum += number / length);
        }
    }
    let lengths: Vec<f32> = sums.chunks_exact(head_dim).map(length).collect();
    let difference = |row: &[f32]| {
        let heads = row.chunks_exact(head_dim).zip(sums.chunks_exact(head_dim)).zip(&lengths);
        let cosines: f32 = heads.map(|((key, sum), all)| dot(key, sum) / length(key) / all).sum();
        1.0 - cosines / kv_heads as f32
    };
    keys.chunks_exact(width).map(difference).collect()
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use tributary_kernels::to_eight_bits;
    use tributary_protocol::Layout;

    use super::*;
    use crate::kit;

    const FOUR: Anchors = Anchors { rows: 2, chunks: 0.5 };

    /// Keys of two heads that point along the first axis, but for some rows in some heads.
    fn keys(rows: usize, others: &[(usize, usize)]) -> Tensor {
        let mut numbers: Vec<f32> = [1.0, 0.0, 0.0].repeat(2 * rows);
        for (number, &(row, head)) in others.iter().enumerate() {
            numbers[3 * (2 * row + head) + 1] = 100.0 * (number + 1) as f32;
        }
        Tensor::from_vec(numbers, (rows, 2, 3), &Device::Cpu).expect("keys")
    }

    fn places(keys: &Tensor) -> Vec<u32> {
        places_of(keys, FOUR).expect("anchors")
    }

    #[test]
    fn ends_and_distinct_rows_are_anchors() {
        assert_eq!(places(&keys(9, &[(6, 1), (2, 0), (2, 1), (4, 1)])), [0, 2, 4, 8], "row 2 differs in both heads");
        assert_eq!(places(&keys(9, &[(0, 1), (8, 0), (5, 1)])), [0, 1, 5, 8], "ends count once; ties go to lower rows");
        assert_eq!(places(&keys(4, &[])), [0, 1, 2, 3]);
        assert_eq!(places(&keys(2, &[])), [0, 1]);
        assert_eq!(places(&keys(1, &[])), [0]);
        let large = Anchors { rows: usize::MAX, ..FOUR };
        assert_eq!(places_of(&keys(6, &[]), large).expect("anchors"), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn lengths_of_keys_do_not_count() {
        let numbers: Vec<f32> = vec![1.0, 0.0, 50.0, 0.0, 1.0, 1.0, 0.01, 0.0, 3.0, 0.1];
        let found = differences(&numbers, 1, 2);
        let sum = [1.0 + 1.0 + 0.5f32.sqrt() + 1.0 + 3.0 / 9.01f32.sqrt(), 0.5f32.sqrt() + 0.1 / 9.01f32.sqrt()];
        let cosine = |key: [f32; 2]| (key[0] * sum[0] + key[1] * sum[1]) / key[0].hypot(key[1]) / sum[0].hypot(sum[1]);
        for (row, key) in numbers.chunks(2).enumerate() {
            let expected = 1.0 - cosine([key[0], key[1]]);
            assert!((found[row] - expected).abs() < 1e-6, "row {row}: {} for {expected}", found[row]);
        }
        assert!(differences(&[0.0; 6], 1, 2).iter().all(|difference| difference.is_finite()), "keys of no length");
    }

    #[test]
    fn keys_in_eight_bits_are_read_as_numbers() {
        let keys = keys(9, &[(3, 0), (6, 1)]);
        let packed = to_eight_bits(&keys).expect("packed");
        assert_eq!((places(&packed), packed.dim(2).expect("a width") > 3), (vec![0, 3, 6, 8], true));
    }

    /// Rows, positions and tensors of the view are those of the anchors in each chunk.
    #[test]
    fn a_view_has_the_anchors_of_every_chunk() {
        let plan = kit::plan(2, &[5, 7, 1], 3, 1);
        let placement = crate::placement::Placement::new(&plan, &[1, 0, 2], Layout::Global);
        let layer = |first: usize, rows: usize| {
            let of = |row: usize| (0..6).map(move |place| ((first + row) * 10 + place) as f32);
            Tensor::from_vec((0..rows).flat_map(of).collect(), (rows, 2, 3), &Device::Cpu).expect("numbers")
        };
        let block = |first: u32, chosen: Tensor| {
            let rows = chosen.dim(0).expect("rows");
            let numbers = layer(first as usize, rows);
            Block::of(
                (first..first + rows as u32).collect::<Vec<_>>(),
                vec![(numbers.clone(), numbers), (chosen.clone(), chosen)],
            )
        };
        let own = vec![block(2, keys(5, &[(2, 0)])), block(7, keys(7, &[(5, 1), (1, 0)])), block(14, keys(1, &[]))];
        let cache = KvCache { own, ..KvCache::default() };
        let view = view(&cache, &placement, 1, FOUR).expect("a view");
        let rows = [2, 3, 4, 6, 7, 8, 12, 13, 14];
        assert_eq!(view.rows().collect::<Vec<_>>(), rows);
        let [first] = &view.keys(0)[..] else { panic!("one block") };
        assert_eq!(first.at.order(), placement.at(&rows).order());
        let of_rows = |x: &Tensor| {
            x.to_vec3::<f32>().expect("numbers").iter().map(|row| row[0][0] as u32 / 10).collect::<Vec<_>>()
        };
        assert_eq!((of_rows(&first.k), of_rows(&first.v)), (rows.to_vec(), rows.to_vec()));
        assert!(super::view(&KvCache::default(), &placement, 1, FOUR).expect("none").rows().next().is_none());
    }
}
