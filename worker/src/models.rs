//! The models of a rank by name: the main one with its adapters, and auxiliary ones, which only
//! rank 0 runs.

use std::collections::BTreeMap;

use tributary_model::{Adapters, Config, Model};

/// The main model and the auxiliary models. Every rank knows the same names; at least rank 0 has
/// the weights.
#[derive(Clone)]
pub struct Models<'a> {
    /// The model that generates the answer.
    pub main: &'a dyn Model,
    /// Its adapters.
    pub adapters: Adapters,
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
        Self { main, adapters: Adapters::default(), auxiliary: BTreeMap::new() }
    }
}

impl<'a> Models<'a> {
    /// These models with adapters of the main one: the same on every rank.
    #[must_use]
    pub fn with_adapters(self, adapters: Adapters) -> Self {
        Self { adapters, ..self }
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
