//! The policy by which simulated ranks keep chunks is that of the ranks' own chunk cache: the same
//! entries stay and go, in the same order.

use candle_core::{DType, Device, Tensor};
use tributary_protocol::{CacheEntries, ChunkKey, KeySpace};
use tributary_store::Identity;
use tributary_worker::{Block, ChunkCache};

/// Bytes of a row of [`block`].
const ROW_BYTES: u64 = 16;

/// One layer of `rows` rows.
fn block(rows: usize) -> Block {
    let tensor = || Tensor::zeros((rows, 1, 2), DType::F32, &Device::Cpu).expect("zeros");
    Block::of((0..rows as u32).collect::<Vec<_>>(), vec![(tensor(), tensor())])
}

/// Numbers that follow from each other (a linear congruential generator).
fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn both_keep_and_evict_the_same() {
    let space = KeySpace::new([0; 32], "f32");
    let keys: Vec<ChunkKey> = (0..40).map(|id| space.chunk(&[], &[id], &[])).collect();
    let capacity_bytes = 60 * ROW_BYTES;
    let mut cache = ChunkCache::new(space, capacity_bytes);
    let mut entries = CacheEntries::new(capacity_bytes);
    let (mut state, mut evicted_count) = (7, 0);
    for request in 0..400 {
        cache.begin();
        entries.begin();
        let (mut stored, mut evicted) = (Vec::new(), Vec::new());
        for _ in 0..next(&mut state, 6) {
            let place = next(&mut state, 40) as usize;
            let (key, rows, before) = (keys[place], 1 + place % 9, 64 * (place % 4));
            if next(&mut state, 3) == 0 {
                assert_eq!(cache.get(&key).is_some(), entries.used(&key).is_some(), "request {request}");
                continue;
            }
            let identity = Identity { key, model: [0; 32], prefix: Vec::new(), extra: Vec::new(), ids: Vec::new() };
            cache.keep_after(before, &block(rows), identity).expect("kept");
            let bytes = rows as u64 * ROW_BYTES;
            if entries.used(&key).is_none()
                && let Some(gone) = entries.make_room(bytes)
            {
                entries.add(key, (bytes, before), ());
                stored.push(key);
                evicted.extend(gone);
            }
        }
        let report = cache.report();
        assert_eq!((&report.stored, &report.evicted), (&stored, &evicted), "request {request}");
        assert_eq!(report.used_bytes, entries.used_bytes(), "request {request}");
        evicted_count += evicted.len();
    }
    assert!(evicted_count > 100, "{evicted_count} entries went");
}
