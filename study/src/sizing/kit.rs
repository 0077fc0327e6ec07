//! Cases for tests of sizing.

use std::sync::LazyLock;

use tributary_planner::forecast::Profile;
use tributary_planner::outlook::{PictureGrids, Scenario};
use tributary_planner::{ModelShape, RequestSettings};
use tributary_protocol::Method;

use super::demand::{Case, Demand};
use super::search::{Choice, Search};
use super::{Answer, Question};

/// Eight H100 on one host.
pub(crate) static H100X8: LazyLock<Profile> = LazyLock::new(|| Profile::by_name("h100x8").expect("a shipped profile"));

/// A model of 8 B parameters.
pub(crate) static LLAMA: LazyLock<ModelShape> =
    LazyLock::new(|| ModelShape::named("llama-3.1-8b").expect("a known shape"));

/// A method at a hit rate.
pub(crate) fn scenario(method: &str, hit_rate: f64) -> Scenario {
    let (name, method) = (method.to_owned(), Method::named(method).expect("a method"));
    let hit_rate = if method.in_chunks() { hit_rate } else { 0.0 };
    let settings = RequestSettings { method, max_tokens: 1, ..RequestSettings::default() };
    Scenario {
        method: name,
        settings,
        chunk_tokens: None,
        prefix_tokens: 1,
        lead_tokens: 0,
        query_tokens: 32,
        hit_rate,
        pictures: PictureGrids::default(),
        auxiliary: None,
    }
}

/// A demand of `rate_per_s` requests a second, the first token within a second, 100 documents of
/// 2048 tokens.
pub(crate) fn demand(rate_per_s: f64) -> Demand {
    Demand { slo_s: 1.0, rate_per_s, document_tokens: 2048, documents: 100 }
}

/// A case and the choice for it.
pub(crate) struct Chosen {
    scenario: Scenario,
    pub(crate) demand: Demand,
    pub(crate) choice: Choice,
}

impl Chosen {
    /// The case.
    pub(crate) fn case(&self) -> Case<'_> {
        Case { scenario: &self.scenario, shape: &LLAMA, profile: &H100X8, demand: self.demand }
    }
}

/// A case that can be met, on eight H100 for a model of 8 B parameters.
pub(crate) fn chosen(method: &str, tokens: usize, rate_per_s: f64, hit_rate: f64) -> Chosen {
    let (scenario, demand) = (scenario(method, hit_rate), demand(rate_per_s));
    let case = Case { scenario: &scenario, shape: &LLAMA, profile: &H100X8, demand };
    let choice = Search::new(case, tokens).smallest().expect("a forecast").expect("it can be met");
    Chosen { scenario, demand, choice }
}

/// The answer for 4 requests a second, four fifths of their chunks warm, over these methods and
/// lengths.
pub(crate) fn answer(methods: &[&str], lengths: &[usize]) -> Answer {
    let question = Question {
        model: "llama-3.1-8b".to_owned(),
        shape: *LLAMA,
        profiles: vec![H100X8.clone()],
        lengths: lengths.to_vec(),
        scenarios: methods.iter().map(|method| scenario(method, 0.8)).collect(),
        demand: demand(4.0),
    };
    Answer::new(question).expect("forecasts")
}
