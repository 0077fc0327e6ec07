//! The chunk cache of one rank: keys before RoPE and values of chunks that were prefilled before, by the hash of everything
//! that shapes them. In memory only; it goes with the rank.
//!
//! A store on disk belongs behind [`ChunkCache::get`] and [`ChunkCache::keep`]: nothing else knows where entries lie.

use std::collections::BTreeMap;

use candle_core::Tensor;
use tributary_kernels::cuda;
use tributary_protocol::{ChunkCacheReport, ChunkKey, KeySpace};

use crate::error::Result;
use crate::kv::{Block, BlockRows};

/// Per layer `[rows, kv_heads, head_dim]`: keys before RoPE, values.
type Layers = Vec<(Tensor, Tensor)>;

/// Chunks of one rank, the least recently used of which go first when there is no room.
#[derive(Debug)]
pub struct ChunkCache {
    space: KeySpace,
    capacity_bytes: u64,
    entries: BTreeMap<ChunkKey, Entry>,
    /// Number of the request under way.
    request: u64,
    report: ChunkCacheReport,
}

#[derive(Debug)]
struct Entry {
    layers: Layers,
    bytes: u64,
    /// The last request that used it.
    used: u64,
}

impl ChunkCache {
    /// An empty cache for chunks of one model, of at most so many bytes of keys and values.
    pub fn new(space: KeySpace, capacity_bytes: u64) -> Self {
        let report = ChunkCacheReport::default();
        Self { space, capacity_bytes, entries: BTreeMap::new(), request: 0, report }
    }

    /// A cache that keeps nothing, for ranks that run one request.
    pub fn none() -> Self {
        Self::new(KeySpace::new([0; 32], ""), 0)
    }

    /// The model and dtype that name chunks here.
    pub fn space(&self) -> &KeySpace {
        &self.space
    }

    /// A new request begins: entries that it uses or adds stay until its end.
    pub fn begin(&mut self) {
        self.request += 1;
        self.report = ChunkCacheReport { used_bytes: self.report.used_bytes, ..ChunkCacheReport::default() };
    }

    /// A chunk's keys and values, if they are here; counted. They share storage with the entry, which nobody writes to.
    pub fn get(&mut self, key: &ChunkKey) -> Option<Layers> {
        let found = self.take(key);
        match &found {
            Some(layers) => {
                self.report.hits += 1;
                self.report.hit_tokens += layers.first().map_or(0, |(k, _)| k.dims()[0]);
            }
            None => self.report.misses += 1,
        }
        found
    }

    /// As [`get`](Self::get) for the prefix, which is no chunk and is not counted.
    pub fn get_prefix(&mut self, key: &ChunkKey) -> Option<Layers> {
        self.take(key)
    }

    fn take(&mut self, key: &ChunkKey) -> Option<Layers> {
        let entry = self.entries.get_mut(key)?;
        entry.used = self.request;
        Some(entry.layers.clone())
    }

    /// Copies a block into the cache, unless it is there or finds no room beside what this request uses. The copy leaves the
    /// batch that the block was computed in, so that an entry holds no more memory than its own.
    ///
    /// # Errors
    /// The copy's.
    pub fn keep(&mut self, key: ChunkKey, block: &Block) -> Result<()> {
        assert!(matches!(block.held(), BlockRows::Everywhere(_)), "a chunk is kept whole, before anything is cut");
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = self.request;
            return Ok(());
        }
        let bytes = block.layers.iter().map(|(k, v)| bytes_of(k) + bytes_of(v)).sum();
        if !self.make_room(bytes) {
            return Ok(());
        }
        let pair = |(k, v): &(Tensor, Tensor)| Ok((copy(k)?, copy(v)?));
        let layers = block.layers.iter().map(pair).collect::<Result<_>>()?;
        self.entries.insert(key, Entry { layers, bytes, used: self.request });
        self.report.stored.push(key);
        self.report.used_bytes += bytes;
        assert!(self.report.used_bytes <= self.capacity_bytes, "{:?} of {} bytes", self.report, self.capacity_bytes);
        Ok(())
    }

    /// Drops the least recently used entries until so many bytes fit; nothing if they cannot.
    fn make_room(&mut self, bytes: u64) -> bool {
        let idle = |entry: &Entry| entry.used < self.request;
        let in_use: u64 = self.entries.values().filter(|entry| !idle(entry)).map(|entry| entry.bytes).sum();
        if in_use.saturating_add(bytes) > self.capacity_bytes {
            return false;
        }
        while self.report.used_bytes + bytes > self.capacity_bytes {
            let oldest =
                self.entries.iter().filter(|(_, entry)| idle(entry)).min_by_key(|(key, entry)| (entry.used, **key));
            let key = *oldest.expect("what is not in use makes up the rest").0;
            let entry = self.entries.remove(&key).expect("it was just found");
            assert!(entry.bytes <= self.report.used_bytes, "{} bytes of {:?}", entry.bytes, self.report);
            self.report.used_bytes -= entry.bytes;
            self.report.evicted.push(key);
        }
        true
    }

    /// The report of its hits, misses and changes since the request began.
    pub fn report(&self) -> ChunkCacheReport {
        self.report.clone()
    }
}

