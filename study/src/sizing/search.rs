//! The fewest GPUs: which number of ranks a group has.
//!
//! Groups of 1, 2, 4, .. ranks and of all ranks of the machine are tried, the largest first. A
//! group between two of them is assumed to be no faster than the faster of both, and to have the
//! memory only if one of them has. A range is skipped if even that would need more GPUs than the
//! best so far, and halved otherwise.

use std::collections::BTreeMap;

use super::demand::Case;
use super::group::Group;
use super::queue;
use crate::charts::ranks;
use crate::error::Result;

/// A deployment that meets the demand.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Each group.
    pub group: Group,
    /// Number of groups, among which requests are divided at random.
    pub groups: usize,
}

impl Choice {
    /// GPUs of all groups.
    pub fn gpus(&self) -> usize {
        self.groups.saturating_mul(self.group.world)
    }

    /// Fewer GPUs first, then the shorter time to first token.
    pub fn is_better_than(&self, other: &Self) -> bool {
        let by = |choice: &Self| (choice.gpus(), choice.group.ttft_s);
        by(self) < by(other)
    }
}

/// Reason why no number of groups meets the demand.
#[derive(Debug, Clone, PartialEq)]
pub enum Miss {
    /// The fastest group that has the memory is too slow for a single request.
    Slow(Group),
    /// No group has the memory; this is the one that lacks the least.
    Large(Group),
}

impl Miss {
    /// The same in words.
    pub fn why(&self, slo_s: f64) -> String {
        match self {
            Miss::Slow(group) => {
                let (ttft_ms, slo_ms) = (1e3 * group.ttft_s, 1e3 * slo_s);
                format!(
                    "too slow: {ttft_ms:.0} ms on {} ranks for one request alone, {slo_ms:.0} asked for",
                    group.world
                )
            }
            Miss::Large(group) => {
                let [needed_gb, has_gb] =
                    [group.memory.needed_bytes(), group.memory.has_bytes].map(|bytes| bytes as f64 / 1e9);
                format!("too large: {needed_gb:.1} of {has_gb:.1} GB a rank on {}", ranks(group.world))
            }
        }
    }
}

/// Groups that were looked at, by their number of ranks.
pub type Known = BTreeMap<usize, Group>;

/// Examined groups of one case at one length.
#[derive(Debug, Clone)]
pub struct Search<'a> {
    case: Case<'a>,
    tokens: usize,
    known: Known,
}

impl<'a> Search<'a> {
    /// A search that has looked at nothing yet.
    pub fn new(case: Case<'a>, tokens: usize) -> Self {
        Self::knowing(case, tokens, Known::new())
    }

    /// A search that continues with the examined groups of another one of the same case, for any
    /// rate.
    pub fn knowing(case: Case<'a>, tokens: usize, known: Known) -> Self {
        Self { case, tokens, known }
    }

    /// The groups that were looked at.
    pub fn known(self) -> Known {
        self.known
    }

    /// The same for another rate; examined groups stay known.
    pub fn set_rate(&mut self, rate_per_s: f64) {
        self.case.demand.rate_per_s = rate_per_s;
    }

    /// The fewest GPUs, or why there are none.
    ///
    /// # Errors
    /// Fails as [`Case::group`] does.
    pub fn smallest(&mut self) -> Result<std::result::Result<Choice, Miss>> {
        let mut best = None;
        let anchors = self.anchors(&mut best)?;
        for pair in anchors.windows(2) {
            self.between(pair[1], pair[0], &mut best)?;
        }
        Ok(best.ok_or_else(|| self.miss()))
    }

    /// Tries groups of powers of two ranks and of all ranks, the largest first, until smaller ones
    /// can only be slower than one that is already too slow. Gives their numbers of ranks,
    /// descending.
    fn anchors(&mut self, best: &mut Option<Choice>) -> Result<Vec<usize>> {
        let ranks = self.case.profile.ranks;
        let powers = (0..usize::BITS - ranks.leading_zeros()).rev().map(|power| 1 << power);
        let mut anchors: Vec<usize> = Vec::new();
        let mut above_s = f64::INFINITY;
        for world in std::iter::once(ranks).chain(powers.filter(|&power| power < ranks)) {
            self.look(world, best)?;
            anchors.push(world);
            let ttft_s = self.known[&world].ttft_s;
            if ttft_s > self.case.demand.slo_s && ttft_s > above_s {
                break;
            }
            above_s = ttft_s;
        }
        Ok(anchors)
    }

