//! Dry run of an evaluation: its requests, and its predicted time.

use tributary_charts::table::{Layout, cells, table};
use tributary_planner::forecast::{Counted, Profile};
use tributary_planner::{ModelShape, Planned};
use tributary_protocol::Plan;
use tributary_system::size::MIB;

use crate::design::Arm;
use crate::evaluation::{Evaluation, Request};
use crate::run::duration;

/// Requests, answers, tokens and memory in tables, and times on the machine of a profile if there
/// is one. Every request of a cell is counted as its longest. Ends with a line break.
///
/// `free_bytes` is the memory that is free here, where that is known.
pub fn dry_run(
    evaluation: &Evaluation,
    shape: &ModelShape,
    profile: Option<&Profile>,
    free_bytes: Option<u64>,
) -> String {
    let Evaluation { design, arms, .. } = evaluation;
    let profile = profile.filter(|profile| design.world <= profile.ranks);
    let mut text = format!("# dry run of suite {}: nothing was asked; seed {}\n", design.suite, design.seed);
    if let Some(reproduces) = &design.reproduces {
        text += &format!("# reproduces: {reproduces}\n");
    }
    for line in &design.made_of {
        text += &format!("# {line}\n");
    }
    if evaluation.is_estimated {
        text += "# the model's folder has no tokenizer.json: tokens are estimated, four bytes each; to ask, it takes that and the weights\n";
    }
    text += &by_cell(evaluation);
    let labels: Vec<String> = arms.iter().map(Arm::label).collect();
    text += &format!("# {} methods and ratios: {}\n", arms.len(), labels.join(", "));
    let (methods, all_s) = by_method(evaluation, shape, profile);
    text += &methods;
    let needed = evaluation.longest.iter().flatten().map(|planned| planned.memory_bytes).max().unwrap_or(0);
    if let Some(free) = free_bytes.filter(|free| *free < needed) {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        text += &format!(
            "# here are {:.1} MiB free, and up to {:.1} needed: it would be refused\n",
            mib(free),
            mib(needed)
        );
    }
    text += &match profile {
        Some(profile) => format!(
            "# predicted by the profile {}, nothing was measured: about {} for all answers, one after the other\n",
            profile.label(),
            duration(all_s)
        ),
        None => format!("# no times: --profile names a machine of {} ranks or more that predicts them\n", design.world),
    };
    text
}

fn by_cell(evaluation: &Evaluation) -> String {
    let Evaluation { arms, requests, .. } = evaluation;
    let mut rows = vec![cells(["task", "requests", "answers", "tokens read", "tokens generated, at most"])];
    let row = |name: &str, own: &[&Request]| {
        let sum = |of: fn(&Request) -> usize| arms.len() * own.iter().map(|request| of(request)).sum::<usize>();
        let answers = own.len() * arms.len();
        let (read, generated) = (sum(|request| request.prompt_tokens), sum(|request| request.answer_tokens));
        vec![name.to_owned(), own.len().to_string(), answers.to_string(), read.to_string(), generated.to_string()]
    };
    for (cell, _) in &evaluation.cells {
        let own: Vec<&Request> = requests.iter().filter(|request| request.cell == *cell).collect();
        rows.push(row(&cell.to_string(), &own));
    }
    rows.push(row("all", &requests.iter().collect::<Vec<_>>()));
    table(&rows, Layout { left: &[0], commented_rows: Some(1) })
}

/// Memory and times of each method, and the seconds of all answers.
fn by_method(evaluation: &Evaluation, shape: &ModelShape, profile: Option<&Profile>) -> (String, f64) {
    let mut rows =
        vec![cells(["method", "memory", "longest TTFT", "all answers"]), cells(["", "[MiB]", "[ms]", "[s]"])];
    let mut all_s = 0.0;
    for (index, arm) in evaluation.arms.iter().enumerate() {
        let memory = evaluation.longest.iter().map(|plans| plans[index].memory_bytes).max().unwrap_or(0);
        let (mut longest_s, mut sum_s) = (0.0_f64, 0.0);
        for (plans, (_, count)) in evaluation.longest.iter().zip(&evaluation.cells) {
            let Some(profile) = profile else { continue };
            let plan = if evaluation.design.warm { sharing(plans, index) } else { Plan::clone(&plans[index].plan) };
            let predicted = Counted::new(&plan, plans[index].world, shape).on(&plan, profile);
            longest_s = longest_s.max(predicted.ttft_s);
            sum_s += *count as f64 * predicted.all_tokens_s(plan.max_tokens);
        }
        all_s += sum_s;
        let time = |value: f64| if profile.is_some() { format!("{value:.1}") } else { "-".to_owned() };
        let memory = format!("{:.1}", memory as f64 / MIB as f64);
        rows.push(vec![arm.label(), memory, time(1000.0 * longest_s), time(sum_s)]);
    }
    (table(&rows, Layout { left: &[0], commented_rows: Some(2) }), all_s)
}

/// The plan of a method whose request has been answered by those before it: what they have put into
/// the chunk cache is warm. Whichever answers first computes it, so that the sum is that of any
/// order.
fn sharing(plans: &[Planned], index: usize) -> Plan {
    let mut plan = Plan::clone(&plans[index].plan);
    if !plan.method.in_chunks() {
        return plan;
    }
    let before = plans[..index].iter().map(|planned| &planned.plan).filter(|plan| plan.method.in_chunks());
    for other in before {
        for (chunk, held) in plan.chunks.iter_mut().zip(&other.chunks) {
            chunk.warm |= (chunk.around, &chunk.compress) == (held.around, &held.compress);
        }
    }
    plan
}
