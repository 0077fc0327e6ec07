//! Attention of query rows to keys, summed over calls: over layers, and over calls with other
//! positions.

use candle_core::Tensor;

use crate::error::{Result, expect};
use crate::{Kernels, Query, Readings, add, cpu, cuda};

/// Sums of each query row's attention to each key, the mean over the heads. On a CPU calls add to
/// them in place, so that they are in memory once.
#[derive(Debug)]
pub struct RowSums {
    queries: usize,
    keys: usize,
    /// `[queries, keys]`, of calls on a CPU; empty before the first.
    host: Vec<f32>,
    /// `[queries, keys]` f32, of other calls.
    tensor: Option<Tensor>,
}

impl RowSums {
    /// Empty sums of `queries` query rows and `keys` keys.
    pub fn new(queries: usize, keys: usize) -> Self {
        Self { queries, keys, host: Vec::new(), tensor: None }
    }

    /// Keys of each row.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Adds the readings of [`Kernels::readings`] by query row.
    ///
    /// # Errors
    /// Returns an error if shapes do not fit, or if the numbers of rows or keys differ.
    pub fn add(&mut self, kernels: Kernels, query: &Query<'_>, lse: &Tensor) -> Result<()> {
        expect("row_sums", "query rows", self.queries, query.at.len())?;
        expect("row_sums", "keys", self.keys, query.key_count())?;
        query.check_with("readings", lse)?;
        if kernels == Kernels::Auto && !query.is_apart() && cpu::reads(query, lse) {
            self.host.resize(self.queries * self.keys, 0.0);
            return cpu::add_row_readings(query, lse, &mut self.host);
        }
        let read = kernels.readings(query, lse, Readings::PerRow)?;
        self.tensor = Some(match self.tensor.take() {
            Some(sums) => add(&sums, &read)?,
            None => read,
        });
        Ok(())
    }

    /// The sums, `[queries, keys]`; zeros where nothing was added.
    ///
    /// # Errors
    /// Returns an error if a candle operation fails.
    pub fn into_values(self) -> Result<Vec<f32>> {
        let mut values = self.host;
        values.resize(self.queries * self.keys, 0.0);
        if let Some(tensor) = self.tensor.filter(|tensor| tensor.elem_count() > 0) {
            let added = cuda::download(&tensor)?.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            values.iter_mut().zip(added).for_each(|(value, added)| *value += added);
        }
        Ok(values)
    }
}
