//! Stored chunks that join a request layer by layer while it runs.
//! Before a pass reads a layer, that layer of every such chunk is present. It has been read, or the
//! chunk was unusable and has been computed alone from its ids, after the head as usual.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::Tensor;
use tributary_kernels::{Partial, Positions, SHARED};
use tributary_model::{Attention, Progress, Qkv, Rows, SlicedAttention};
use tributary_protocol::{Chunk, FromStore, Plan, Source};

use crate::attention::{ChunkPrefill, Compression};
use crate::context::{Context, Math};
use crate::error::{Error, Result};
use crate::kv::{Block, Coming, ComingLayer, KvCache, View};
use crate::loading::Loading;
use crate::models::Models;

/// The chunks of a request that are being read on this rank.
#[derive(Default)]
pub struct Arrivals {
    loading: Option<(Loading, Math)>,
    chunks: Vec<Arriving>,
    head: Block,
    /// Number of layers present of all of them.
    there: usize,
    layers: usize,
    from_store: FromStore,
}

/// A chunk whose layers arrive one by one.
struct Arriving {
    layers: Coming,
    chunk: Chunk,
    /// Rotary positions of its rows right after the head.
    standing: Vec<u32>,
    /// Whether it was unusable and has been computed.
    is_computed: bool,
}

impl Arrivals {
    /// Chunks that `loading` reads, in its order, with their rotary positions after a head that is
    /// present.
    pub fn new(loading: (Loading, Math), chunks: Vec<(Chunk, Vec<u32>)>, head: Block, layers: usize) -> Self {
        let arriving = |(chunk, standing)| {
            let slots: Coming = (0..layers).map(|_| OnceLock::new()).collect::<Vec<_>>().into();
            Arriving { layers: slots, chunk, standing, is_computed: false }
        };
        let chunks = chunks.into_iter().map(arriving).collect();
        Self { loading: Some(loading), chunks, head, there: 0, layers, from_store: FromStore::default() }
    }

    /// The same with their report.
    #[must_use]
    pub fn of(self, from_store: FromStore) -> Self {
        Self { from_store, ..self }
    }

    /// The layers of the chunk of this number among those being read.
    pub fn coming(&self, index: usize) -> Coming {
        Arc::clone(&self.chunks[index].layers)
    }

    /// Waits for the first `layers` layers of all chunks.
    ///
    /// # Errors
    /// Returns an error if the prefill of an unusable chunk fails.
    pub fn wait(&mut self, layers: usize, models: &Models<'_>) -> Result<()> {
        let Some((loading, math)) = &self.loading else { return Ok(()) };
        for layer in self.there..layers.min(self.layers) {
            for index in 0..self.chunks.len() {
                if self.chunks[index].is_computed {
                    continue;
                }
                if !loading.is_settled(index, layer) {
                    // Reading counts as progress; a read without progress is given up.
                    math.progress.step(layer)?;
                }
                match loading.layer(index, layer) {
                    Some(ComingLayer { pair: (k, v), places }) => {
                        let device = models.main.device();
                        let pair = (k.to_device(device)?, v.to_device(device)?);
                        fill(&self.chunks[index].layers, layer, ComingLayer { pair, places });
                    }
                    None => compute(&mut self.chunks[index], &self.head, models, math)?,
                }
            }
        }
        self.there = self.there.max(layers.min(self.layers));
        Ok(())
    }

    /// Waits for all layers.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_for_all(&mut self, cx: &Context<'_>) -> Result<()> {
        self.wait(self.layers, &cx.models)
    }

    /// An attention that waits for each layer of these chunks before reading it; `needs` gives the
    /// number of layers that it reads ahead.
    pub(super) fn awaited<'a>(
        &'a mut self,
        models: &'a Models<'a>,
        needs: &'a dyn Fn(usize) -> usize,
        attention: &'a mut dyn Attention<Error = Error>,
    ) -> Awaited<'a> {
        Awaited { arrivals: self, models, needs, attention }
    }

    /// Runs a prompt's rows, which attend to these chunks, through all layers.
    ///
    /// # Errors
    /// As a prompt of the model.
    pub fn prompt(
        &mut self,
        models: &Models<'_>,
        rows: Rows,
        attention: &mut dyn Attention<Error = Error>,
    ) -> Result<Rows> {
        models.main.prompt(rows, &mut self.awaited(models, &|_| 0, attention))
    }

    /// The same, with all rows returned by the last layer.
    ///
    /// # Errors
    /// As a layer of the model.
    pub fn whole(
        &mut self,
        models: &Models<'_>,
        rows: Rows,
        attention: &mut dyn Attention<Error = Error>,
    ) -> Result<Rows> {
        models.main.layers(0..models.main.config().layers, rows, &mut self.awaited(models, &|_| 0, attention))
    }

    /// Runs chunks up to their keys and values of the last layer, while these chunks arrive as in
    /// [`prompt`](Self::prompt).
    ///
    /// # Errors
    /// As a prompt of the model.
    pub fn chunks(&mut self, models: &Models<'_>, rows: Rows, attention: &mut ChunkPrefill<'_>) -> Result<()> {
        let compresses = attention.compresses();
        let mut awaited = self.awaited(models, &|_| 0, attention);
        if compresses {
            // The last layer's queries choose the rows kept in it.
            return models.main.up_to_attention(models.main.config().layers - 1, rows, &mut awaited);
        }
        models.main.prompt(rows, &mut awaited).map(drop)
    }

    /// Waits for all chunks, moves them into `cache` as if they had always been there, and adds
    /// them to the chunk cache.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn settle(mut self, cx: &mut Context<'_>, plan: &Plan, cache: &mut KvCache) -> Result<()> {
        self.wait_for_all(cx)?;
        cache.own = std::mem::take(&mut cache.own).into_iter().map(Block::arrived).collect();
        let mut from_store = self.from_store;
        for chunk in self.chunks.iter().filter(|chunk| chunk.is_computed) {
            let tokens = chunk.chunk.ids.len();
            from_store.loaded -= 1;
            from_store.spoilt += 1;
            from_store.loaded_tokens -= tokens;
            from_store.loaded_bytes -= chunk.bytes();
            cx.prefilled_rows += chunk.chunk.rows();
        }
        cx.chunk_cache.came(from_store);
        tracing::debug!(request = plan.request, rank = cx.rank(), ?from_store, "chunks from the store");
        Ok(())
    }
}

