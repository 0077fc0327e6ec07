//! Default exchange of a request: the one with the earlier predicted first token.

use tributary_protocol::{Exchange, Plan};

use crate::ModelShape;
use crate::forecast::{Counted, Profile, TIE};

/// Seconds to the first token of a plan that has been dealt.
pub(crate) fn seconds(plan: &Plan, world: usize, shape: &ModelShape, profile: &Profile) -> f64 {
    Counted::new(plan, world, shape).seconds(plan, profile)
}

/// The exchange to take, given the seconds of each; replicate if it is level with pass-q. If the
/// plan drops the other rows, a recomputed row sees fresh rows alone, so that `selected` answers as
/// both do.
pub(crate) fn soonest(drops: bool, mut seconds: impl FnMut(Exchange) -> f64) -> Exchange {
    let (replicate_s, pass_q_s) = (seconds(Exchange::Replicate), seconds(Exchange::PassQ));
    if drops && seconds(Exchange::Selected) <= replicate_s.min(pass_q_s) {
        return Exchange::Selected;
    }
    if pass_q_s < (1.0 - TIE) * replicate_s { Exchange::PassQ } else { Exchange::Replicate }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{QWEN, planned, warm};

    #[test]
    fn a_slow_link_or_no_work_to_hide_under_asks_for_pass_q() {
        let fast = Profile::by_name("h100x4").expect("shipped");
        let mut slow = fast.clone();
        slow.inside.bytes_per_s = 2e9;
        let choose = |plan: Plan, profile: &Profile| {
            soonest(plan.drops(), |exchange| seconds(&Plan { exchange, ..plan.clone() }, 4, &QWEN, profile))
        };
        let cold = || planned("infoflow", 32_768, 2048, 4, &QWEN);
        assert_eq!(choose(cold(), &fast), Exchange::Replicate);
        assert_eq!(choose(cold(), &slow), Exchange::PassQ);
        assert_eq!(choose(warm(planned("epic", 32_768, 2048, 4, &QWEN)), &slow), Exchange::PassQ);
        for method in ["excerpt", "samkv"] {
            assert_eq!(choose(planned(method, 32_768, 2048, 4, &QWEN), &slow), Exchange::Selected, "{method}");
        }
    }

    #[test]
    fn what_is_level_is_replicated() {
        let choose =
            |pass_q_s: f64| soonest(false, |exchange| if exchange == Exchange::PassQ { pass_q_s } else { 1.0 });
        assert_eq!([0.97, 0.99, 1.5].map(choose), [Exchange::PassQ, Exchange::Replicate, Exchange::Replicate]);
    }
}
