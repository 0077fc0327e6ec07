//! Context length from which a selective method is faster than the best exact one.

use std::collections::BTreeMap;

use super::scenario::{Counts, Scenario};
use crate::forecast::Profile;
use crate::{ModelShape, Result};

/// Lengths are multiples of the world times this, with one chunk a rank.
const SMALLEST_CHUNK: usize = 256;

/// Times that differ by no more than this share are level.
pub const LEVEL: f64 = 0.1;

/// Length from which the selective method stays faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossover {
    /// It is faster at every tested length, of which this is the shortest.
    FromTheStart(usize),
    /// It is faster from this length on, and not one step below it.
    At(usize),
    /// It is not faster up to this length.
    NotUpTo(usize),
}

impl Crossover {
    /// The length, or the maximum number without one.
    fn length(self) -> usize {
        match self {
            Crossover::FromTheStart(tokens) | Crossover::At(tokens) => tokens,
            Crossover::NotUpTo(_) => usize::MAX,
        }
    }
}

/// A crossover with its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// With the profile's rates unchanged.
    pub expected: Crossover,
    /// The earliest with any one of the profile's rates at an end of its interval.
    pub earliest: Crossover,
    /// The latest with any one of them there.
    pub latest: Crossover,
    /// Length from which the method is at most a tenth slower than the best exact one.
    pub level_from: Crossover,
    /// Length from which it is more than a tenth faster.
    pub level_to: Crossover,
}

/// The crossover of `selective` with the fastest of `exact`, up to `longest` tokens. Whether a
/// length fits into memory is not checked.
///
/// Lengths go in steps of one chunk a rank, so that every rank has the same load. They are doubled
/// first. Above the last doubling at which the selective method does not win, bisection finds the
/// step at which it begins to. All methods have the same rates: the range comes from one rate at a
/// time at an end of its interval, for all of them.
///
/// # Errors
/// As [`Scenario::forecast`].
pub fn crossover(
    selective: &Scenario,
    exact: &[Scenario],
    longest: usize,
    shape: &ModelShape,
    profile: &Profile,
) -> Result<Crossing> {
    let step = selective.settings.world * selective.chunk_tokens.unwrap_or(SMALLEST_CHUNK);
    let mut lengths = Lengths { selective, exact, shape, profile, counted: BTreeMap::new() };
    let mut search = |profile: &Profile, factor: f64| {
        find(step, longest, |tokens| {
            let (own_s, best_s) = lengths.seconds(tokens, profile)?;
            Ok(own_s < factor * best_s)
        })
    };
    let expected = search(profile, 1.0)?;
    let (mut earliest, mut latest) = (expected, expected);
    for (slow, fast) in profile.ends() {
        for end in [slow, fast] {
            let found = search(&end, 1.0)?;
            earliest = std::cmp::min_by_key(earliest, found, |crossover| crossover.length());
            latest = std::cmp::max_by_key(latest, found, |crossover| crossover.length());
        }
    }
    let (level_from, level_to) = (search(profile, 1.0 + LEVEL)?, search(profile, 1.0 - LEVEL)?);
    Ok(Crossing { expected, earliest, latest, level_from, level_to })
}

/// Lengths that have been counted already, and the methods at them: counting takes long, and does
/// not depend on rates.
struct Lengths<'a> {
    selective: &'a Scenario,
    exact: &'a [Scenario],
    shape: &'a ModelShape,
    profile: &'a Profile,
    counted: BTreeMap<usize, (Counts, Vec<Counts>)>,
}

impl Lengths<'_> {
    /// The seconds of the selective method and of the fastest exact one.
    fn seconds(&mut self, tokens: usize, profile: &Profile) -> Result<(f64, f64)> {
        if !self.counted.contains_key(&tokens) {
            let count = |scenario: &Scenario| scenario.counts(tokens, self.shape, self.profile);
            let exact = self.exact.iter().map(count).collect::<Result<Vec<_>>>()?;
            self.counted.insert(tokens, (count(self.selective)?, exact));
        }
        let (own, exact) = &self.counted[&tokens];
        Ok((own.seconds(profile), exact.iter().map(|one| one.seconds(profile)).fold(f64::INFINITY, f64::min)))
    }
}

