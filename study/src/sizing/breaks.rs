//! First limits of a deployment: the growth of load and documents, and the fall of the hit rate, up
//! to which the chosen groups meet the demand. Each edge is found by bisection; the other numbers
//! stay constant.

use schemars::JsonSchema;
use serde::Serialize;

use super::demand::Case;
use super::group::Group;
use super::queue;
use super::search::Choice;
use crate::error::Result;

/// Number that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Changing {
    /// More requests a second.
    RequestsPerSecond,
    /// More tokens of context: more documents a request.
    ContextTokens,
    /// A smaller share of warm chunks.
    HitRate,
    /// More documents that shall be kept.
    Documents,
}

/// Condition that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Broken {
    /// The time to first token under load.
    Slo,
    /// A rank has not the memory for a request.
    Memory,
    /// The ranks of a group do not hold all documents together with a request.
    DocumentMemory,
}

/// An edge: how far one number may go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Edge {
    /// The number.
    pub changing: Changing,
    /// Today's value.
    pub today: f64,
    /// The last value looked at with which everything holds.
    pub holds: f64,
    /// The next value, with which a condition fails, and that condition; none where all hold within
    /// the searched range.
    pub breaks: Option<(f64, Broken)>,
    /// The share of the time in which each group computes at the last value that holds.
    pub utilisation: f64,
}

impl Edge {
    /// Distance to it, as a share of today's value.
    pub fn distance(&self) -> f64 {
        match self.breaks {
            Some(_) => (self.holds / self.today - 1.0).abs(),
            None => f64::INFINITY,
        }
    }
}

/// Factor of today's length up to which lengths are searched.
const LENGTH_FACTOR: usize = 8;

/// The longest context that is looked at, in tokens.
const LONGEST: usize = 1 << 24;

/// Approximate number of steps of today's length.
const LENGTH_STEPS: usize = 64;

/// Steps of a hit rate.
const HIT_RATE_STEPS: f64 = 100.0;

/// A rate is beyond the edge by this share.
const RATE_STEP: f64 = 1e-3;

/// The edges of a deployment, the nearest first.
///
/// # Errors
/// Fails as [`Case::group`] does.
pub fn edges(case: &Case<'_>, tokens: usize, choice: &Choice) -> Result<Vec<Edge>> {
    let (context, hit_rate) = rayon::join(|| context(case, tokens, choice), || hit_rate(case, tokens, choice));
    let mut edges = vec![rate(case, choice), context?];
    edges.extend(hit_rate?);
    edges.extend(documents(case, choice));
    edges.sort_by(|a, b| a.distance().total_cmp(&b.distance()));
    Ok(edges)
}

fn utilisation(case: &Case<'_>, choice: &Choice, ttft_s: f64) -> f64 {
    queue::utilisation(ttft_s, case.demand.rate_per_s / choice.groups as f64)
}

/// Condition that fails with groups like this one in place of the chosen ones.
fn broken(case: &Case<'_>, choice: &Choice, group: &Group) -> Option<Broken> {
    match group.groups(&case.demand) {
        _ if !group.fits => Some(Broken::Memory),
        Some(groups) if groups <= choice.groups => None,
        _ => Some(Broken::Slo),
    }
}

/// A step that holds, with its group.
type Held = (usize, Group);

/// A step at which a condition fails, with that condition.
type Failed = (usize, Broken);

/// Narrows a step that holds and one that does not down to neighbours.
fn narrowed(
    (mut held, mut failed): (Held, Failed),
    at: impl Fn(usize) -> Result<(Group, Option<Broken>)>,
) -> Result<(Held, Failed)> {
    while failed.0.abs_diff(held.0) > 1 {
        let middle = held.0.midpoint(failed.0);
        match at(middle)? {
            (group, None) => held = (middle, group),
            (_, Some(broken)) => failed = (middle, broken),
        }
    }
    Ok((held, failed))
}

fn rate(case: &Case<'_>, choice: &Choice) -> Edge {
    let each_per_s = queue::capacity_per_s(choice.group.ttft_s, case.demand.slo_s);
    let holds = choice.groups as f64 * each_per_s;
    Edge {
        changing: Changing::RequestsPerSecond,
        today: case.demand.rate_per_s,
        holds,
        breaks: Some((holds * (1.0 + RATE_STEP), Broken::Slo)),
        utilisation: queue::utilisation(choice.group.ttft_s, each_per_s),
    }
}

fn context(case: &Case<'_>, tokens: usize, choice: &Choice) -> Result<Edge> {
    let document_tokens = case.demand.document_tokens;
    // Whole documents, where a context has many.
    let step = (tokens / LENGTH_STEPS / document_tokens * document_tokens).max(document_tokens.min(tokens)).max(1);
    let length = |index: usize| tokens + index * step;
    let at = |index: usize| -> Result<(Group, Option<Broken>)> {
        let group = case.group(choice.group.world, length(index), case.scenario.hit_rate)?;
        let broken = broken(case, choice, &group);
        Ok((group, broken))
    };
    let mut held = (0, choice.group.clone());
    let mut failed = None;
    let mut factor = 2;
    while failed.is_none() && factor <= LENGTH_FACTOR && factor * tokens <= LONGEST {
        let index = ((factor - 1) * tokens).div_ceil(step);
        match at(index)? {
            (group, None) => held = (index, group),
            (_, Some(broken)) => failed = Some((index, broken)),
        }
        factor *= 2;
    }
    if let Some(found) = failed {
        let (last, first) = narrowed((held, found), at)?;
        (held, failed) = (last, Some(first));
    }
    Ok(Edge {
        changing: Changing::ContextTokens,
        today: tokens as f64,
        holds: length(held.0) as f64,
        breaks: failed.map(|(index, broken)| (length(index) as f64, broken)),
        utilisation: utilisation(case, choice, held.1.ttft_s),
    })
}

