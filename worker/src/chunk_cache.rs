//! The chunk cache of one rank: keys before RoPE and values of chunks prefilled earlier, by the
//! hash of everything that determines them. They are in memory, which ends with the rank, and
//! optionally in a store, which outlives it.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::cuda;
use tributary_model::Features;
use tributary_protocol::{CacheEntries, ChunkCacheReport, ChunkKey, FromStore, KeySpace};
use tributary_store::{Identity, Shape, Store, Writing};

use crate::error::Result;
use crate::kv::{Block, LayerRows};
use crate::numbers;

/// Per layer `[rows, kv_heads, head_dim]`: keys before RoPE, values.
type Layers = Vec<(Tensor, Tensor)>;

/// A chunk's keys and values; for a compressed chunk also the places of each layer's rows in it.
#[derive(Debug, Clone)]
pub struct Cached {
    /// Keys and values.
    pub layers: Layers,
    /// Places, counted from the chunk's first row.
    pub places: Option<Arc<[LayerRows]>>,
}

impl Cached {
    /// The chunk's block in a request in which it has these rows.
    pub fn block(self, rows: Vec<u32>) -> Block {
        match self.places {
            Some(places) => Block::compressed(rows, &places, self.layers),
            None => Block::of(rows, self.layers),
        }
    }
}

/// Minimum number of rows from which the time of a row is measured.
const TELLING_ROWS: usize = 64;

/// Chunks of one rank; the least recently used are evicted first.
#[derive(Debug)]
pub struct ChunkCache {
    space: KeySpace,
    entries: CacheEntries<Entry>,
    report: ChunkCacheReport,
    store: Option<Arc<Store>>,
    /// Seconds in which a row of a chunk was computed last; absent before the first one.
    row_s: Option<f64>,
    /// The model's mean queries by layer, as far as anchors of chunks needed them.
    mean_queries: BTreeMap<usize, Tensor>,
}

#[derive(Debug)]
struct Entry {
    chunk: Cached,
    /// Number of rows that count as reused with it: a compressed chunk's tokens, otherwise its
    /// rows.
    rows: usize,
}

impl ChunkCache {
    /// An empty cache for chunks of one model, with at most `capacity_bytes` bytes of keys and
    /// values.
    pub fn new(space: KeySpace, capacity_bytes: u64) -> Self {
        let (entries, report) = (CacheEntries::new(capacity_bytes), ChunkCacheReport::default());
        Self { space, entries, report, store: None, row_s: None, mean_queries: BTreeMap::new() }
    }

    /// The same cache backed by a store, if there is one.
    #[must_use]
    pub fn backed_by(self, store: Option<Arc<Store>>) -> Self {
        Self { store, ..self }
    }

    /// The store that backs it.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Whether the store has a chunk, as far as this rank knows, and was not too slow lately.
    pub fn is_stored(&self, key: &ChunkKey) -> bool {
        self.may_be_stored() && self.store.as_ref().is_some_and(|store| store.has(key))
    }

    /// Whether there is a store that was not too slow lately. Another process may have written
    /// chunks that this one does not know of.
    pub fn may_be_stored(&self) -> bool {
        self.store.as_ref().is_some_and(|store| !store.rests())
    }

    /// Seconds in which a row of a chunk was computed here last; absent before the first one.
    pub fn row_s(&self) -> Option<f64> {
        self.row_s
    }

    /// Records that `rows` rows were computed in `seconds`. A request that also waited for the
    /// store is ignored.
    pub fn computed(&mut self, rows: usize, seconds: f64) {
        let FromStore { loaded, spoilt, .. } = self.report.from_store;
        if rows >= TELLING_ROWS && seconds > 0.0 && loaded + spoilt == 0 {
            self.row_s = Some(seconds / rows as f64);
        }
    }

    /// The model's mean query in a layer, `[1, heads, head_dim]`, if it was kept.
    pub fn mean_query(&self, layer: usize) -> Option<Tensor> {
        self.mean_queries.get(&layer).cloned()
    }

    /// Keeps the model's mean query in a layer. It does not depend on any request.
    pub fn keep_mean_query(&mut self, layer: usize, query: Tensor) {
        self.mean_queries.insert(layer, query);
    }

    /// A cache of no capacity, for ranks that run one request.
    pub fn none() -> Self {
        Self::new(KeySpace::new([0; 32], ""), 0)
    }

    /// The model and dtype in the names of its chunks.
    pub fn space(&self) -> &KeySpace {
        &self.space
    }

    /// Begins a new request: entries that it uses or adds stay until its end.
    pub fn begin(&mut self) {
        self.entries.begin();
        self.report = ChunkCacheReport::default();
    }

