//! Slices of a layer: rows between two control points.

/// Numbers of rows between two control points of a layer, at most on average; 0 for whole layers.
/// Slices of equal work have more rows where these see fewer keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Slices {
    /// In the pass that prefills chunks, whose rows see their chunk.
    pub chunk_rows: u32,
    /// In passes whose rows see the whole context.
    pub context_rows: u32,
}

impl Slices {
    /// Slices of this number of rows in every pass.
    pub fn of(rows: u32) -> Self {
        Self { chunk_rows: rows, context_rows: rows }
    }

    /// Number of slices with at most `most` rows each, of a layer with `rows` rows.
    pub(crate) fn count(most: u32, rows: usize) -> usize {
        if most == 0 { 1 } else { rows.div_ceil(most as usize).max(1) }
    }
}
