//! Keys and values of a filled cache for another program, which decodes with them.
//!
//! That program knows token ids and a position for each: row i of what it gets has token i and
//! stands at position i, in every layer and KV head.

use std::ops::Range;

use crate::{MESSAGE_LIMIT_BYTES, OrderFor, Plan};

/// Bytes of a message of rows.
const AT_ONCE_BYTES: usize = MESSAGE_LIMIT_BYTES / 8;

/// Rows of one layer of a held sequence.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HandOver {
    /// Number of the sequence's request.
    pub request: u64,
    /// Number of the layer.
    pub layer: u32,
    /// Positions of the rows.
    pub rows: Range<u32>,
}

impl HandOver {
    /// Number of rows of one message, where one has `row_bytes` bytes of keys and values in a
    /// layer. A message is gathered while the one before it is hashed and sent.
    pub fn rows_at_once(row_bytes: usize) -> usize {
        (AT_ONCE_BYTES / row_bytes.max(1)).max(1)
    }
}

impl Plan {
    /// Why no other program can decode with the cache that this plan fills; `None` if one can.
    pub fn no_hand_over(&self) -> Option<&'static str> {
        if self.method.parallel().is_some() {
            return Some("its query attends to parallel documents with a temperature and a scale of their own");
        }
        if self.chunks.iter().any(|chunk| chunk.around.is_some()) {
            return Some("rows of an adapter stand around its documents, and have no token ids");
        }
        if self.chunks.iter().any(|chunk| chunk.compress.is_some()) {
            return Some("its documents are compressed: layers and heads have different rows");
        }
        if self.drops() {
            return Some("it drops rows of the documents, and positions are left empty");
        }
        if self.evict.is_some() || self.look_ahead.is_some() {
            return Some("rows of its prompt are evicted");
        }
        if self.has_pictures() {
            return Some("rows of its pictures stand on three axes, and another program takes one position a row");
        }
        None
    }

    /// The prompt's token ids by position, with chunks in `order`.
    ///
    /// # Panics
    /// If the plan has rows without ids, or `order` does not hold every chunk once.
    pub fn placed_ids(&self, order: &[u32]) -> Vec<u32> {
        let (ids, places) = (self.all_ids(), self.places(order));
        assert_eq!(ids.len(), places.len(), "an id for every row");
        let mut placed = vec![0; ids.len()];
        ids.iter().zip(&places).for_each(|(&id, &place)| placed[place as usize] = id);
        placed
    }

    /// Whether the filled cache is that of a full prefill of the [placed ids](Self::placed_ids), up
    /// to rounding: a whole prefill computes them as they stand, in whatever order.
    pub fn is_exact_as_placed(&self) -> bool {
        self.is_exact() || self.method.prefill.is_whole()
    }

    /// The order of chunks in the filled cache, if it is known before the prompt is computed.
    pub fn final_order(&self) -> Option<Vec<u32>> {
        let is_decided_later = (self.reorders() || self.traces().is_some()) && self.order_for == OrderFor::All;
        (!is_decided_later).then(|| self.prompt_order())
    }
}
