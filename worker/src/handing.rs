//! Layers of a prompt that another program reads while later ones are being computed.
//!
//! Each rank notes the keys and values of its rows in the last pass over the prompt, layer by
//! layer, beside those that were there before it. A halt at a control point then finds the layers
//! that are complete.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use candle_core::DType;
use candle_core::Tensor;
use tributary_kernels::{Keys, PAD, Partial, Positions, from_eight_bits, gather, is_in_eight_bits};
use tributary_model::{Attention, LayerAttention, Progress, Qkv, SlicedAttention};

use crate::error::{Error, Result};
use crate::kv::View;

scoped_tls_hkt::scoped_thread_local!(static FILLING: for<'a> &'a Filling);

/// A cache that is being filled, of which layers are read meanwhile.
pub struct Filling {
    request: u64,
    layers: Arc<[LayerAttention]>,
    last_pass: RefCell<Option<LastPass>>,
}

/// This rank's rows in the last pass over a prompt.
struct LastPass {
    /// Rows that were there before it.
    before: View,
    /// Positions of its own.
    at: Positions,
    /// Keys before RoPE and values of its own, layer by layer.
    layers: Vec<(Tensor, Tensor)>,
}

impl Filling {
    /// The cache of a request, before its last pass.
    pub fn new(request: u64, layers: Arc<[LayerAttention]>) -> Self {
        Self { request, layers, last_pass: RefCell::default() }
    }

    /// This rank's keys of a layer at these positions, turned to them; none while the layer is not
    /// complete here.
    fn keys(&self, layer: usize, rows: &Range<u32>) -> Result<Vec<Keys>> {
        let pass = self.last_pass.borrow();
        let Some(pass) = pass.as_ref().filter(|pass| layer < pass.layers.len()) else { return Ok(Vec::new()) };
        let (k, v) = pass.layers[layer].clone();
        let mut keys = pass.before.keys(layer);
        keys.push(Keys { k, v, at: pass.at.clone() });
        let of = &self.layers[layer];
        let turn = |keys: Keys| {
            let Keys { k, v, at } = widened(keys, of.dtype)?;
            Ok(Keys { k: of.rope.apply(&k, &at)?, v, at })
        };
        standing(&keys, rows)?.into_iter().map(turn).collect()
    }
}

/// Keys that decoding reads, turned to their positions and as another program takes them: those in
/// 8 bits are unpacked.
///
/// # Errors
/// Returns an error if a position is beyond the tables or a candle operation fails.
pub fn as_read(keys: Vec<Keys>, of: &LayerAttention) -> Result<Vec<Keys>> {
    let read = |keys: Keys| {
        let packed = is_in_eight_bits(&keys.k);
        let Keys { k, v, at } = widened(keys, of.dtype)?;
        Ok(Keys { k: if packed { of.rope.apply(&k, &at)? } else { k }, v, at })
    };
    keys.into_iter().map(read).collect()
}

/// Keys and values with those in 8 bits unpacked.
fn widened(Keys { k, v, at }: Keys, dtype: DType) -> Result<Keys> {
    Ok(Keys { k: from_eight_bits(&k, dtype)?, v: from_eight_bits(&v, dtype)?, at })
}

/// Those of the keys that stand at these positions. Hidden ones stand nowhere.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn standing(keys: &[Keys], rows: &Range<u32>) -> Result<Vec<Keys>> {
    let mut found = Vec::new();
    for Keys { k, v, at } in keys {
        let (rope, order) = (at.rope(), at.order());
        let is_wanted = |&place: &u32| {
            let (position, order) = (rope[place as usize], order[place as usize]);
            order != PAD && order == position && rows.contains(&position)
        };
        let places: Vec<u32> = (0..at.len() as u32).filter(is_wanted).collect();
        let (Some(&first), Some(&last)) = (places.first(), places.last()) else { continue };
        let cut = |x: &Tensor| -> Result<Tensor> {
            Ok(match (last - first) as usize + 1 == places.len() {
                true => x.narrow(0, first as usize, places.len())?,
                false => gather(x, &places)?,
            })
        };
        found.push(Keys { k: cut(k)?, v: cut(v)?, at: at.select(&places) });
    }
    Ok(found)
}

/// Fills a cache, of which layers are read meanwhile if there is a `filling`.
pub fn filled<T>(filling: Option<&Filling>, fill: impl FnOnce() -> T) -> T {
    match filling {
        Some(filling) => FILLING.set(filling, fill),
        None => fill(),
    }
}

/// Whether the cache of a request is being filled on this thread, so that layers are read.
pub fn fills(request: u64) -> bool {
    FILLING.is_set() && FILLING.with(|filling| filling.request == request)
}

/// This rank's keys of a layer of the cache that is being filled, turned to their positions, which
/// are these; none while the layer is not complete here.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub fn keys(layer: usize, rows: &Range<u32>) -> Result<Vec<Keys>> {
    if FILLING.is_set() { FILLING.with(|filling| filling.keys(layer, rows)) } else { Ok(Vec::new()) }
}

/// The last pass over the prompt begins: rows that this rank alone holds before it, and positions
/// of its own rows.
pub fn last_pass(rows: impl FnOnce() -> (View, Positions)) {
    if FILLING.is_set() {
        let (before, at) = rows();
        FILLING.with(|filling| *filling.last_pass.borrow_mut() = Some(LastPass { before, at, layers: Vec::new() }));
    }
}

/// Runs the last pass over the prompt. Its layers are noted if they are read meanwhile.
pub fn noted<T>(
    attention: &mut dyn Attention<Error = Error>,
    pass: impl FnOnce(&mut dyn Attention<Error = Error>) -> T,
) -> T {
    if FILLING.is_set() { pass(&mut Noted { attention, taken: None }) } else { pass(attention) }
}

/// An attention whose keys and values are noted once they have been attended to.
struct Noted<'a> {
    attention: &'a mut dyn Attention<Error = Error>,
    /// Those of the layer whose queries come in slices.
    taken: Option<(Tensor, Tensor)>,
}

impl Noted<'_> {
    fn note(layer: usize, pair: (Tensor, Tensor)) {
        FILLING.with(|filling| {
            if let Some(pass) = filling.last_pass.borrow_mut().as_mut() {
                assert_eq!(pass.layers.len(), layer, "layers come in order");
                pass.layers.push(pair);
            }
        });
    }

    fn sliced(&mut self) -> &mut dyn SlicedAttention<Error = Error> {
        self.attention.in_slices().expect("the attention takes slices")
    }
}

impl Attention for Noted<'_> {
    type Error = Error;

    fn attend(&mut self, layer: usize, qkv: Qkv) -> Result<Partial> {
        let pair = (qkv.k.clone(), qkv.v.clone());
        let out = self.attention.attend(layer, qkv)?;
        Self::note(layer, pair);
        Ok(out)
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

impl SlicedAttention for Noted<'_> {
    type Error = Error;

    fn take(&mut self, layer: usize, k: Tensor, v: Tensor) -> Result<()> {
        self.taken = Some((k.clone(), v.clone()));
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
        self.sliced().end(layer)?;
        let pair = self.taken.take().expect("the layer's keys were taken");
        Self::note(layer, pair);
        Ok(())
    }

    fn common_rows(&mut self) -> Option<usize> {
        self.sliced().common_rows()
    }
}
