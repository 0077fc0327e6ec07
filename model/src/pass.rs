//! Passes of rows through the layers of a model.

use std::ops::Range;

use tributary_kernels::Partial;

use crate::error::{Error, Result};
use crate::{Attention, Model, Progress, Qkv, Rows, slices};

/// Passes of rows through the layers. A pass fails with the error type of its attention.
impl dyn Model + '_ {
    /// First half of a layer for all rows.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn qkv(&self, layer: usize, rows: &Rows) -> Result<Qkv> {
        self.qkv_of_last(layer, rows, rows.len())
    }

    /// First half of a layer in slices: keys and values of all rows, queries of the last `queries`.
    ///
    /// # Errors
    /// Returns an error if there are more queries than rows, or if a candle operation fails.
    pub fn qkv_in_slices(&self, layer: usize, rows: &Rows, queries: usize) -> Result<Qkv> {
        slices::qkv_of_last(self, layer, rows, queries, &Progress::default())
    }

    /// Second half of a layer in slices.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn finish_in_slices(&self, layer: usize, rows: Rows, attended: Partial) -> Result<Rows> {
        slices::finish(self, layer, (rows, attended), &Progress::default())
    }

    /// One layer.
    ///
    /// # Errors
    /// Returns an error if the attention or a candle operation fails.
    pub fn layer<E: From<Error>>(
        &self,
        layer: usize,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<Rows, E> {
        let progress = attention.progress().clone();
        let asked = rows.len();
        progress.layer(layer, || slices::layer(self, layer, rows, asked, attention))
    }

    /// The layers of `range`, one after the other.
    ///
    /// # Errors
    /// As `layer`.
    pub fn layers<E: From<Error>>(
        &self,
        range: Range<usize>,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<Rows, E> {
        range.into_iter().try_fold(rows, |rows, layer| self.layer(layer, rows, attention))
    }

    /// Layers up to the attention of `last`, for its measurements; the output is dropped.
    ///
    /// # Errors
    /// As `layer`.
    pub fn up_to_attention<E: From<Error>>(
        &self,
        last: usize,
        rows: Rows,
        attention: &mut dyn Attention<Error = E>,
    ) -> Result<(), E> {
        let rows = self.layers(0..last, rows, attention)?;
        let progress = attention.progress().clone();
        progress.layer(last, || {
            let qkv = self.qkv_in_slices(last, &rows, rows.len())?;
            attention.attend(last, qkv).map(drop)
        })
    }

    /// All layers of a prompt. Every row leaves its keys and values. Of the last layer's output,
    /// only the rows that [`Attention::last_layer`] names are computed and returned.
    ///
    /// # Errors
    /// As `layer`.
    pub fn prompt<E: From<Error>>(&self, rows: Rows, attention: &mut dyn Attention<Error = E>) -> Result<Rows, E> {
        let last = self.config().layers - 1;
        let rows = self.layers(0..last, rows, attention)?;
        let progress = attention.progress().clone();
        progress.layer(last, || {
            let asked = attention.last_layer(rows.len());
            slices::layer(self, last, rows, asked, attention)
        })
    }
}
