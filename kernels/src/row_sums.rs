//! Attention of query rows to keys, summed over calls: over layers, and over calls with other
//! positions.

use candle_core::Tensor;

use crate::attend::reads_on_host;
use crate::error::{Result, expect};
use crate::{Kernels, Keys, Positions, Readings, Rope, add, cpu, cuda};

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
    #[allow(clippy::too_many_arguments)]
    pub fn add(
        &mut self,
        kernels: Kernels,
        q: &Tensor,
        at_q: &Positions,
        keys: &[Keys],
        rope: Option<&Rope>,
        scale: f32,
        lse: &Tensor,
    ) -> Result<()> {
        expect("row_sums", "query rows", self.queries, at_q.len())?;
        expect("row_sums", "keys", self.keys, keys.iter().map(|block| block.at.len()).sum())?;
        if reads_on_host(kernels, q, at_q, keys, lse)? {
            self.host.resize(self.queries * self.keys, 0.0);
            return cpu::add_row_readings(q, at_q, keys, rope, scale, lse, &mut self.host);
        }
        let read = kernels.readings(q, at_q, keys, rope, scale, lse, Readings::PerRow)?;
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
