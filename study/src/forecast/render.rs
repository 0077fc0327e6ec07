//! The predictions for a reader: a table of times, a table of what they are made of, the crossovers.

use tributary_charts::table::{Layout, table};
use tributary_coordinator::forecast::{Crossover, Forecast, Scenario};
use tributary_protocol::Phase;
use tributary_system::token_count::short;

use super::{Answer, exchange};

/// Stands behind a point that does not fit into memory.
const TOO_LARGE: &str = "!";

/// Everything as text.
pub fn render(answer: &Answer) -> String {
    let mut text = head(answer);
    text += "\npredicted TTFT [ms]\n";
    text += &times(answer);
    text += "\npredicted critical path [ms], per phase the slowest rank's; waits: exposed communication, part of the phases\n";
    text += &details(answer);
    if answer.forecasts.iter().flatten().any(|forecast| !forecast.fits) {
        text += &format!("{TOO_LARGE}: needs more memory than a rank has; the column shows both\n");
    }
    text.push('\n');
    text += &crossovers(answer);
    for note in answer.notes() {
        text += &format!("note: {note}\n");
    }
    text
}

fn head(answer: &Answer) -> String {
    let profile = &answer.profile;
    let mut text = format!(
        "{}: {:.1} B parameters, {:.1} GB of weights a rank\n{}: {}\n",
        answer.model,
        answer.shape.parameters() as f64 / 1e9,
        answer.shape.weight_bytes as f64 / 1e9,
        profile.label(),
        profile.description,
    );
    if let Some(scenario) = answer.scenarios.first() {
        let chunks = match scenario.chunk_tokens {
            Some(tokens) => format!("chunks of {tokens} tokens"),
            None => "one chunk a rank".to_owned(),
        };
        text += &format!("{} ranks, {chunks}, a query of {} tokens\n", answer.world(), scenario.query_tokens);
    }
    text
}

/// A method and how warm its chunks are, as a column's head.
fn name(scenario: &Scenario, forecast: &Forecast) -> String {
    let method = scenario.settings.method.name;
    if forecast.plan.method.is_exact() {
        return method.to_owned();
    }
    match scenario.hit_rate {
        0.0 => format!("{method} cold"),
        1.0 => format!("{method} warm"),
        rate => format!("{method} {:.0}%", 100.0 * rate),
    }
}

fn milliseconds(seconds: f64) -> String {
    let ms = 1e3 * seconds;
    if ms < 100.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

fn times(answer: &Answer) -> String {
    let Some(first) = answer.forecasts.first() else { return String::new() };
    let names = answer.scenarios.iter().zip(first).map(|(scenario, forecast)| name(scenario, forecast));
    let mut rows = vec![std::iter::once("tokens".to_owned()).chain(names).collect::<Vec<_>>()];
    for (&tokens, forecasts) in answer.lengths.iter().zip(&answer.forecasts) {
        let cell = |forecast: &Forecast| {
            let mark = if forecast.fits { "" } else { TOO_LARGE };
            format!("{}{mark}", milliseconds(forecast.predicted.ttft_s))
        };
        rows.push(std::iter::once(short(tokens)).chain(forecasts.iter().map(cell)).collect());
    }
    table(&rows, Layout::PLAIN)
}

/// Phases that some point has, in their order.
fn phases(answer: &Answer) -> Vec<Phase> {
    let has = |phase: &Phase| {
        answer.forecasts.iter().flatten().flat_map(|found| &found.predicted.phases).any(|found| found.phase == *phase)
    };
    Phase::TO_FIRST_TOKEN.into_iter().filter(has).collect()
}

fn details(answer: &Answer) -> String {
    let phases = phases(answer);
    let mut header: Vec<String> = ["tokens", "method", "exchange", "TTFT"].map(str::to_owned).to_vec();
    header.extend(phases.iter().map(|phase| phase.name().to_owned()));
    header.extend(["waits", "PFLOP", "MB a rank", "GB of memory"].map(str::to_owned));
    let mut rows = vec![header];
    for (&tokens, forecasts) in answer.lengths.iter().zip(&answer.forecasts) {
        for (scenario, forecast) in answer.scenarios.iter().zip(forecasts) {
            let predicted = &forecast.predicted;
            let mut row = vec![short(tokens), name(scenario, forecast), exchange(forecast).unwrap_or("-").to_owned()];
            row.push(milliseconds(predicted.ttft_s));
            row.extend(phases.iter().map(|wanted| {
                let found = predicted.phases.iter().find(|found| found.phase == *wanted);
                found.map_or_else(|| "-".to_owned(), |found| milliseconds(found.seconds))
            }));
            let received = predicted.received_bytes.iter().copied().max().unwrap_or(0);
            row.push(milliseconds(predicted.exposed_s));
            row.push(format!("{:.3}", predicted.total_flops / 1e15));
            row.push(format!("{:.1}", received as f64 / 1e6));
            row.push(memory(answer, forecast));
            rows.push(row);
        }
    }
    table(&rows, Layout::PLAIN)
}

/// What the fullest rank needs, beside what it has.
fn memory(answer: &Answer, forecast: &Forecast) -> String {
    let mark = if forecast.fits { "" } else { TOO_LARGE };
    format!(
        "{:.1}{mark} of {:.1}",
        forecast.most_memory_bytes() as f64 / 1e9,
        answer.profile.rank.memory_bytes as f64 / 1e9
    )
}

fn crossovers(answer: &Answer) -> String {
    if answer.against.is_empty() {
        return "no exact method is among them: no crossover to look for\n".to_owned();
    }
    let rival = match answer.against.as_slice() {
        [one] => one.clone(),
        several => format!("the fastest of {}", several.join(", ")),
    };
    let Some(forecasts) = answer.forecasts.first() else { return String::new() };
    let line = |&(index, found): &(usize, Crossover)| {
        let name = name(&answer.scenarios[index], &forecasts[index]);
        match found {
            Crossover::FromTheStart(tokens) => {
                format!("{name}: predicted faster than {rival} at every length, from {tokens} tokens on\n")
            }
            Crossover::At(tokens) => format!("{name}: predicted faster than {rival} from {tokens} tokens on\n"),
            Crossover::NotUpTo(tokens) => {
                format!("{name}: not predicted faster than {rival} up to {tokens} tokens\n")
            }
        }
    };
    answer.crossovers.iter().map(line).collect()
}
