//! Corrections of a profile learned from answered requests: for each kind of phase, its time as a
//! multiple of the profile's prediction.
//! So the service's predictions follow its own machine, for any source of the profile and for any
//! change of pace.

use std::collections::BTreeMap;

use tributary_protocol::Phase;

use crate::forecast::Predicted;

/// Number of requests of a kind that count; older ones fade.
const MEMORY: u64 = 32;

/// Maximum factor by which a request counts as slower, or faster, than those before it.
const MOST_AT_ONCE: f64 = 4.0;

/// Unpredicted work may always take this long, even if it was shorter before.
const LEAST_REST_S: f64 = 10e-3;

/// Maximum multiple; its inverse is the minimum.
const MOST: f64 = 100.0;

/// A phase of requests with exact methods, or with others: they compute in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The phase.
    pub phase: Phase,
    /// Whether the method is exact.
    pub is_exact: bool,
}

/// Learned pace of a kind of phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Its seconds as a multiple of the profile's prediction.
    pub multiple: f64,
    /// Number of requests that it was learned from.
    pub requests: u64,
}

/// Facts learned from requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learned {
    paces: BTreeMap<Kind, Pace>,
    /// Seconds of a request outside all predictions, such as the reading of its text.
    rest_s: Option<(f64, u64)>,
}

impl Learned {
    /// Learned paces, by their kind.
    pub fn paces(&self) -> impl Iterator<Item = (Kind, Pace)> + '_ {
        self.paces.iter().map(|(&kind, &pace)| (kind, pace))
    }

    /// The time to first token of a prediction corrected by the learned paces, in seconds. With
    /// `only_learned`, `None` until all of its phases have been learned.
    pub fn ttft_s(&self, predicted: &Predicted, is_exact: bool, only_learned: bool) -> Option<f64> {
        let rest_s = self.rest_s.map_or(0.0, |(seconds, _)| seconds);
        let knows_rest = only_learned || self.rest_s.is_some();
        let phase = |phase: Phase, seconds: f64| match self.paces.get(&Kind { phase, is_exact }) {
            Some(pace) => Some(pace.multiple * seconds),
            None if is_beside(phase) && knows_rest => Some(0.0),
            None => (!only_learned).then_some(seconds),
        };
        let phases = predicted.phases.iter().filter(|predicted| predicted.seconds > 0.0);
        let sum = phases.map(|predicted| phase(predicted.phase, predicted.seconds)).sum::<Option<f64>>();
        sum.map(|seconds| seconds + rest_s)
    }

    /// Learns from a request with this prediction: the seconds of its phases, and its total without
    /// waiting.
    pub fn learn(&mut self, predicted: &Predicted, is_exact: bool, phases: &[(Phase, f64)], ttft_s: f64) {
        let mut named_s = 0.0;
        for &(phase, seconds) in phases {
            let found = predicted.phases.iter().find(|found| found.phase == phase && found.seconds > 0.0);
            let Some(found) = found.filter(|_| !is_beside(phase) && seconds > 0.0) else { continue };
            named_s += seconds;
            let multiple = (seconds / found.seconds).clamp(1.0 / MOST, MOST);
            let pace = self.paces.entry(Kind { phase, is_exact }).or_insert(Pace { multiple, requests: 0 });
            let step = (multiple / pace.multiple).clamp(1.0 / MOST_AT_ONCE, MOST_AT_ONCE);
            pace.requests += 1;
            pace.multiple *= step.powf(1.0 / pace.requests.min(MEMORY) as f64);
        }
        let (rest_s, requests) = self.rest_s.get_or_insert((0.0, 0));
        *requests += 1;
        let seconds = (ttft_s - named_s).max(0.0);
        let most_s = if *requests == 1 { seconds } else { (MOST_AT_ONCE * *rest_s).max(LEAST_REST_S) };
        *rest_s += (seconds.min(most_s) - *rest_s) / (*requests).min(MEMORY) as f64;
    }
}

/// Whether a phase is learned with the unpredicted work: it is short, and independent of the ranks'
/// rates.
fn is_beside(phase: Phase) -> bool {
    matches!(phase, Phase::Tokenize | Phase::Queue | Phase::Dispatch | Phase::Select)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::{Interval, PhaseSeconds};

    fn predicted(phases: &[(Phase, f64)]) -> Predicted {
        let phase = |&(phase, seconds): &(Phase, f64)| PhaseSeconds { phase, seconds, exposed_s: 0.0 };
        Predicted {
            ttft_s: phases.iter().map(|(_, seconds)| seconds).sum(),
            interval: Interval::default(),
            phases: phases.iter().map(phase).collect(),
            exposed_s: 0.0,
            total_flops: 0.0,
            critical_flops: 0.0,
            received_bytes: Vec::new(),
            evict_s: 0.0,
            token_s: 0.0,
        }
    }

    const PREFILL: Phase = Phase::ChunkPrefill;

    #[test]
    fn a_machine_of_another_pace_is_learned_from_its_requests() {
        let mut learned = Learned::default();
        let of =
            |tokens: f64| predicted(&[(Phase::Dispatch, 0.001), (PREFILL, tokens), (Phase::Recompute, tokens / 4.0)]);
        assert_eq!(learned.ttft_s(&of(1.0), false, true), None, "nothing was learned");
        assert_eq!(learned.ttft_s(&of(1.0), false, false), Some(1.251));
        // Prefill takes twice as long, recompute half as long, and 10 ms are outside both.
        for tokens in [1.0, 0.5, 3.0, 2.0] {
            let phases = [(PREFILL, 2.0 * tokens), (Phase::Recompute, tokens / 8.0), (Phase::Queue, 7.0)];
            learned.learn(&of(tokens), false, &phases, 2.125 * tokens + 0.01);
        }
        for only_learned in [true, false] {
            let found = learned.ttft_s(&of(8.0), false, only_learned).unwrap();
            assert!((found - 17.01).abs() < 1e-6, "the dispatch is in what is beside: {found}");
        }
        assert_eq!(learned.ttft_s(&of(8.0), true, true), None, "exact methods are another kind");
        let paces: Vec<_> = learned.paces().map(|(kind, pace)| (kind.phase, pace.requests)).collect();
        assert_eq!(paces, [(PREFILL, 4), (Phase::Recompute, 4)]);
    }

    #[test]
    fn one_bad_request_moves_little_and_nothing_leaves_its_bounds() {
        let mut learned = Learned::default();
        let of = predicted(&[(PREFILL, 1.0)]);
        for _ in 0..40 {
            learned.learn(&of, false, &[(PREFILL, 1.0)], 1.0);
        }
        learned.learn(&of, false, &[(PREFILL, 1000.0)], 1000.0);
        let multiple = |learned: &Learned| learned.paces().next().unwrap().1.multiple;
        assert!(multiple(&learned) < 1.05, "{learned:?}");
        for _ in 0..1000 {
            learned.learn(&of, false, &[(PREFILL, 1e9)], 1e9);
        }
        assert!(multiple(&learned) <= MOST * 1.000_001, "{learned:?}");
        for _ in 0..1000 {
            learned.learn(&of, false, &[(PREFILL, 1e-9)], 1e-9);
        }
        assert!(multiple(&learned) >= 0.999_999 / MOST, "{learned:?}");
    }
}
