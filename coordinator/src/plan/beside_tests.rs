//! What a method has beside the prompt stands in the plan, and its memory counts where it is.

use tributary_protocol::Auxiliary;

use super::*;
use crate::machine::MemoryOf;
use crate::shape::tests::DEMO;

fn planned(beside: Beside<'_>, available_bytes: Option<u64>) -> Result<Planned> {
    let machine = Machine {
        flops_per_s: 1e10,
        link_bytes_per_s: 4e9,
        memory: MemoryOf::Host,
        available_bytes,
        ranks_here: 2,
        weight_copies: 1,
        of_rank: None,
    };
    let (chunks, cached) = ([vec![7; 64], vec![8; 32]], Cached::default());
    let input = PlanInput { request: 1, prefix: &[1], chunks: &chunks, cached, query: &[3, 4], eos: &[], beside };
    plan(&input, &Settings { world: 2, ..Settings::default() }, &DEMO, &machine)
}

#[test]
fn a_model_beside_the_main_one_must_fit_too() {
    let auxiliary =
        [Auxiliary { model: "small".into(), ids: vec![1, 2], query: 2, stands_for: Vec::new(), memory_bytes: 1 << 20 }];
    let beside = Beside { auxiliary: &auxiliary };
    let (bare, listed) = (planned(Beside::default(), None).unwrap(), planned(beside, None).unwrap());
    assert_eq!(listed.plan.auxiliary, auxiliary);
    assert_eq!(listed.memory_bytes, bare.memory_bytes + (1 << 20), "on rank 0 alone");
    assert!(planned(Beside::default(), Some(bare.memory_bytes)).is_ok());
    let refused = planned(beside, Some(bare.memory_bytes)).unwrap_err();
    assert!(matches!(refused, Error::Memory { .. }), "{refused}");
    assert!(planned(beside, Some(listed.memory_bytes)).is_ok());
}