/// Edge of the hit rate; none where no chunk is warm, or could be.
fn hit_rate(case: &Case<'_>, tokens: usize, choice: &Choice) -> Result<Option<Edge>> {
    let today = case.scenario.hit_rate;
    if today <= 0.0 || choice.group.held_documents.is_none() {
        return Ok(None);
    }
    let share = |index: usize| (index as f64 / HIT_RATE_STEPS).min(today);
    let at = |index: usize| -> Result<(Group, Option<Broken>)> {
        let group = case.group(choice.group.world, tokens, share(index))?;
        let broken = broken(case, choice, &group);
        Ok((group, broken))
    };
    let all = (today * HIT_RATE_STEPS).ceil() as usize;
    let (cold, found) = at(0)?;
    let (held, failed) = match found {
        None => ((0, cold), None),
        Some(broken) => {
            let (held, failed) = narrowed(((all, choice.group.clone()), (0, broken)), at)?;
            (held, Some(failed))
        }
    };
    Ok(Some(Edge {
        changing: Changing::HitRate,
        today,
        holds: share(held.0),
        breaks: failed.map(|(index, broken)| (share(index), broken)),
        utilisation: utilisation(case, choice, held.1.ttft_s),
    }))
}

/// Edge of the number of documents that the ranks of a group hold; none where they do not hold all,
/// or have no use for them.
fn documents(case: &Case<'_>, choice: &Choice) -> Option<Edge> {
    let (today, held) = (case.demand.documents, choice.group.held_documents?);
    (today > 0 && held >= today).then(|| Edge {
        changing: Changing::Documents,
        today: today as f64,
        holds: held as f64,
        breaks: Some((held as f64 + 1.0, Broken::DocumentMemory)),
        utilisation: utilisation(case, choice, choice.group.ttft_s),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::kit::{H100X8, LLAMA, chosen};

    /// Whether the chosen groups still meet the demand once one number has changed.
    fn do_it(case: &Case<'_>, tokens: usize, choice: &Choice) -> bool {
        let group = case.group(choice.group.world, tokens, case.scenario.hit_rate).unwrap();
        broken(case, choice, &group).is_none()
    }

    #[test]
    fn edges_are_where_it_breaks() {
        let mut anything = Vec::new();
        for (method, tokens, rate) in [("infoflow", 131_072, 4.0), ("ring", 32_768, 1.5), ("infoflow", 10_000, 1.5)] {
            let made = chosen(method, tokens, rate, 0.8);
            let (case, choice) = (made.case(), made.choice.clone());
            let found = edges(&case, tokens, &choice).unwrap();
            assert!(found.is_sorted_by(|a, b| a.distance() <= b.distance()), "{found:?}");
            assert!(found.iter().all(|edge| edge.utilisation < 1.0), "{found:?}");
            let mut seen = Vec::new();
            for edge in &found {
                let Some((fails, _)) = edge.breaks else { continue };
                seen.push(edge.changing);
                for (value, holds) in [(edge.holds, true), (fails, false)] {
                    let (mut case, mut tokens) = (case, tokens);
                    let mut scenario = case.scenario.clone();
                    match edge.changing {
                        Changing::RequestsPerSecond => case.demand.rate_per_s = value,
                        Changing::ContextTokens => tokens = value as usize,
                        Changing::HitRate => scenario.hit_rate = value,
                        Changing::Documents => {
                            assert_eq!(choice.group.held_documents.unwrap() >= value as usize, holds);
                            continue;
                        }
                    }
                    case.scenario = &scenario;
                    assert_eq!(do_it(&case, tokens, &choice), holds, "{method}: {:?} of {value}", edge.changing);
                }
            }
            assert!(seen.contains(&Changing::RequestsPerSecond) && seen.contains(&Changing::ContextTokens), "{seen:?}");
            let has_rate = found.iter().any(|edge| edge.changing == Changing::HitRate);
            assert_eq!(has_rate, method == "infoflow", "{found:?}");
            anything.extend(seen);
        }
        assert!(anything.contains(&Changing::HitRate) && anything.contains(&Changing::Documents), "{anything:?}");
    }

    #[test]
    fn memory_breaks_where_nothing_else_does() {
        let mut made = chosen("ring", 65_536, 1.0, 0.0);
        made.demand.slo_s = 4000.0;
        made.demand.rate_per_s = 1e-6;
        let case = made.case();
        let choice = Choice { group: case.group(2, 131_072, 0.0).unwrap(), groups: 1 };
        let found = context(&case, 131_072, &choice).unwrap();
        let (tokens, broken) = found.breaks.unwrap();
        assert_eq!(broken, Broken::Memory);
        let needed = |tokens: f64| case.group(2, tokens as usize, 0.0).unwrap().memory.needed_bytes();
        assert!(needed(found.holds) <= H100X8.rank.memory_bytes && needed(tokens) > H100X8.rank.memory_bytes);
        assert!(LLAMA.weight_bytes < needed(found.holds));
    }
}
