//! Default exchange of a request: the one with the earlier predicted first token.

use tributary_protocol::{Exchange, Plan};

use crate::ModelShape;
use crate::forecast::{Counted, Profile, TIE};

/// Seconds to the first token of a plan that has been dealt.
pub(crate) fn seconds(plan: &Plan, world: usize, shape: &ModelShape, profile: &Profile) -> f64 {
    Counted::new(plan, world, shape).seconds(plan, profile)
}

/// The exchange to take, given the seconds of both; replicate if they are level.
pub(crate) fn sooner(replicate_s: f64, pass_q_s: f64) -> Exchange {
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
            let of = |exchange| seconds(&Plan { exchange, ..plan.clone() }, 4, &QWEN, profile);
            sooner(of(Exchange::Replicate), of(Exchange::PassQ))
        };
        let cold = || planned("infoflow", 32_768, 2048, 4, &QWEN);
        assert_eq!(choose(cold(), &fast), Exchange::Replicate);
        assert_eq!(choose(cold(), &slow), Exchange::PassQ);
        assert_eq!(choose(warm(planned("epic", 32_768, 2048, 4, &QWEN)), &slow), Exchange::PassQ);
    }

    #[test]
    fn what_is_level_is_replicated() {
        assert_eq!(
            [0.97, 0.99, 1.5].map(|pass_q_s| sooner(1.0, pass_q_s)),
            [Exchange::PassQ, Exchange::Replicate, Exchange::Replicate]
        );
    }
}