/// A tensor in storage of its own. An empty prefix has no rows, and a GPU's driver gives no memory of 0 bytes for a copy of them.
fn copy(tensor: &Tensor) -> Result<Tensor> {
    match tensor.elem_count() {
        0 => Ok(cuda::nothing(tensor.shape(), tensor.dtype(), tensor.device())?),
        _ => Ok(tensor.force_contiguous()?),
    }
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    /// One layer, 2 x 8 x `rows` bytes.
    fn block(rows: usize) -> Block {
        let tensor = || Tensor::zeros((rows, 1, 2), DType::F32, &Device::Cpu).expect("zeros");
        Block::of((0..rows as u32).collect::<Vec<_>>(), vec![(tensor(), tensor())])
    }

    fn key(cache: &ChunkCache, id: u32) -> ChunkKey {
        cache.space.chunk(&[], &[id], &[])
    }

    #[test]
    fn the_least_recently_used_entry_goes_first() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 48);
        let [a, b, c, d] = [1, 2, 3, 4].map(|id| key(&cache, id));
        for key in [a, b, c] {
            cache.begin();
            cache.keep(key, &block(1)).expect("kept");
        }
        assert_eq!(cache.report().used_bytes, 48);
        cache.begin();
        assert!(cache.get(&a).is_some());
        cache.begin();
        cache.keep(d, &block(1)).expect("kept");
        let report = cache.report();
        assert_eq!((report.stored, report.evicted, report.used_bytes), (vec![d], vec![b], 48));
        assert!(cache.get(&b).is_none());
        assert!(cache.get(&c).is_some());
        assert_eq!((cache.report().hits, cache.report().misses), (1, 1));
    }

    #[test]
    fn what_a_request_uses_does_not_go_for_its_own_sake() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 40);
        let [a, b, c] = [1, 2, 3].map(|id| key(&cache, id));
        cache.begin();
        cache.keep(a, &block(1)).expect("kept");
        cache.keep(b, &block(1)).expect("kept");
        cache.keep(c, &block(1)).expect("no room: not kept");
        assert_eq!(cache.report().stored, [a, b]);
        cache.begin();
        cache.keep(c, &block(3)).expect("never fits");
        assert_eq!((cache.report().evicted.len(), cache.report().used_bytes), (0, 32));
        cache.keep(c, &block(2)).expect("kept");
        assert_eq!((cache.report().evicted, cache.report().used_bytes), (vec![a.min(b), a.max(b)], 32));
    }

    #[test]
    fn a_prefix_without_rows_is_kept_as_it_is() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 0);
        cache.begin();
        let key = cache.space.prefix(&[]);
        cache.keep(key, &block(0)).expect("kept");
        cache.begin();
        let (k, v) = cache.get_prefix(&key).expect("it needs no room").swap_remove(0);
        assert_eq!((k.dims(), v.dims(), k.dtype()), (&[0, 1, 2][..], &[0, 1, 2][..], DType::F32));
    }

    #[test]
    fn an_entry_is_a_copy_of_its_own_rows() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 1 << 20);
        let numbers = Tensor::arange(0f32, 12., &Device::Cpu).and_then(|t| t.reshape((6, 1, 2))).expect("numbers");
        let batch = Block::of([0, 1, 2, 3, 4, 5], vec![(numbers.clone(), numbers)]);
        let part = batch.narrow(2, 3).expect("rows 2 to 4");
        cache.begin();
        let key = key(&cache, 7);
        cache.keep(key, &part).expect("kept");
        cache.begin();
        let (k, _) = cache.get(&key).expect("it is there").swap_remove(0);
        assert_eq!(k.flatten_all().and_then(|k| k.to_vec1::<f32>()).expect("f32"), [4., 5., 6., 7., 8., 9.]);
        assert_eq!(k.storage_and_layout().1.start_offset(), 0, "storage of its own");
    }
}