    /// A chunk's keys and values, if they are cached; counted as a hit. They share storage with the
    /// entry, which is never written to.
    pub fn get(&mut self, key: &ChunkKey) -> Option<Cached> {
        let entry = self.entries.used(key)?;
        self.report.hits += 1;
        self.report.hit_tokens += entry.rows;
        Some(entry.chunk.clone())
    }

    /// Counts a chunk that was expected here and has to be computed.
    pub fn miss(&mut self) {
        self.report.misses += 1;
    }

    /// Counts the chunks from the store, the unusable ones, and those that were computed instead.
    pub fn came(&mut self, from_store: FromStore) {
        self.report.hits += from_store.loaded;
        self.report.hit_tokens += from_store.loaded_tokens;
        self.report.misses += from_store.computed + from_store.spoilt;
        self.report.from_store = from_store;
    }

    /// As [`get`](Self::get), for the prefix, which is no chunk and is not counted.
    pub fn get_prefix(&mut self, key: &ChunkKey) -> Option<Layers> {
        Some(self.entries.used(key)?.chunk.layers.clone())
    }

    /// Counts entries that were taken with [`get_prefix`](Self::get_prefix), of `tokens` tokens, as
    /// hits.
    pub fn reuse(&mut self, hits: usize, tokens: usize) {
        self.report.hits += hits;
        self.report.hit_tokens += tokens;
    }

    /// Puts a block into the cache, unless it is present or there is no room beside the entries of
    /// this request. The block is copied out of its batch, so that an entry holds only its own
    /// memory. The store gets it too, under `identity`.
    ///
    /// # Errors
    /// Returns an error if the copy fails.
    pub fn keep(&mut self, key: ChunkKey, block: &Block, identity: Identity) -> Result<()> {
        self.keep_at((key, 0), block, identity)
    }

    /// As [`keep`](Self::keep), for a piece of a prompt after `before` rows of it: of pieces used
    /// last by the same request, the last one is evicted first.
    ///
    /// # Errors
    /// Returns an error if the copy fails.
    pub fn keep_after(&mut self, before: usize, block: &Block, identity: Identity) -> Result<()> {
        self.keep_at((identity.key, before), block, identity)
    }

    fn keep_at(&mut self, (key, before): (ChunkKey, usize), block: &Block, identity: Identity) -> Result<()> {
        let lacks = self.store.as_ref().is_some_and(|store| !store.has(&identity.key));
        if let Some(entry) = self.entries.used(&key) {
            if lacks {
                let chunk = entry.chunk.clone();
                self.write(identity, chunk);
            } else if let Some(store) = &self.store {
                store.touch(&identity.key);
            }
            return Ok(());
        }
        let places: Option<Arc<[LayerRows]>> = block.places().map(Arc::from);
        let of_places: usize = places.iter().flat_map(|places| places.iter()).map(|rows| rows.bytes()).sum();
        let bytes = block.layers.iter().map(|(k, v)| bytes_of(k) + bytes_of(v)).sum::<u64>() + of_places as u64;
        let evicted = self.entries.make_room(bytes);
        let has_room = evicted.is_some();
        self.report.evicted.extend(evicted.into_iter().flatten());
        if !has_room && !lacks {
            return Ok(());
        }
        let layers: Layers = if block.is_alone() {
            block.layers.clone()
        } else {
            let pair = |(k, v): &(Tensor, Tensor)| Ok((copy(k)?, copy(v)?));
            block.layers.iter().map(pair).collect::<Result<_>>()?
        };
        let rows = if places.is_some() { identity.ids.len() } else { layers.first().map_or(0, |(k, _)| k.dims()[0]) };
        let chunk = Cached { layers, places };
        if lacks {
            self.write(identity, chunk.clone());
        }
        if has_room {
            self.entries.add(key, (bytes, before), Entry { chunk, rows });
            self.report.stored.push(key);
        }
        Ok(())
    }

    /// The features of a picture of this hash, if they are cached.
    pub fn features(&mut self, hash: &[u8; 32]) -> Option<Features> {
        let key = self.features_key(hash);
        let (features, levels) = self.entries.used(&key)?.chunk.layers.split_first()?;
        let levels = levels.iter().map(|(level, _)| level.clone()).collect();
        self.report.picture_hits += 1;
        Some(Features { features: features.0.clone(), levels })
    }

    /// Puts features into the cache, unless they are there or there is no room. They do not depend
    /// on what stands before the picture, and are not written to the store.
    ///
    /// # Errors
    /// Returns an error if the copy fails.
    pub fn keep_features(&mut self, hash: &[u8; 32], features: &Features) -> Result<()> {
        let key = self.features_key(hash);
        let tensors = || std::iter::once(&features.features).chain(&features.levels);
        let bytes = tensors().map(bytes_of).sum();
        if self.entries.used(&key).is_some() {
            return Ok(());
        }
        let evicted = self.entries.make_room(bytes);
        let has_room = evicted.is_some();
        self.report.evicted.extend(evicted.into_iter().flatten());
        if has_room {
            // An entry has pairs of tensors: here one in both places, in the same memory.
            let pair = |tensor: &Tensor| copy(tensor).map(|tensor| (tensor.clone(), tensor));
            let layers: Layers = tensors().map(pair).collect::<Result<_>>()?;
            self.entries.add(key, (bytes, 0), Entry { chunk: Cached { layers, places: None }, rows: 0 });
        }
        Ok(())
    }

