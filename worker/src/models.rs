//! The models of a rank by name: the main one with its adapters, and auxiliary ones, which only
//! rank 0 runs.

use std::collections::BTreeMap;

use tributary_model::{Adapters, Config, Model, Rows, embed};
use tributary_protocol::Source;

use crate::error::Result;
use crate::gallery::Gallery;

/// The main model and the auxiliary models. Every rank knows the same names; at least rank 0 has
/// the weights.
#[derive(Clone)]
pub struct Models<'a> {
    /// The model that generates the answer.
    pub main: &'a dyn Model,
    /// Its adapters.
    pub adapters: Adapters,
    /// Features of the request's pictures.
    pub gallery: Gallery,
    auxiliary: BTreeMap<String, AuxiliaryModel<'a>>,
}

/// An auxiliary model, which runs beside the main one.
#[derive(Clone, Copy)]
enum AuxiliaryModel<'a> {
    /// This rank has its weights.
    Here(&'a dyn Model),
    /// Rank 0 has them.
    Elsewhere(&'a Config),
}

impl<'a> From<&'a dyn Model> for Models<'a> {
    fn from(main: &'a dyn Model) -> Self {
        Self { main, adapters: Adapters::default(), gallery: Gallery::default(), auxiliary: BTreeMap::new() }
    }
}

impl<'a> Models<'a> {
    /// These models with adapters of the main one: the same on every rank.
    #[must_use]
    pub fn with_adapters(self, adapters: Adapters) -> Self {
        Self { adapters, ..self }
    }

    /// Rows of the main model from their sources.
    ///
    /// # Errors
    /// Returns an error if a source is missing, or if a candle operation fails.
    pub fn embed(&self, sources: &[Source]) -> Result<Rows> {
        self.gallery.shown(self.main, embed(self.main, sources, &self.adapters)?, sources)
    }

    /// These models and another one, whose weights this rank has.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, model: &'a dyn Model) -> Self {
        self.auxiliary.insert(name.into(), AuxiliaryModel::Here(model));
        self
    }

    /// These models and another one, whose weights rank 0 has; this rank has its shape.
    #[must_use]
    pub fn with_elsewhere(mut self, name: impl Into<String>, config: &'a Config) -> Self {
        self.auxiliary.insert(name.into(), AuxiliaryModel::Elsewhere(config));
        self
    }

    /// The auxiliary model of this name, if this rank has its weights.
    pub fn auxiliary(&self, name: &str) -> Option<&'a dyn Model> {
        match self.auxiliary.get(name)? {
            AuxiliaryModel::Here(model) => Some(*model),
            AuxiliaryModel::Elsewhere(_) => None,
        }
    }

    /// The config of the auxiliary model of this name; absent if no rank has such a model.
    pub fn auxiliary_config(&self, name: &str) -> Option<&'a Config> {
        self.auxiliary.get(name).map(|model| match model {
            AuxiliaryModel::Here(model) => model.config(),
            AuxiliaryModel::Elsewhere(config) => config,
        })
    }
}
