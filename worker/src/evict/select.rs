//! Selects the rows that each KV head of each layer keeps from their scores: pure functions of
//! numbers in causal order.

use tributary_protocol::{Evict, EvictionEvidence, KeptRows as Kept, SplitMix64};

/// Layers of kept rows from `from` on, up to `bytes` bytes; at least one.
pub(super) fn some_layers(kept: &Kept, from: usize, bytes: usize) -> Vec<Vec<Vec<u32>>> {
    let mut left = bytes;
    let fits = |layer: &&Vec<Vec<u32>>| {
        let size = layer.iter().map(|rows| 8 + 4 * rows.len()).sum::<usize>();
        let fits = size <= left;
        left = left.saturating_sub(size);
        fits
    };
    let count = kept.0[from..].iter().take_while(fits).count().max(1).min(kept.0.len() - from);
    kept.0[from..from + count].to_vec()
}

/// The rows to keep of `there` (in causal order), in each layer and KV head. Scores are by layer,
/// KV head and place; absent if the method draws or goes by places.
pub(super) fn select(
    evict: &Evict,
    there: &[u32],
    (layers, kv_heads): (usize, usize),
    scores: Option<&[Vec<Vec<f32>>]>,
) -> Kept {
    let of_layer = |(layer, budget): (usize, usize)| {
        let scores = scores.map(|scores| &scores[layer][..]);
        kept_of_layer(evict, there, (layer, budget, kv_heads), scores)
    };
    Kept(evict.budgets(layers, there.len()).into_iter().enumerate().map(of_layer).collect())
}

/// As [`select`], in one layer with a given number of KV heads and of rows to keep in each.
pub(crate) fn kept_of_layer(
    evict: &Evict,
    there: &[u32],
    (layer, budget, kv_heads): (usize, usize, usize),
    scores: Option<&[Vec<f32>]>,
) -> Vec<Vec<u32>> {
    let together = evict.descriptor().heads_together;
    let of_head = |head: usize| -> Vec<u32> {
        let scores = match scores {
            Some(scores) if together => mean(scores),
            Some(scores) => scores[head].clone(),
            None if evict.descriptor().evidence == EvictionEvidence::Draw => drawn(evict.seed, layer, head, there),
            None => vec![0.0; there.len()],
        };
        let places = best(evict, &scores, budget);
        places.into_iter().map(|place| there[place]).collect()
    };
    if together { vec![of_head(0); kv_heads] } else { (0..kv_heads).map(of_head).collect() }
}

/// Places of one head's kept rows, ascending: the first and last ones that the method always keeps,
/// and of the others those with the highest scores, ties to the earlier one.
fn best(evict: &Evict, scores: &[f32], budget: usize) -> Vec<usize> {
    let (first, last) = evict.unscored(budget);
    assert!(first + last <= budget, "{first} and {last} rows of a budget of {budget}");
    assert!(budget <= scores.len(), "{budget} rows of {}", scores.len());
    let end = scores.len() - last;
    let between = &scores[first..end];
    let pooled = if evict.descriptor().pools { pooled(between, evict.pooled) } else { between.to_vec() };
    let mut ranked: Vec<usize> = (0..pooled.len()).collect();
    ranked.sort_by(|&a, &b| pooled[b].total_cmp(&pooled[a]).then(a.cmp(&b)));
    let chosen = ranked.into_iter().take(budget - first - last).map(|place| first + place);
    let mut places: Vec<usize> = (0..first).chain(chosen).chain(end..scores.len()).collect();
    places.sort_unstable();
    places
}

/// Each number's largest neighbour among `width` around it, itself included (an odd number; fewer
/// at the ends).
fn pooled(numbers: &[f32], width: usize) -> Vec<f32> {
    let reach = width / 2;
    let largest = |place: usize| {
        let around = &numbers[place.saturating_sub(reach)..numbers.len().min(place + reach + 1)];
        around.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    };
    (0..numbers.len()).map(largest).collect()
}

/// The mean of the heads' numbers.
fn mean(heads: &[Vec<f32>]) -> Vec<f32> {
    let count = heads.len() as f32;
    (0..heads[0].len()).map(|place| heads.iter().map(|head| head[place]).sum::<f32>() / count).collect()
}

