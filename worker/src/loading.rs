//! Stored chunks on their way into memory: threads of the store read them layer by layer, the first
//! layers of all chunks first, directly into the memory of their tensors. A pass waits here for the
//! layers that it needs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tributary_store::{Damage, Identity, Shape, Steps, Store, StoredChunk};

use crate::kv::{ComingLayer, LayerRows};
use crate::numbers::Buffer;

/// Maximum time without an arriving layer before reading is given up.
const SLOW: Duration = Duration::from_secs(2);

/// Maximum total time, to which the time of a slow disk is added.
const LONGEST: Duration = Duration::from_secs(10);
const LEAST_BYTES_PER_S: f64 = 20e6;

/// A layer in the host's memory; absent if it is unusable.
type Layer = Option<ComingLayer>;

/// Chunks that are being read. After a drop, steps that have not begun are not read.
#[derive(Debug)]
pub struct Loading(Arc<Shared>);

struct Shared {
    store: Arc<Store>,
    chunks: Vec<Chunk>,
    layers: usize,
    /// Number of steps begun: layer by layer, and chunk by chunk in each layer.
    begun: AtomicUsize,
    is_over: AtomicBool,
    until: Instant,
    /// Time of the last layer's arrival; its lock belongs to `arrived`.
    arrived_at: Mutex<Instant>,
    arrived: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loading").field("chunks", &self.chunks.len()).finish_non_exhaustive()
    }
}

struct Chunk {
    identity: Identity,
    shape: Shape,
    /// None if the file is unusable.
    file: OnceLock<Option<StoredChunk>>,
    layers: Vec<OnceLock<Layer>>,
    left: AtomicUsize,
    begun: OnceLock<Instant>,
    is_spoilt: AtomicBool,
}

impl Loading {
    /// Begins to read chunks, all with the same number of layers.
    pub fn begin(store: &Arc<Store>, chunks: Vec<(Identity, Shape)>) -> Self {
        let layers = chunks.first().map_or(0, |(_, shape)| shape.layers);
        let chunk = |(identity, shape): (Identity, Shape)| {
            assert_eq!(shape.layers, layers, "layers of a chunk that is read with others");
            Chunk {
                identity,
                shape,
                file: OnceLock::new(),
                layers: (0..layers).map(|_| OnceLock::new()).collect(),
                left: AtomicUsize::new(layers),
                begun: OnceLock::new(),
                is_spoilt: AtomicBool::new(false),
            }
        };
        let bytes: u64 = chunks.iter().map(|(_, shape)| shape.bytes()).sum();
        let until = Instant::now() + LONGEST + Duration::from_secs_f64(bytes as f64 / LEAST_BYTES_PER_S);
        let shared = Arc::new(Shared {
            store: Arc::clone(store),
            chunks: chunks.into_iter().map(chunk).collect(),
            layers,
            begun: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            until,
            arrived_at: Mutex::new(Instant::now()),
            arrived: Condvar::new(),
        });
        shared.chunks.iter().for_each(|chunk| store.ask(&chunk.identity.key, &chunk.shape));
        store.read(Arc::clone(&shared) as Arc<dyn Steps>);
        Self(shared)
    }

    /// Waits for a layer of a chunk, in the host's memory. Returns none if it is unusable, or if no
    /// layer at all arrives for two seconds.
    pub fn layer(&self, chunk: usize, layer: usize) -> Layer {
        let Chunk { layers, is_spoilt, .. } = &self.0.chunks[chunk];
        let slot = &layers[layer];
        let mut arrived_at = self.0.arrived_at.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = slot.get() {
                return found.clone();
            }
            if is_spoilt.load(Ordering::Acquire) {
                return None;
            }
            let left =
                self.0.until.saturating_duration_since(Instant::now()).min(SLOW.saturating_sub(arrived_at.elapsed()));
            if left.is_zero() {
                drop(arrived_at);
                self.0.give_up(chunk);
                return None;
            }
            (arrived_at, _) = self.0.arrived.wait_timeout(arrived_at, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a layer has arrived or will never arrive.
    pub fn is_settled(&self, chunk: usize, layer: usize) -> bool {
        let chunk = &self.0.chunks[chunk];
        chunk.layers[layer].get().is_some() || chunk.is_spoilt.load(Ordering::Acquire)
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        for chunk in &self.0.chunks {
            self.0.store.abandon(&chunk.identity.key);
        }
    }
}

impl Steps for Shared {
    fn step(&self) -> bool {
        if self.is_over.load(Ordering::Acquire) {
            return false;
        }
        let step = self.begun.fetch_add(1, Ordering::Relaxed);
        if step >= self.layers * self.chunks.len() {
            return false;
        }
        let (layer, index) = (step / self.chunks.len(), step % self.chunks.len());
        let chunk = &self.chunks[index];
        let read = chunk.read(layer, &self.store);
        if read.is_none() {
            chunk.is_spoilt.store(true, Ordering::Release);
        }
        // No other thread reads this layer.
        let _ = chunk.layers[layer].set(read);
        *self.arrived_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.arrived.notify_all();
        true
    }
}

impl Shared {
    /// Gives up waiting for a chunk: the store is too slow.
    fn give_up(&self, chunk: usize) {
        let chunk = &self.chunks[chunk];
        chunk.is_spoilt.store(true, Ordering::Release);
        self.store.was_slow();
    }
}

impl Chunk {
    /// Reads a layer from the file.
    fn read(&self, layer: usize, store: &Store) -> Layer {
        if self.is_spoilt.load(Ordering::Acquire) {
            return None;
        }
        let begun = *self.begun.get_or_init(Instant::now);
        let file = self.file.get_or_init(|| store.find(&self.identity, &self.shape).ok()).as_ref()?;
        let Shape { rows, kv_heads, head_dim, numbers, .. } = self.shape;
        let count = rows * kv_heads * head_dim;
        let (mut keys, mut values) = (Buffer::new(numbers, count), Buffer::new(numbers, count));
        let mut places = vec![0; self.shape.place_bytes()];
        let read: Result<(), Damage> = file.read_parts(layer, [&mut places, keys.bytes(), values.bytes()]);
        read.ok()?;
        let (numbers, _) = places.as_chunks();
        let numbers: Vec<u32> = numbers.iter().map(|&number| u32::from_le_bytes(number)).collect();
        let places = self.shape.with_places.then(|| LayerRows::of_numbers(&numbers, kv_heads));
        let shape = (rows, kv_heads, head_dim);
        let pair = (keys.tensor(shape).ok()?, values.tensor(shape).ok()?);
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            file.has_been_read(self.shape.layers, begun.elapsed());
        }
        Some(ComingLayer { pair, places })
    }
}