impl Arriving {
    /// Bytes of its keys and values, all of which are present.
    fn bytes(&self) -> u64 {
        let bytes = |tensor: &Tensor| (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64;
        let layer = |ComingLayer { pair: (k, v), places }: &ComingLayer| {
            let of_places = places.as_ref().map_or(0, |places| 4 * k.dims()[1] * places.len());
            bytes(k) + bytes(v) + of_places as u64
        };
        self.layers.iter().filter_map(OnceLock::get).map(layer).sum()
    }
}

fn fill(layers: &Coming, layer: usize, coming: ComingLayer) {
    layers[layer].set(coming).expect("a layer comes once");
}

/// Computes a chunk alone. Layers that were read before are intact and stay.
fn compute(chunk: &mut Arriving, head: &Block, models: &Models<'_>, math: &Math) -> Result<()> {
    let (from, count) = (head.rows().len() as u32, chunk.chunk.rows() as u32);
    let places: Vec<u32> = (from..from + count).collect();
    let at = Positions::new(chunk.standing.clone(), places.clone(), vec![0; count as usize]);
    let before = seen_by_all(head);
    let of = std::iter::once((&chunk.chunk, from..from + count));
    let compresses = chunk.chunk.compress.is_some();
    let compression = compresses.then(|| Compression::new(0, of, &at, models.main.config().layers));
    let mut attention = ChunkPrefill::new(math.clone(), at, before).compressing(compression);
    let sources: Vec<Source> = chunk.chunk.sources().collect();
    Arrivals::default().chunks(models, models.embed(&sources)?, &mut attention)?;
    let block = match attention.into_parts() {
        (_, Some(compression)) => compression.into_blocks().swap_remove(0),
        (layers, None) => Block::of(places, layers),
    };
    let held = block.places();
    for (layer, pair) in block.layers.into_iter().enumerate() {
        if chunk.layers[layer].get().is_none() {
            let places = held.as_ref().map(|held| held[layer].clone());
            fill(&chunk.layers, layer, ComingLayer { pair, places });
        }
    }
    chunk.is_computed = true;
    Ok(())
}

/// A head that is present already: at its places, seen by every segment.
fn seen_by_all(block: &Block) -> View {
    let places: Vec<u32> = block.rows().to_vec();
    View::of(block.clone(), Positions::new(places.clone(), places, vec![SHARED; block.rows().len()]))
}

/// An attention over chunks that are being read: it waits for each layer first.
pub(super) struct Awaited<'a> {
    arrivals: &'a mut Arrivals,
    models: &'a Models<'a>,
    /// Number of layers that must be present before the given one is attended to, if more than
    /// itself.
    needs: &'a dyn Fn(usize) -> usize,
    attention: &'a mut dyn Attention<Error = Error>,
}

impl Attention for Awaited<'_> {
    type Error = Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        self.wait(layer)?;
        self.attention.attend(layer, qkv)
    }

    fn progress(&self) -> &Progress {
        self.attention.progress()
    }

    fn in_slices(&mut self) -> Option<&mut dyn SlicedAttention<Error = Error>> {
        if self.attention.in_slices().is_some() { Some(self) } else { None }
    }

    fn last_layer(&mut self, rows: usize) -> usize {
        self.attention.last_layer(rows)
    }
}

impl Awaited<'_> {
    /// Waits for the chunks that a layer reads.
    fn wait(&mut self, layer: usize) -> Result<()> {
        self.arrivals.wait((self.needs)(layer).max(layer + 1), self.models)
    }

    fn sliced(&mut self) -> &mut dyn SlicedAttention<Error = Error> {
        self.attention.in_slices().expect("the attention takes slices")
    }
}

impl SlicedAttention for Awaited<'_> {
    type Error = Error;

    fn take(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.wait(layer)?;
        self.sliced().take(layer, k, v)
    }

    fn ahead(&mut self) -> Vec<Range<usize>> {
        self.sliced().ahead()
    }

    fn take_ahead(&mut self, layer: usize, q: Tensor) -> Result<()> {
        self.sliced().take_ahead(layer, q)
    }

    fn parts(&mut self, rows: usize, parts: usize) -> Vec<Range<usize>> {
        self.sliced().parts(rows, parts)
    }

    fn slice(&mut self, layer: usize, q: Tensor, rows: Range<usize>) -> Result<Partial> {
        self.sliced().slice(layer, q, rows)
    }

    fn end(&mut self, layer: usize) -> Result<()> {
        self.sliced().end(layer)
    }

    fn common_rows(&mut self) -> Option<usize> {
        self.sliced().common_rows()
    }
}