/// A number from 0 to 1 for every row, drawn for a layer and a KV head. It is 24 bits of splitmix64
/// (Steele et al. 2014) over seed, layer, head and row, mixed one into the other. The same on every
/// rank and in every world.
fn drawn(seed: u64, layer: usize, head: usize, rows: &[u32]) -> Vec<f32> {
    let mixed = SplitMix64::mixed;
    let of = mixed(mixed(mixed(seed).wrapping_add(layer as u64)).wrapping_add(head as u64));
    rows.iter().map(|&row| SplitMix64::new(of.wrapping_add(u64::from(row))).uniform()).collect()
}

#[cfg(test)]
mod tests {
    use tributary_protocol::{EvictionDescriptor, POOLED_ROWS, PYRAMID_BETA, SINK_ROWS, WINDOW_ROWS};

    use super::*;

    fn evict(name: &str, keep: usize) -> Evict {
        let method = EvictionDescriptor::find(name).expect("a method").method;
        let (window, pooled, sinks, beta) = (WINDOW_ROWS, POOLED_ROWS, SINK_ROWS, PYRAMID_BETA);
        Evict { method, keep, window, pooled, sinks, beta, pseudo: 6, seed: 3, gather: false }
    }

    /// Row 100 + i at place i, except for two swapped rows.
    fn there(count: u32) -> Vec<u32> {
        let mut rows: Vec<u32> = (100..100 + count).collect();
        rows.swap(1, 2);
        rows
    }

    #[test]
    fn numbers_are_pooled_with_their_neighbours() {
        assert_eq!(pooled(&[1.0, 0.0, 5.0, 2.0, 0.0, 0.0, 3.0], 3), [1.0, 5.0, 5.0, 5.0, 2.0, 3.0, 3.0]);
        assert_eq!(pooled(&[1.0, 0.0, 5.0], 1), [1.0, 0.0, 5.0]);
        assert_eq!(pooled(&[1.0, 0.0, 5.0], 7), [5.0; 3]);
        assert_eq!(pooled(&[], 7), [0.0; 0]);
    }

    #[test]
    fn places_alone_keep_the_head_and_the_tail() {
        let kept = select(&evict("streamingllm", 7), &there(20), (2, 2), None);
        assert_eq!(kept.0, vec![vec![vec![100, 102, 101, 103, 117, 118, 119]; 2]; 2]);
    }

    #[test]
    fn the_window_and_the_neighbours_of_what_it_reads_are_kept() {
        // Two rows of window; of the six others that are kept, those around place 5, and the
        // earliest of the rest.
        let mut scores = vec![0.0; 20];
        scores[5] = 1.0;
        scores[18] = 9.0; // the window's own scores do not spread
        let of = Evict { window: 2, pooled: 5, ..evict("snapkv", 8) };
        let kept = select(&of, &there(20), (1, 1), Some(&[vec![scores]]));
        assert_eq!(kept.0[0][0], [100, 103, 104, 105, 106, 107, 118, 119]);
    }

    #[test]
    fn heads_keep_rows_of_their_own_or_the_same() {
        let scores = vec![vec![vec![0.9, 0.0, 0.5, 0.4, 0.0], vec![0.0, 0.8, 0.6, 0.7, 0.0]]];
        let of = |name, keep| select(&evict(name, keep), &[0, 1, 2, 3, 4], (1, 2), Some(&scores)).0[0].clone();
        assert_eq!(of("h2o", 2), [[0, 4], [1, 4]]);
        assert_eq!(of("tova", 3), [[2, 3, 4], [2, 3, 4]], "means .45 .4 .55 .55 0");
        assert_eq!(of("lookahead", 2), [[0, 2], [1, 3]]);
    }

    #[test]
    fn what_is_drawn_differs_by_layer_and_head_and_is_uniform() {
        let rows: Vec<u32> = (0..1000).collect();
        let kept = select(&evict("random", 300), &rows, (2, 2), None).0;
        let lists: std::collections::BTreeSet<&Vec<u32>> = kept.iter().flatten().collect();
        assert_eq!(lists.len(), 4);
        for rows in lists {
            let mean = rows.iter().sum::<u32>() as f64 / 300.0;
            assert!((mean - 499.5).abs() < 50.0, "three deviations are 43: {mean}");
        }
    }

    #[test]
    fn kept_rows_go_out_in_pieces() {
        let kept = Kept(vec![vec![vec![1, 2], vec![3, 4]]; 5]);
        assert_eq!(some_layers(&kept, 0, 70).len(), 2, "32 bytes a layer");
        assert_eq!(some_layers(&kept, 4, 70).len(), 1);
        assert_eq!(some_layers(&kept, 0, 1).len(), 1, "one at least");
    }
}
