//! A method in a plan: the method, and the data that its options and the model resolve to.

use std::mem::discriminant;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::family::Family;
use crate::method::{InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::{MethodOption, Options, Usual};
use crate::options::REQUEST;
use crate::prefill::{AuxiliaryReading, Evidence, Prefill, Selection};
use crate::selector::Selector;
use crate::terms::{Anchors, Ape, Drift, Excerpt, PictureRows, SamKv};

/// A method with its data for planner and ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PlannedMethod {
    /// The method; messages carry its name.
    #[serde(serialize_with = "name_of", deserialize_with = "method_of")]
    pub method: &'static Method,
    /// Data of its prefill.
    pub prefill: Prefill,
}

fn name_of<S: Serializer>(method: &&'static Method, serializer: S) -> Result<S::Ok, S::Error> {
    method.name.serialize(serializer)
}

fn method_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static Method, D::Error> {
    let name = String::deserialize(deserializer)?;
    Method::find(&name).ok_or_else(|| D::Error::custom("an unknown method"))
}

impl PlannedMethod {
    /// A method with its options, for a model.
    ///
    /// The returned options include every default of the method's own options, those that follow
    /// from the model too.
    ///
    /// # Errors
    /// Returns an error if the model does not allow an option.
    pub fn new(
        method: &'static Method,
        mut options: Options,
        model: ModelFacts,
    ) -> Result<(Self, Options), InvalidOption> {
        let of_method = |wrong: InvalidOption| {
            let option = if wrong.found.is_empty() { String::new() } else { format!(":{}", wrong.found) };
            InvalidOption { found: format!("{}{option}", method.name), ..wrong }
        };
        let prefill = (method.prefill)(&mut options, model).map_err(of_method)?;
        for option in method.options.iter().filter(|option| !REQUEST.contains(option)) {
            if let Usual::Value(value) = option.usual {
                options.set_default(option, value);
            }
        }
        let order: Vec<_> = method.all_options().collect();
        options.sort_by(&order);
        Ok((Self { method, prefill }, options))
    }

    /// Whether its data is of the kind that its method resolves to. A plan from elsewhere may claim
    /// otherwise.
    pub fn is_consistent(&self, model: ModelFacts) -> bool {
        let usual = (self.method.prefill)(&mut Options::default(), model).ok();
        let kind = |prefill: Prefill| match prefill {
            Prefill::Chunks(selection) | Prefill::Selected(selection) => {
                (discriminant(&prefill), Some(discriminant(&selection)))
            }
            _ => (discriminant(&prefill), None),
        };
        // Defaults do not resolve if the model has too few layers; the plan has been refused
        // before.
        usual.is_none_or(|usual| kind(usual) == kind(self.prefill))
    }

    /// Selection of the context rows that it computes at their places, if it selects some.
    pub fn selection(&self) -> Option<Selection> {
        match self.prefill {
            Prefill::Chunks(selection) | Prefill::Selected(selection) => Some(selection),
            Prefill::Whole { .. }
            | Prefill::Ring
            | Prefill::Gathered { .. }
            | Prefill::Queries
            | Prefill::Anchored { .. } => None,
        }
    }

    /// Its selector, if it selects rows of the context.
    pub fn selector(&self) -> Option<Box<dyn Selector>> {
        Some((self.method.selector?)(self.selection()?))
    }

    /// The measurements before its selection, if it probes the query.
    pub fn evidence(&self) -> Option<Evidence> {
        match self.selection() {
            Some(Selection::Evidence(evidence)) => Some(evidence),
            _ => None,
        }
    }

    /// The measurement of rows' drift before its selection, if it has one.
    pub fn drift(&self) -> Option<Drift> {
        match self.selection() {
            Some(Selection::Drift(drift)) => Some(drift),
            _ => None,
        }
    }

    /// Sizes of the kept parts of every document, if the rest is dropped.
    pub fn sparse(&self) -> Option<SamKv> {
        self.evidence().and_then(|evidence| evidence.sparse)
    }

    /// Rows that stand for chunks while the query ranks them, if it does.
    pub fn anchors(&self) -> Option<Anchors> {
        self.evidence().and_then(|evidence| evidence.anchors)
    }

    /// Treatment of the rows of pictures.
    pub fn picture_rows(&self) -> PictureRows {
        self.evidence().map_or(PictureRows::All, |evidence| evidence.picture_rows)
    }

    /// Whether the selected rows see each other alone, and the query sees them alone.
    pub fn excerpts(&self) -> bool {
        matches!(self.prefill, Prefill::Selected(_)) || self.excerpt().is_some()
    }

    /// What is taken whole, if it selects sentences or chunks.
    pub fn excerpt(&self) -> Option<Excerpt> {
        self.evidence().and_then(|evidence| evidence.excerpt)
    }

    /// What an auxiliary model reads for it, if one does.
    pub fn auxiliary_reading(&self) -> Option<AuxiliaryReading> {
        match self.selection() {
            Some(Selection::Auxiliary(reading)) => Some(reading),
            _ => None,
        }
    }

    /// The query's attention to parallel contexts, if contexts are parallel.
    pub fn parallel(&self) -> Option<Ape> {
        match self.selection() {
            Some(Selection::Parallel(ape)) => Some(ape),
            _ => None,
        }
    }

    /// Name on the command line and in reports.
    pub fn name(&self) -> &'static str {
        self.method.name
    }

    /// Whether the result equals a full prefill up to rounding.
    pub fn is_exact(&self) -> bool {
        self.method.is_exact()
    }

    /// Whether it prefills chunk by chunk, so that chunks can be kept for later requests.
    pub fn in_chunks(&self) -> bool {
        matches!(self.prefill, Prefill::Chunks(_))
    }

    /// Whether it selects rows of the context, which ranks compute together.
    pub fn selects(&self) -> bool {
        self.selection().is_some()
    }

    /// Whether it reuses the longest cached prefix of a prompt.
    pub fn reuses_prefix(&self) -> bool {
        matches!(self.prefill, Prefill::Whole { reuses_prefix: true, .. })
    }

    /// Whether chunks come in the order in which most of the prompt's prefix is cached.
    pub fn orders_chunks(&self) -> bool {
        matches!(self.prefill, Prefill::Whole { orders_chunks: true, .. })
    }

    /// Whether it takes rows from the chunk cache, and keeps some there.
    pub fn reuses(&self) -> bool {
        self.in_chunks() || self.reuses_prefix()
    }

    /// Whether the method takes an option.
    pub fn takes(&self, option: &MethodOption) -> bool {
        self.method.takes(option)
    }

    /// Whether selection probes the query.
    pub fn probes_query(&self) -> bool {
        self.evidence().is_some()
    }

    /// The family that it belongs to.
    pub fn family(&self) -> Family {
        Family::of(self.is_exact(), self.prefill)
    }
}
