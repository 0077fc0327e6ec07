//! Relay (ours): two hops. The query selects a third of the budget (ProphetKV's score); those rows
//! are recomputed once.
//! Their own attention is the second half of the score: it finds the rows that they depend on.
//! Exact where every row is selected.
//!
//! s¹ = ProphetKV's score, normalised over the context; S¹ = its top ⌊n/3⌋; a_t = Σ_{i∈S¹} (s¹_i /
//! Σ s¹) · mean_{l,h} A[i,t], normalised; score = s¹ + a.

use super::prophetkv;
use crate::method::{Claim, Command, InvalidOption, Method};
use crate::model_facts::ModelFacts;
use crate::option::Options;
use crate::options::{IMPORTANCE, KEEP_PER_CHUNK, LAYOUT, ORDER_FOR, PACKETS, RATIO, REORDER};
use crate::prefill::{Evidence, Prefill, Selection};
use crate::rows::{normalised, shares};
use crate::selector::{Candidates, Need, Selector};

/// Divisor of the budget for the first hop.
const HOP_DIVISOR: usize = 3;

/// The declaration.
pub static RELAY: Method = Method {
    name: "relay",
    summary: "rows that the query attends to, and rows that those attend to after a provisional recompute",
    source: "ours; better than the others on the demo model only",
    claim: Claim::Approximate { exact_where: "at ratio 1", exact_with: Some(":ratio=1") },
    cost: "chunks, M rows, n/3 rows, then n + M rows",
    ratio: Some(0.15),
    options: &[&RATIO, &REORDER, &IMPORTANCE, &ORDER_FOR, &LAYOUT, &PACKETS, &KEEP_PER_CHUNK],
    requires: None,
    default_of: &[Command::Plan],
    samples: &["relay", "relay:layout=hl-tp", "relay:reorder", "relay:reorder:order-for=selection"],
    prefill,
    selector: Some(|_| Box::new(Relay::default())),
};

fn prefill(options: &mut Options, _: ModelFacts) -> Result<Prefill, InvalidOption> {
    let evidence = Evidence { pass_divisor: Some(HOP_DIVISOR), ..prophetkv::evidence(options.usual(&LAYOUT)) };
    Ok(Prefill::Chunks(Selection::Evidence(evidence)))
}

/// A probe, then a pass over the rows that it selects.
#[derive(Default)]
struct Relay {
    first: Option<Vec<f32>>,
}

impl Selector for Relay {
    fn next(&mut self, candidates: &Candidates, evidence: &[f32]) -> Need {
        if evidence.is_empty() {
            return Need::Probe;
        }
        let Some(first) = &self.first else {
            let first = normalised(evidence);
            let rows = candidates.top(&first, candidates.measured);
            if rows.is_empty() {
                return Need::Scores(first);
            }
            let weights = shares(&rows, |row| first[(row - candidates.first_row) as usize]);
            self.first = Some(first);
            return Need::Pass { rows, weights };
        };
        assert_eq!(evidence.len(), first.len(), "numbers of the second hop and of the first");
        let second = normalised(evidence);
        Need::Scores(first.iter().zip(second).map(|(s, a)| s + a).collect())
    }
}
