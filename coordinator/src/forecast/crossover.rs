//! From which context length on a selective method is faster than the best exact one.

use super::{Profile, Scenario};
use crate::{ModelShape, Result};

/// Lengths are multiples of the world times this where a rank has one chunk.
const SMALLEST_CHUNK: usize = 256;

/// Where the selective method begins to be the faster one for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossover {
    /// It is faster at every length looked at, of which this is the shortest.
    FromTheStart(usize),
    /// It is faster from this length on, and not one step below it.
    At(usize),
    /// It is not faster up to this length.
    NotUpTo(usize),
}

/// The crossover of `selective` with the fastest of `exact`, up to `longest` tokens. Whether a length fits into memory is not
/// asked.
///
/// Lengths go in steps of one chunk a rank, so that every rank has the same load. They are doubled first; above the last
/// doubling at which the selective method does not win, the step at which it begins to is found by halving.
///
/// # Errors
/// As [`Scenario::forecast`].
pub fn crossover(
    selective: &Scenario,
    exact: &[Scenario],
    longest: usize,
    shape: &ModelShape,
    profile: &Profile,
) -> Result<Crossover> {
    let step = selective.settings.world * selective.chunk_tokens.unwrap_or(SMALLEST_CHUNK);
    let wins = |steps: usize| -> Result<bool> {
        let tokens = steps * step;
        let own = selective.forecast(tokens, shape, profile)?.predicted.ttft_s;
        for exact in exact {
            if exact.forecast(tokens, shape, profile)?.predicted.ttft_s <= own {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let mut lost = None;
    let mut steps = 1;
    while steps == 1 || steps * step <= longest {
        if !wins(steps)? {
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
        if wins(middle)? { above = middle } else { below = middle }
    }
    Ok(Crossover::At(above * step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{RequestSettings, method_named};
    use crate::shape::tests::QWEN3_14B;

    fn scenario(method: &str, hit_rate: f64) -> Scenario {
        let settings = RequestSettings {
            method: method_named(method).unwrap(),
            world: 4,
            max_tokens: 1,
            ..RequestSettings::default()
        };
        Scenario { settings, chunk_tokens: Some(2048), prefix_tokens: 1, query_tokens: 32, hit_rate }
    }

    #[test]
    fn the_crossover_is_where_the_faster_method_changes() {
        let profile = Profile::by_name("h100x4").unwrap();
        let exact = [scenario("ring", 0.0), scenario("all-gather", 0.0)];
        let find =
            |hit_rate| crossover(&scenario("infoflow", hit_rate), &exact, 1 << 20, &QWEN3_14B, &profile).unwrap();
        let Crossover::At(tokens) = find(0.0) else { panic!("{:?}", find(0.0)) };
        assert_eq!(tokens % 8192, 0, "whole chunks on every rank");
        let seconds =
            |scenario: &Scenario, tokens| scenario.forecast(tokens, &QWEN3_14B, &profile).unwrap().predicted.ttft_s;
        let best = |tokens| exact.iter().map(|one| seconds(one, tokens)).fold(f64::INFINITY, f64::min);
        assert!(seconds(&scenario("infoflow", 0.0), tokens) < best(tokens));
        assert!(seconds(&scenario("infoflow", 0.0), tokens - 8192) >= best(tokens - 8192));
        assert_eq!(find(1.0), Crossover::FromTheStart(8192), "warm chunks win at once");
    }

    #[test]
    fn a_method_that_recomputes_everything_never_wins() {
        let profile = Profile::by_name("h100x4").unwrap();
        let mut all = scenario("infoflow", 0.0);
        all.settings.ratio = Some(1.0);
        let found = crossover(&all, &[scenario("ring", 0.0)], 1 << 18, &QWEN3_14B, &profile).unwrap();
        assert_eq!(found, Crossover::NotUpTo(1 << 18));
    }
}
