//! Budgets by layer, and the rows that each method keeps unconditionally.

use super::*;

fn evict(name: &str, keep: usize) -> Evict {
    let method = EvictionDescriptor::find(name).expect("a method").method;
    let (window, pooled, sinks, beta) = (WINDOW_ROWS, POOLED_ROWS, SINK_ROWS, PYRAMID_BETA);
    Evict { method, keep, window, pooled, sinks, beta, pseudo: 6, seed: 0, gather: false }
}

#[test]
fn every_eviction_is_found_by_its_name() {
    for entry in EVICTIONS {
        assert!(std::ptr::eq(entry.method.descriptor(), entry), "{}", entry.name);
        assert!(std::ptr::eq(EvictionDescriptor::find(entry.name).expect("found"), entry));
        assert!(!entry.summary.is_empty() && !entry.source.is_empty());
    }
    assert!(EvictionDescriptor::find("none").is_none());
}

#[test]
fn falling_budgets_follow_pyramidkv_and_have_the_same_sum() {
    // C - w = 200, the last layer 10, the first 390, in between linear; 32 rows of window on top.
    let budgets = evict("pyramidkv", 232).budgets(5, 10_000);
    assert_eq!(budgets, [390 + 32, 295 + 32, 200 + 32, 105 + 32, 10 + 32]);
    // More than available: the first layer keeps all 60 rows, and the last the remainder of the
    // sum.
    let budgets = evict("pyramidkv", 52).budgets(3, 60);
    assert_eq!(budgets, [26 + 34, 26 + 26, 26 + 18]);
    for keep in 1..200 {
        for layers in [1, 2, 3, 7, 40] {
            for rows in [keep, keep + 1, 2 * keep, 100 * keep] {
                let evict = evict("pyramidkv", keep);
                let budgets = evict.budgets(layers, rows);
                assert_eq!(budgets.iter().sum::<usize>(), layers * keep, "{keep} of {rows} in {layers}: {budgets:?}");
                assert!(budgets.is_sorted_by(|a, b| a >= b), "{keep} of {rows} in {layers}: {budgets:?}");
                let window = evict.window_rows();
                assert!(budgets.iter().all(|&budget| (window..=rows).contains(&budget)), "{budgets:?} of {rows}");
            }
        }
    }
    assert_eq!(evict("snapkv", 52).budgets(3, 60), [52; 3]);
}

#[test]
fn what_is_kept_unasked_fits_the_budget() {
    let of = |name, keep| evict(name, keep).unscored(keep);
    assert_eq!([of("streamingllm", 10), of("streamingllm", 3), of("streamingllm", 1)], [(4, 6), (2, 1), (0, 1)]);
    assert_eq!([of("snapkv", 128), of("snapkv", 16), of("snapkv", 1)], [(0, 32), (0, 8), (0, 1)]);
    assert_eq!([of("h2o", 9), of("tova", 9), of("random", 9), of("lookahead", 9)], [(0, 5), (0, 1), (0, 0), (0, 0)]);
}

#[test]
fn methods_that_look_within_a_chunk_compress_it() {
    assert_eq!(EvictionDescriptor::names_for_chunks(), "snapkv, tova, h2o, streamingllm, random");
}
