//! Demand on a deployment, and the case under consideration: a method on a machine.

use tributary_planner::ModelShape;
use tributary_planner::forecast::Profile;
use tributary_planner::outlook::Scenario;

/// Demand on a deployment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// Seconds within which 95 % of the requests shall have their first token.
    pub slo_s: f64,
    /// Requests a second, of all groups together.
    pub rate_per_s: f64,
    /// Tokens of a document, each of which is a chunk.
    pub document_tokens: usize,
    /// Documents that shall be kept for requests to come.
    pub documents: usize,
}

impl Demand {
    /// Bytes of a document's keys and values.
    pub fn document_bytes(&self, shape: &ModelShape) -> u64 {
        self.document_tokens as u64 * shape.kv_bytes()
    }
}

/// A method with its hit rate, on a machine.
#[derive(Debug, Clone, Copy)]
pub struct Case<'a> {
    /// Method and request; its world is passed over.
    pub scenario: &'a Scenario,
    /// The model.
    pub shape: &'a ModelShape,
    /// The machine.
    pub profile: &'a Profile,
    /// Demand on the deployment.
    pub demand: Demand,
}
