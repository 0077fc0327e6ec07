//! The longest cached prefix of a prompt, in pieces: from the chunk cache or the store behind it
//! before the prompt is computed, and back into them after the first token. Rows attend to all rows
//! before them, as in a full prefill, so reused rows are exact.

use candle_core::Tensor;
use tributary_protocol::{FromStore, Plan, PromptPiece};
use tributary_store::{Identity, Shape};

use super::stock::shape;
use crate::context::Context;
use crate::error::Result;
use crate::kv::{Block, KvCache};
use crate::loading::Loading;

/// The first of the prompt's `rows`, which are in the order of their places, at most as many as the
/// plan allows, as one block; no block if the first piece is not cached.
///
/// # Errors
/// Returns an error if a candle operation fails.
pub(super) fn cached(cx: &mut Context<'_>, plan: &Plan, rows: &[u32]) -> Result<Option<Block>> {
    let mut pieces = if plan.reused_rows > 0 { plan.prompt_pieces(cx.chunk_cache.space()) } else { Vec::new() };
    pieces.retain(|piece| piece.rows.start < plan.reused_rows);
    // Of the last piece not every row may be reused.
    pieces.iter_mut().for_each(|piece| piece.rows.end = piece.rows.end.min(plan.reused_rows));
    let mut blocks = in_memory(cx, plan, &pieces)?;
    cx.chunk_cache.reuse(blocks.len(), blocks.iter().map(|block| block.rows().len()).sum());
    let (stored, spoilt) = in_store(cx, &pieces[blocks.len()..])?;
    blocks.extend(stored);
    // A damaged piece is counted by the store's report.
    (blocks.len() + spoilt..pieces.len()).for_each(|_| cx.chunk_cache.miss());
    if blocks.is_empty() {
        return Ok(None);
    }
    let Block { layers, .. } = Block::joined(blocks)?;
    let (count, reused) = (layers.len(), layers.first().map_or(0, |(k, _)| k.dims()[0]));
    Ok(Some(Block::of(&rows[..reused], layers).complete(count)))
}

/// The first pieces, up to one that the memory lacks.
fn in_memory(cx: &mut Context<'_>, plan: &Plan, pieces: &[PromptPiece]) -> Result<Vec<Block>> {
    if plan.from_store {
        return Ok(Vec::new());
    }
    let layers = cx.models.main.config().layers;
    let found = |piece: &PromptPiece| Some(block(piece, cx.chunk_cache.get_prefix(&piece.key)?, layers));
    pieces.iter().map_while(found).collect()
}

/// The used rows of a piece with these keys and values.
fn block(piece: &PromptPiece, pairs: Vec<(Tensor, Tensor)>, layers: usize) -> Result<Block> {
    let first = piece.rows.start as u32;
    let whole = Block::of((first..first + piece.ids.len() as u32).collect::<Vec<_>>(), pairs).complete(layers);
    match piece.rows.len() == piece.ids.len() {
        true => Ok(whole),
        false => Ok(whole.narrow(0, piece.rows.len())?.complete(layers)),
    }
}

/// The first pieces, up to one that the store lacks or that cannot be read, and the number of
/// unreadable ones.
fn in_store(cx: &mut Context<'_>, pieces: &[PromptPiece]) -> Result<(Vec<Block>, usize)> {
    let Some(store) = cx.chunk_cache.store().cloned() else { return Ok((Vec::new(), 0)) };
    let with_shape = |piece: &PromptPiece| Some((identity(cx, piece), shape(cx, piece.ids.len())?));
    let is_stored = |piece: &&PromptPiece| cx.chunk_cache.is_stored(&piece.key);
    let wanted: Vec<(Identity, Shape)> = pieces.iter().take_while(is_stored).map_while(with_shape).collect();
    if wanted.is_empty() {
        return Ok((Vec::new(), 0));
    }
    let (device, layers, count) = (cx.models.main.device(), cx.models.main.config().layers, wanted.len());
    let bytes: Vec<u64> = wanted.iter().map(|(_, shape)| shape.bytes()).collect();
    let (loading, progress) = (Loading::begin(&store, wanted), cx.math.alone().progress);
    let (mut blocks, mut from_store) = (Vec::new(), FromStore::default());
    for (index, piece) in pieces[..count].iter().enumerate() {
        progress.step(0)?; // Reading counts as progress.
        let found: Option<Vec<_>> = (0..layers).map(|layer| loading.layer(index, layer)).collect();
        let Some(found) = found else {
            from_store.spoilt += 1;
            break;
        };
        let pairs = found.into_iter().map(|layer| layer.pair);
        let pairs = pairs.map(|(k, v)| Ok((k.to_device(device)?, v.to_device(device)?))).collect::<Result<Vec<_>>>()?;
        from_store.loaded += 1;
        from_store.loaded_tokens += piece.rows.len();
        from_store.loaded_bytes += bytes[index];
        blocks.push(block(piece, pairs, layers)?);
    }
    cx.chunk_cache.came(from_store);
    Ok((blocks, from_store.spoilt))
}

/// Copies the pieces of the prompt into the chunk cache of its owner, as many as fit.
///
/// # Errors
/// Returns an error if a copy fails.
pub fn keep(cx: &mut Context<'_>, plan: &Plan, cache: &KvCache) -> Result<()> {
    if !plan.keep_chunks || !plan.method.reuses_prefix() || cx.rank() != plan.owner {
        return Ok(());
    }
    let mut first = 0;
    let pieces = plan.prompt_pieces(cx.chunk_cache.space());
    for block in &cache.own {
        let rows = first..first + block.rows().len();
        // A piece of which a part is reused is in the cache already.
        let inside = |piece: &&PromptPiece| rows.start <= piece.rows.start && piece.rows.end <= rows.end;
        for piece in pieces.iter().filter(inside) {
            let part = block.narrow(piece.rows.start - rows.start, piece.rows.len())?;
            let identity = identity(cx, piece);
            cx.chunk_cache.keep_after(piece.rows.start, &part, identity)?;
        }
        first = rows.end;
    }
    Ok(())
}

/// Identity of a piece in a store: a chunk without a prefix, whose name covers the one before it.
fn identity(cx: &Context<'_>, piece: &PromptPiece) -> Identity {
    let PromptPiece { key, ids, extra, .. } = piece.clone();
    Identity { key, model: cx.chunk_cache.space().model(), prefix: Vec::new(), extra, ids }
}
