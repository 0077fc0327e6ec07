//! What breaks first: the pace of the trace up to which a deployment keeps up, and the condition
//! that fails beyond it.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_load::{TraceRequest, search};

use super::group::Outcome;
use super::replay::{Replayed, replay};
use super::service::Service;
use crate::error::Result;

/// Without a bound, waiting may at most double the 95th percentile of the time to first token.
const FACTOR: f64 = 2.0;

/// Share of the groups' time at which the search begins.
const BUSY: f64 = 0.8;

/// Condition that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The 95th percentile of the time to first token is beyond its bound: the one that was asked
    /// for, or twice that of requests without their wait.
    TimeToFirstToken,
    /// A request found the queue full.
    Queue,
}

/// The pace up to which everything holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Edge {
    /// The fastest tried pace at which everything holds, as a multiple of the replay's; absent if
    /// everything that was tried fails.
    pub holds: Option<f64>,
    /// The slowest tried pace at which a condition fails; absent where none does.
    pub breaks: Option<f64>,
    /// That condition.
    pub broken: Option<Limit>,
    /// Share of the groups' time in prefills at the pace that holds.
    pub prefill: Option<f64>,
    /// Share in steps of decoding.
    pub decode: Option<f64>,
}

/// Condition that fails in a replay.
pub fn broken(replayed: &Replayed, slo_s: Option<f64>) -> Option<Limit> {
    if replayed.count(Outcome::QueueFull) > 0 {
        return Some(Limit::Queue);
    }
    let (loaded_s, alone_s) = replayed.loaded_and_alone_s(0.95)?;
    (loaded_s > slo_s.unwrap_or(FACTOR * alone_s)).then_some(Limit::TimeToFirstToken)
}

/// Looks for the pace at which a condition fails, from the busy share of a replay on.
///
/// # Errors
/// Fails as [`replay`] does.
pub fn edge(
    service: &Service,
    requests: &[TraceRequest],
    (groups, speed): (usize, f64),
    slo_s: Option<f64>,
    replayed: &Replayed,
) -> Result<Option<Edge>> {
    let (prefill, decode) = replayed.busy();
    if replayed.answered().next().is_none() || prefill + decode <= 0.0 {
        return Ok(None);
    }
    let mut edge = Edge { holds: None, breaks: None, broken: None, prefill: None, decode: None };
    let breaks = |pace: f64| -> Result<bool> {
        let replayed = replay(service, requests, (groups, speed * pace))?;
        let broken = broken(&replayed, slo_s);
        if broken.is_some() {
            edge = Edge { breaks: Some(pace), broken, ..edge };
        } else {
            let (prefill, decode) = replayed.busy();
            edge = Edge { holds: Some(pace), prefill: Some(prefill), decode: Some(decode), ..edge };
        }
        Ok(broken.is_some())
    };
    search(BUSY / (prefill + decode), breaks)?;
    Ok(Some(edge))
}
