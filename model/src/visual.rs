//! Rows of pictures among the rows of a decoder: each gets a level after each of the first layers
//! (DeepStack; Meng et al. 2024, "DeepStack", section 3). Rows carry their levels with them, so
//! that no pass can leave them out.

use std::sync::Arc;

use candle_core::Tensor;
use tributary_kernels::{add, cast, gather, join};

use crate::error::Result;

/// A row of a picture among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PictureRow {
    /// Its place among these rows.
    pub place: u32,
    /// Its row in the features.
    pub feature: u32,
}

/// Those of some rows that are of pictures, and the levels that are added to them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Visual {
    /// In the order of their places.
    rows: Arc<[PictureRow]>,
    /// One `[features, hidden]` for each of the first layers.
    levels: Arc<[Tensor]>,
}

impl Visual {
    /// The rows of pictures, at rising places, with the levels `[features, hidden]` of their
    /// features.
    ///
    /// # Panics
    /// If places do not rise: only a bug can cause that.
    pub fn new(rows: impl Into<Arc<[PictureRow]>>, levels: impl Into<Arc<[Tensor]>>) -> Self {
        let rows: Arc<[PictureRow]> = rows.into();
        assert!(rows.is_sorted_by(|one, next| one.place < next.place), "places of rows of pictures rise");
        Self { rows, levels: levels.into() }
    }

    /// The place after the last of these rows.
    pub(super) fn end(&self) -> usize {
        self.rows.last().map_or(0, |row| row.place as usize + 1)
    }

    /// Those of the rows at `places`, in that order, if there are some.
    pub(super) fn select(&self, places: &[u32]) -> Option<Self> {
        let find = |(place, from): (usize, &u32)| {
            let found = self.rows.binary_search_by_key(from, |row| row.place).ok()?;
            Some(PictureRow { place: place as u32, feature: self.rows[found].feature })
        };
        self.of(places.iter().enumerate().filter_map(find).collect())
    }

    /// Those of `count` rows from `from` on, if there are some.
    pub(super) fn within(&self, from: usize, count: usize) -> Option<Self> {
        let before = |bound: usize| self.rows.partition_point(|row| (row.place as usize) < bound);
        let moved = |row: &PictureRow| PictureRow { place: row.place - from as u32, ..*row };
        self.of(self.rows[before(from)..before(from + count)].iter().map(moved).collect())
    }

    fn of(&self, rows: Arc<[PictureRow]>) -> Option<Self> {
        (!rows.is_empty()).then(|| Self { rows, levels: Arc::clone(&self.levels) })
    }

    /// The rows `hidden` `[rows, hidden]` after a layer with its level added, if it has one.
    pub(super) fn add(&self, layer: usize, hidden: Tensor) -> Result<Tensor> {
        let Some(level) = self.levels.get(layer).filter(|_| !self.rows.is_empty()) else { return Ok(hidden) };
        let features: Vec<u32> = self.rows.iter().map(|row| row.feature).collect();
        let added = cast(&gather(level, &features)?, hidden.dtype())?;
        if self.rows.len() == hidden.dim(0)? {
            return Ok(add(&hidden, &added)?);
        }
        // One row of nothing, for the rows of text.
        let nothing = Tensor::zeros((1, hidden.dim(1)?), hidden.dtype(), hidden.device())?;
        let mut from = vec![0; hidden.dim(0)?];
        for (index, row) in self.rows.iter().enumerate() {
            from[row.place as usize] = index as u32 + 1;
        }
        Ok(add(&hidden, &gather(&join(&[&nothing, &added], 0)?, &from)?)?)
    }
}