    fn features_key(&self, hash: &[u8; 32]) -> ChunkKey {
        self.space.chunk(&[], &[], &[b"features of a picture", &hash[..]].concat())
    }

    /// Passes a chunk to the store, whose own thread converts the tensors to bytes.
    fn write(&self, identity: Identity, chunk: Cached) {
        let Some((store, shape)) = self.store.as_ref().zip(shape_of(&chunk)) else { return };
        let append = move |layer: usize, bytes: &mut Vec<u8>| {
            let (k, v) = &chunk.layers[layer];
            let places = chunk.places.iter().flat_map(|places| places[layer].numbers(shape.kv_heads));
            bytes.extend(places.flat_map(u32::to_le_bytes));
            [k, v].into_iter().try_for_each(|tensor| numbers::append(tensor, bytes)).map_err(|error| error.to_string())
        };
        store.write(Writing { identity, shape, layer: Box::new(append) });
    }

    /// Report of hits, misses and changes since the request began.
    pub fn report(&self) -> ChunkCacheReport {
        let (used_bytes, store) = (self.entries.used_bytes(), self.store.as_ref().map(|store| store.report()));
        ChunkCacheReport { used_bytes, store, ..self.report.clone() }
    }
}

/// Shape of a stored chunk; absent for a dtype that is not stored.
fn shape_of(Cached { layers, places }: &Cached) -> Option<Shape> {
    let (k, _) = layers.first()?;
    let (rows, kv_heads, head_dim) = k.dims3().ok()?;
    let (numbers, with_places) = (numbers::numbers(k.dtype())?, places.is_some());
    Some(Shape { layers: layers.len(), rows, kv_heads, head_dim, numbers, with_places })
}

/// A tensor in storage of its own. An empty prefix has no rows, and a GPU's driver allocates no
/// memory of 0 bytes for their copy.
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

    /// An identity for caches without a store, which do not read it.
    fn unnamed() -> Identity {
        let key = KeySpace::new([0; 32], "f32").prefix(&[]);
        Identity { key, model: [0; 32], prefix: Vec::new(), extra: Vec::new(), ids: Vec::new() }
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
            cache.keep(key, &block(1), unnamed()).expect("kept");
        }
        assert_eq!(cache.report().used_bytes, 48);
        cache.begin();
        assert!(cache.get(&a).is_some());
        cache.begin();
        cache.keep(d, &block(1), unnamed()).expect("kept");
        let report = cache.report();
        assert_eq!((report.stored, report.evicted, report.used_bytes), (vec![d], vec![b], 48));
        assert!(cache.get(&b).is_none());
        assert!(cache.get(&c).is_some());
        assert_eq!((cache.report().hits, cache.report().misses), (1, 0));
    }

    #[test]
    fn what_a_request_uses_does_not_go_for_its_own_sake() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 40);
        let [a, b, c] = [1, 2, 3].map(|id| key(&cache, id));
        cache.begin();
        cache.keep(a, &block(1), unnamed()).expect("kept");
        cache.keep(b, &block(1), unnamed()).expect("kept");
        cache.keep(c, &block(1), unnamed()).expect("no room: not kept");
        assert_eq!(cache.report().stored, [a, b]);
        cache.begin();
        cache.keep(c, &block(3), unnamed()).expect("never fits");
        assert_eq!((cache.report().evicted.len(), cache.report().used_bytes), (0, 32));
        cache.keep(c, &block(2), unnamed()).expect("kept");
        assert_eq!((cache.report().evicted, cache.report().used_bytes), (vec![a.min(b), a.max(b)], 32));
    }

    #[test]
    fn a_prefix_without_rows_is_kept_as_it_is() {
        let mut cache = ChunkCache::new(KeySpace::new([0; 32], "f32"), 0);
        cache.begin();
        let key = cache.space.prefix(&[]);
        cache.keep(key, &block(0), unnamed()).expect("kept");
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
        cache.keep(key, &part, unnamed()).expect("kept");
        cache.begin();
        let (k, _) = cache.get(&key).expect("it is there").layers.swap_remove(0);
        assert_eq!(k.flatten_all().and_then(|k| k.to_vec1::<f32>()).expect("f32"), [4., 5., 6., 7., 8., 9.]);
        assert_eq!(k.storage_and_layout().1.start_offset(), 0, "storage of its own");
    }
}
