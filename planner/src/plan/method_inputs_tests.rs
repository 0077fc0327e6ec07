//! A method's inputs besides the prompt are in the plan, and their memory counts on the right host.

use tributary_protocol::{Auxiliary, AuxiliaryCost, Exchange, LookAhead, Plan};

use super::*;
use crate::machine::MemoryOf;
use crate::shape::tests::DEMO;

fn planned(method_inputs: MethodInputs<'_>, available_bytes: Option<u64>) -> Result<Planned> {
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
    let input = PlanInput {
        request: 1,
        prefix: &[1],
        lead: &[],
        chunks: &chunks,
        cached,
        query: &[3, 4],
        eos: &[],
        method_inputs,
    };
    plan(&input, &RequestSettings { world: 2, ..RequestSettings::default() }, &DEMO, &machine, None)
}

#[test]
fn a_model_beside_the_main_one_must_fit_too() {
    let auxiliary = [Auxiliary {
        model: "small".into(),
        prompts: Vec::new(),
        written: 0,
        cost: AuxiliaryCost { memory_bytes: 1 << 20, ..AuxiliaryCost::default() },
    }];
    let method_inputs = MethodInputs { auxiliary: &auxiliary, ..MethodInputs::default() };
    let (bare, listed) = (planned(MethodInputs::default(), None).unwrap(), planned(method_inputs, None).unwrap());
    assert_eq!(listed.plan.auxiliary, auxiliary);
    assert_eq!(listed.memory_bytes, bare.memory_bytes + (1 << 20), "on rank 0 alone");
    assert!(planned(MethodInputs::default(), Some(bare.memory_bytes)).is_ok());
    let refused = planned(method_inputs, Some(bare.memory_bytes)).unwrap_err();
    assert!(matches!(refused, Error::Memory { .. }), "{refused}");
    assert!(planned(method_inputs, Some(listed.memory_bytes)).is_ok());
}

#[test]
fn rows_of_a_look_ahead_count_for_positions_and_memory_and_as_no_row_of_the_prompt() {
    let with = |rows| MethodInputs { look_ahead: Some(LookAhead { adapter: 1, rows }), ..MethodInputs::default() };
    let (bare, listed) = (planned(MethodInputs::default(), None).unwrap(), planned(with(3900), None).unwrap());
    assert_eq!((listed.plan.total_rows(), listed.plan.context_tokens()), (99, 96));
    assert_eq!(listed.plan.look_ahead_rows(), 99 + 32..99 + 32 + 3900, "after rows that may be generated");
    assert!(listed.memory_bytes > bare.memory_bytes, "{} and {}", listed.memory_bytes, bare.memory_bytes);
    let refused = planned(with(3998), None).unwrap_err();
    assert!(matches!(refused, Error::TooManyTokens { max_tokens: 3998, .. }), "{refused}");
    let of_ranks = |exchange| {
        let plan = Plan { exchange, ..Plan::clone(&listed.plan) };
        let bare = Plan { look_ahead: None, ..plan.clone() };
        let bytes = |plan: &Plan| memory::rank_bytes(plan, 2, &DEMO, MemoryOf::Host, &[]);
        bytes(&plan).iter().zip(bytes(&bare)).map(|(with, without)| with > &without).collect::<Vec<_>>()
    };
    assert_eq!(listed.plan.owner, 1);
    assert_eq!(of_ranks(Exchange::Replicate), [false, true], "the owner has all that they look at");
    assert_eq!(of_ranks(Exchange::PassQ), [true, true], "every rank reads what its own rows receive");
}
