//! Further weights of ranks, besides those of the main model: small models, and adapters.

use std::sync::Arc;

use tributary_model::{Adapters, Model};
use tributary_worker::Models;

use crate::auxiliary::AuxiliaryModel;
use crate::error::Result;
use crate::model::ModelFolder;

/// Small models and adapters, as the ranks of a process have them.
#[derive(Clone, Default)]
pub struct Beside {
    auxiliary: Vec<AuxiliaryModel>,
    /// The same adapters for every copy of the weights, on its device; none where there is no
    /// adapter.
    adapters: Arc<[Adapters]>,
}

impl Beside {
    /// The small models, and the adapters of a folder beside each copy of its weights.
    ///
    /// # Errors
    /// Returns an error if an operation on a device fails.
    pub(crate) fn new(auxiliary: Vec<AuxiliaryModel>, folder: &ModelFolder, copies: &[Arc<dyn Model>]) -> Result<Self> {
        let adapters = copies.iter().map(|copy| folder.adapters_on(copy.device())).collect::<Result<_>>()?;
        Ok(Self { auxiliary, adapters })
    }

    /// Small models, and for each copy of the weights its adapters.
    pub fn of_parts(auxiliary: Vec<AuxiliaryModel>, adapters: impl IntoIterator<Item = Adapters>) -> Self {
        Self { auxiliary, adapters: adapters.into_iter().collect() }
    }

    /// The models of a rank that computes with this copy of the weights, the one of this number.
    pub(crate) fn of<'a>(&'a self, main: &'a dyn Model, copy: usize) -> Models<'a> {
        let models = Models::from(main).with_adapters(self.adapters.get(copy).cloned().unwrap_or_default());
        self.auxiliary.iter().fold(models, |models, model| model.added(models))
    }
}
