//! Memory of sequences while they are decoded, as the allocator counts it, against the planner's
//! formula, by which requests are admitted. One test in a separate process: all tests of a process
//! share the allocator.

use candle_core::DType;
use tributary_coordinator::dispatch::InFlight;
use tributary_planner::cost::{running_bytes, windows_from};
use tributary_protocol::{Evict, Exchange, Plan, Selection};
use tributary_tests::counting::Counting;
use tributary_tests::side_by_side::{plans, prefilled, release, step, warm};
use tributary_tests::{dummy_model, group, shape, tiny_config};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Factor of the chunks' length over other tests: the fixed memory of a sequence shall be small
/// compared with its rows.
const LONGER: usize = 12;

/// Rows that four layers of six of the second model see.
const WINDOW: usize = 160;

#[test]
fn sequences_keep_what_the_planner_counts() {
    let changes = [("num_key_value_heads", 4.into()), ("head_dim", 32.into()), ("num_hidden_layers", 6.into())];
    let windows = [("architectures", serde_json::json!(["Gemma3ForCausalLM"])), ("sliding_window", WINDOW.into())];
    let with_windows = [&changes[..], &windows, &[("sliding_window_pattern", 3.into())]].concat();
    let models = [&changes[..], &with_windows].map(|changes| dummy_model(&tiny_config(changes), 7));
    for (model, world) in models.iter().flat_map(|model| (1..=3).map(move |world| (model, world))) {
        let shape = shape(&**model, DType::F32);
        let group = group(model, world);
        let link = group.link();
        // Twice: an order ends when all ranks have done with the one before it.
        let settled = || {
            (0..2).for_each(|_| drop(release(link, Vec::new())));
            Counting::held()
        };
        let long = |plan: &Plan| {
            let mut plan = plan.clone();
            for chunk in &mut plan.chunks {
                chunk.ids = chunk.ids.repeat(LONGER);
                chunk.compress.iter_mut().for_each(|compress| compress.keep *= LONGER);
            }
            let budget = match plan.method.selection() {
                _ if plan.parts().is_some() => plan.kept_at_most(world).iter().sum(),
                Some(Selection::Leading { per_chunk: Some(_) }) => plan.budget,
                _ => plan.budget * LONGER,
            };
            let evict = plan.evict.clone().map(|evict| Evict { keep: evict.keep * LONGER, ..evict });
            plan = Plan { max_tokens: 40, budget, evict, ..plan };
            Plan { windows_from: windows_from(&plan, &shape), ..plan }
        };
        let cold: Vec<Plan> = plans(&**model, world, true).iter().map(long).collect();
        for plans in [cold.clone(), warm(&cold)] {
            for plan in plans {
                // One run for allocations that the process makes once, such as its threads' pools.
                let (mut filled, mut high, mut kept) = (0, 0, 0);
                for request in [1, 2] {
                    let plan = Plan { request, ..plan.clone() };
                    let mut running: Vec<InFlight> = vec![prefilled(link, &plan)];
                    let with = settled();
                    Counting::watch_from(with);
                    (0..3).for_each(|_| step(link, &mut running));
                    let (turned, most) = (settled(), Counting::most());
                    assert_eq!(release(link, vec![request]), vec![0; world]);
                    let without = settled();
                    (filled, high, kept) = (with - without, most - without, turned - without);
                }
                compare(&plan, world, running_bytes(&plan, world, &shape).iter().sum(), [filled, high, kept]);
            }
        }
        group.end().expect("the group ends well");
    }
}

/// Compares the bytes of a sequence, after its prefill, at its peak, and during decoding, with the
/// prediction.
fn compare(plan: &Plan, world: usize, predicted: u64, taken: [i64; 3]) {
    let [filled, high, kept] = taken.map(|bytes| bytes as f64 / predicted as f64);
    let (method, exchange, is_warm) = (plan.method.name(), plan.exchange, plan.chunks[0].warm);
    let evicts = plan.evict.as_ref().map_or("nothing", |evict| evict.descriptor().name);
    let words = format!(
        "world {world}, {method}, {exchange:?}, warm {is_warm}, evicts {evicts}: of {predicted} bytes predicted {filled:.2} after \
         the prefill, {high:.2} at most, {kept:.2} kept"
    );
    println!("{words}");
    // Not counted: tables of positions and row numbers, some bytes a row where a row of this model
    // has 6144. Every rank has such tables, with an entry for every row, those too that compressed
    // chunks do not keep.
    let most = if plan.compresses() { 1.1 } else { 1.05 } + 0.01 * (world - 1) as f64;
    assert!(kept < most, "{words}");
    // Keys are rotated to their positions layer by layer, in one step. With compressed chunks, rows
    // that were recomputed in one pass are a larger part.
    let layers = if plan.compresses() { 4.0 } else { 6.0 };
    assert!(high < 1.0 + 1.5 / layers && filled < 1.0 + 1.0 / layers, "{words}");
    // Without unknowns the formula is exact. The rank of the recomputed rows is not known before
    // the selection, nor whether a shorter block is kept; ranks that are threads share the chunks
    // that one of them has kept. The rows that an eviction keeps may be on any rank: room for all
    // is counted on each.
    let anywhere = plan.evicts().is_some() && !plan.generates_alone(world);
    // The rows in a window may be on any rank, and room for all of them is counted on each; where
    // rows are dropped, fewer may be left there.
    let windowed = plan.windows_from > 0 && (plan.drops() || !plan.decodes_alone(world));
    let known = (world == 1 && !plan.drops()) || !plan.method.selects();
    // Warm chunks of all ranks are their values, which threads share, and keys, which are turned
    // into memory of their own: half.
    let is_shared = is_warm && exchange == Exchange::Replicate && world > 1;
    let least = match (anywhere, known) {
        _ if windowed => 0.2,
        (true, _) => 0.3,
        (false, true) => 0.99,
        // Room for all recomputed rows is counted on each rank, and with compressed chunks they are
        // a larger part.
        // The rows of an excerpt may all be on one rank.
        (false, false) if plan.method.excerpts() => 0.9 / world as f64,
        (false, false) if is_shared || plan.compresses() => 0.5,
        (false, false) => 0.6,
    };
    assert!(kept > least, "{words}");
}