    /// Looks between two groups that were looked at.
    fn between(&mut self, fewer: usize, more: usize, best: &mut Option<Choice>) -> Result<()> {
        let (few, many) = (&self.known[&fewer], &self.known[&more]);
        let demand = &self.case.demand;
        let fastest_s = few.ttft_s.min(many.ttft_s);
        let Some(groups) = queue::groups(fastest_s, demand.slo_s, demand.rate_per_s) else { return Ok(()) };
        let is_beaten = best.as_ref().is_some_and(|best| groups.saturating_mul(fewer + 1) > best.gpus());
        if more - fewer < 2 || is_beaten || !(few.fits || many.fits) {
            return Ok(());
        }
        let middle = fewer.midpoint(more);
        self.look(middle, best)?;
        self.between(fewer, middle, best)?;
        self.between(middle, more, best)
    }

    fn look(&mut self, world: usize, best: &mut Option<Choice>) -> Result<()> {
        if !self.known.contains_key(&world) {
            let group = self.case.group(world, self.tokens, self.case.scenario.hit_rate)?;
            self.known.insert(world, group);
        }
        let group = &self.known[&world];
        if let Some(groups) = group.groups(&self.case.demand) {
            let choice = Choice { group: group.clone(), groups };
            if best.as_ref().is_none_or(|best| choice.is_better_than(best)) {
                *best = Some(choice);
            }
        }
        Ok(())
    }

    fn miss(&self) -> Miss {
        let fastest = self.known.values().filter(|group| group.fits);
        match fastest.min_by(|a, b| a.ttft_s.total_cmp(&b.ttft_s)) {
            Some(group) => Miss::Slow(group.clone()),
            None => {
                let least = self.known.values().min_by_key(|group| group.memory.needed_bytes());
                Miss::Large(least.expect("at least one group is looked at").clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::kit::{H100X8, LLAMA, demand, scenario};

    fn case(scenario: &tributary_planner::outlook::Scenario, rate_per_s: f64) -> Case<'_> {
        Case { scenario, shape: &LLAMA, profile: &H100X8, demand: demand(rate_per_s) }
    }

    /// The best of all groups, each looked at.
    fn best_of_all(case: Case<'_>, tokens: usize) -> Option<Choice> {
        let mut best: Option<Choice> = None;
        for world in 1..=case.profile.ranks {
            let group = case.group(world, tokens, case.scenario.hit_rate).unwrap();
            let choice = group.groups(&case.demand).map(|groups| Choice { group, groups });
            best = match (best, choice) {
                (Some(best), Some(choice)) if !choice.is_better_than(&best) => Some(best),
                (best, choice) => choice.or(best),
            };
        }
        best
    }

    #[test]
    fn the_search_finds_what_looking_everywhere_finds() {
        for method in ["full", "ring", "all-gather", "infoflow", "relay"] {
            let scenario = scenario(method, 0.8);
            for tokens in [5000, 16_384, 100_000] {
                for rate in [0.01, 0.3, 2.0, 40.0] {
                    let case = case(&scenario, rate);
                    let found = Search::new(case, tokens).smallest().unwrap().ok();
                    let all = best_of_all(case, tokens);
                    let gpus = |choice: &Option<Choice>| choice.as_ref().map(Choice::gpus);
                    assert_eq!(gpus(&found), gpus(&all), "{method}, {tokens} tokens, {rate} a second");
                }
            }
        }
    }

    #[test]
    fn more_load_never_needs_fewer_gpus_and_a_looser_slo_never_more() {
        let scenario = scenario("infoflow", 0.8);
        let gpus = |rate: f64, slo_s: f64| {
            let mut case = case(&scenario, rate);
            case.demand.slo_s = slo_s;
            Search::new(case, 65_536).smallest().unwrap().map_or(usize::MAX, |choice| choice.gpus())
        };
        let mut last = 0;
        for rate in [0.01, 0.1, 0.5, 1.0, 1.1, 3.0, 10.0, 64.0, 500.0] {
            let now = gpus(rate, 1.0);
            assert!(now >= last, "{rate} a second: {now} after {last}");
            last = now;
        }
        let mut last = usize::MAX;
        for slo_s in [0.01, 0.3, 0.5, 0.7, 1.0, 2.0, 10.0] {
            let now = gpus(4.0, slo_s);
            assert!(now <= last, "within {slo_s} s: {now} after {last}");
            last = now;
        }
    }

    #[test]
    fn what_cannot_be_met_says_why() {
        let slow = scenario("ring", 0.0);
        let found = Search::new(case(&slow, 1.0), 1 << 19).smallest().unwrap();
        let Err(Miss::Slow(group)) = found else { panic!("{found:?}") };
        assert!(group.ttft_s > 1.0 && group.fits);
        let mut large = case(&slow, 1.0);
        large.demand.slo_s = 80_000.0;
        let found = Search::new(large, 1 << 22).smallest().unwrap();
        let Err(Miss::Large(group)) = found else { panic!("{found:?}") };
        assert!(!group.fits && group.memory.needed_bytes() > group.memory.has_bytes);
    }
}