/// Number of tokens from which `wins` stays true.
fn find(step: usize, longest: usize, mut wins: impl FnMut(usize) -> Result<bool>) -> Result<Crossover> {
    let mut lost = None;
    let mut steps = 1;
    while steps == 1 || steps * step <= longest {
        if !wins(steps * step)? {
            lost = Some(steps);
        }
        steps *= 2;
    }
    let Some(mut below) = lost else { return Ok(Crossover::FromTheStart(step)) };
    let mut above = 2 * below;
    if above * step > longest {
        return Ok(Crossover::NotUpTo(below * step));
    }
    while above - below > 1 {
        let middle = below.midpoint(above);
        if wins(middle * step)? { above = middle } else { below = middle }
    }
    Ok(Crossover::At(above * step))
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Method;

    use super::*;
    use crate::forecast::Spread;
    use crate::outlook::PictureGrids;
    use crate::plan::RequestSettings;
    use crate::shape::tests::QWEN3_14B;

    fn scenario(method: &str, hit_rate: f64) -> Scenario {
        let settings = RequestSettings {
            method: Method::named(method).unwrap(),
            world: 4,
            max_tokens: 1,
            ..RequestSettings::default()
        };
        let method = method.to_owned();
        Scenario {
            method,
            settings,
            chunk_tokens: Some(2048),
            prefix_tokens: 1,
            lead_tokens: 0,
            query_tokens: 32,
            hit_rate,
            pictures: PictureGrids::default(),
            auxiliary: None,
        }
    }

    #[test]
    fn the_crossover_is_where_the_faster_method_changes() {
        let profile = Profile::by_name("h100x4").unwrap();
        let exact = [scenario("ring", 0.0), scenario("all-gather", 0.0)];
        let find =
            |hit_rate| crossover(&scenario("infoflow", hit_rate), &exact, 1 << 20, &QWEN3_14B, &profile).unwrap();
        let cold = find(0.0);
        let Crossover::At(tokens) = cold.expected else { panic!("{cold:?}") };
        assert_eq!(tokens % 8192, 0, "whole chunks on every rank");
        let seconds =
            |scenario: &Scenario, tokens| scenario.forecast(tokens, &QWEN3_14B, &profile).unwrap().predicted.ttft_s;
        let best = |tokens| exact.iter().map(|one| seconds(one, tokens)).fold(f64::INFINITY, f64::min);
        assert!(seconds(&scenario("infoflow", 0.0), tokens) < best(tokens));
        assert!(seconds(&scenario("infoflow", 0.0), tokens - 8192) >= best(tokens - 8192));
        assert_eq!(find(1.0).expected, Crossover::FromTheStart(8192), "warm chunks win at once");
        let lengths = [cold.earliest, cold.expected, cold.latest].map(Crossover::length);
        assert!(lengths.is_sorted() && lengths[0] < lengths[2], "{cold:?}");
        let lengths = [cold.level_from, cold.expected, cold.level_to].map(Crossover::length);
        assert!(lengths[0] < lengths[1] && lengths[1] < lengths[2], "{cold:?}");
        // Rates without uncertainty change nothing.
        let nothing =
            Spread { pace: 0.2, gemm: 0.0, attention: 0.0, memory: 0.0, link: 0.0, store: 0.0, left_out: 0.0 };
        let sure = Profile { spread: Some(nothing), ..profile.clone() };
        let found = crossover(&scenario("infoflow", 0.0), &exact, 1 << 20, &QWEN3_14B, &sure).unwrap();
        assert_eq!((found.earliest, found.latest), (cold.expected, cold.expected));
    }

    #[test]
    fn a_method_that_recomputes_everything_never_wins() {
        let profile = Profile::by_name("h100x4").unwrap();
        let mut all = scenario("infoflow", 0.0);
        all.settings.ratio = Some(1.0);
        let found = crossover(&all, &[scenario("ring", 0.0)], 1 << 18, &QWEN3_14B, &profile).unwrap();
        assert_eq!(found.expected, Crossover::NotUpTo(1 << 18));
    }
}
