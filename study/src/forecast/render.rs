//! The predictions for a reader: a table of times, a table of their parts, the crossovers.

use tributary_charts::table::{Layout, table};
use tributary_planner::forecast::Interval;
use tributary_planner::outlook::{Crossing, Crossover, Forecast, LEVEL, Scenario};
use tributary_protocol::Phase;
use tributary_system::token_count::short;

use super::{Answer, Rival, TENSOR_PARALLEL, exchange};

/// Mark after a point that does not fit into memory.
const TOO_LARGE: &str = "!";

/// Mark after the name of a rival that does not run here.
const FORMULA: &str = "*";

/// Everything as text.
pub fn render(answer: &Answer) -> String {
    let mut text = head(answer);
    text += "\npredicted TTFT [ms], and half of its interval\n";
    text += &times(answer);
    if answer.tensor_parallel.iter().any(Option::is_some) {
        text += &format!(
            "{FORMULA}: does not run here; an exact prefill with each matrix cut over all ranks, by its formula alone\n"
        );
    }
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
    let mut text =
        format!("{}: {}\n{}: {}\n", answer.model, answer.shape.in_words(), profile.label(), profile.description,);
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
    let method = &scenario.method;
    if !forecast.plan.method.reuses() {
        return method.clone();
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
    let has_rival = answer.tensor_parallel.iter().any(Option::is_some);
    let rival = has_rival.then(|| format!("{TENSOR_PARALLEL}{FORMULA}"));
    let mut rows = vec![std::iter::once("tokens".to_owned()).chain(names).chain(rival).collect::<Vec<_>>()];
    let cell = |seconds: f64, interval: Interval, mark: &str| {
        let half_s = (interval.high_s - interval.low_s) / 2.0;
        format!("{}{mark} \u{b1} {}", milliseconds(seconds), milliseconds(half_s))
    };
    for ((&tokens, forecasts), rival) in answer.lengths.iter().zip(&answer.forecasts).zip(&answer.tensor_parallel) {
        let predicted = |forecast: &Forecast| {
            let mark = if forecast.fits { "" } else { TOO_LARGE };
            cell(forecast.predicted.ttft_s, forecast.predicted.interval, mark)
        };
        let rival = rival.map(|Rival { seconds, interval }| cell(seconds, interval, ""));
        rows.push(std::iter::once(short(tokens)).chain(forecasts.iter().map(predicted)).chain(rival).collect());
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
    let most_tokens = most_tokens(answer);
    if most_tokens > 1 {
        header.extend(["a token".to_owned(), format!("all {most_tokens}")]);
    }
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
            if most_tokens > 1 {
                row.extend([predicted.token_s, predicted.all_tokens_s(most_tokens)].map(milliseconds));
            }
            rows.push(row);
        }
    }
    table(&rows, Layout::PLAIN)
}

/// Tokens that each request generates.
fn most_tokens(answer: &Answer) -> usize {
    answer.scenarios.first().map_or(1, |scenario| scenario.settings.max_tokens)
}

/// Memory that the fullest rank needs, and memory that it has.
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
    let line = |&(index, found): &(usize, Crossing)| {
        let name = name(&answer.scenarios[index], &forecasts[index]);
        format!("{name}: {}; {}\n", faster(&found, &rival), level(&found))
    };
    answer.crossovers.iter().map(line).collect()
}

/// From where on a method is predicted faster than its rivals.
fn faster(found: &Crossing, rival: &str) -> String {
    let Crossing { expected, earliest, latest, .. } = found;
    match (earliest, latest) {
        (Crossover::FromTheStart(tokens), Crossover::FromTheStart(_)) => {
            format!("predicted faster than {rival} at every length, from {tokens} tokens on")
        }
        (Crossover::NotUpTo(tokens), _) => format!("not predicted faster than {rival} up to {tokens} tokens"),
        (earliest, Crossover::NotUpTo(tokens)) => {
            format!(
                "predicted faster than {rival} from {} or later on, perhaps not up to {tokens} tokens",
                at(*earliest)
            )
        }
        (earliest, latest) if earliest == latest => {
            format!("predicted faster than {rival} from {} tokens on", at(*earliest))
        }
        (earliest, latest) => {
            let (earliest, latest) = (at(*earliest), at(*latest));
            format!(
                "predicted faster than {rival} from between {earliest} and {latest} tokens on (as the rates stand: {})",
                at(*expected)
            )
        }
    }
}

/// Lengths at which a method and its rivals take about equally long.
fn level(found: &Crossing) -> String {
    let share = 100.0 * LEVEL;
    match (found.level_from, found.level_to) {
        (_, Crossover::FromTheStart(_)) => format!("by more than {share:.0} % everywhere"),
        (Crossover::NotUpTo(tokens), _) => format!("slower by more than {share:.0} % at {tokens} tokens"),
        (from, Crossover::NotUpTo(_)) => format!("level (within {share:.0} %) from {} tokens on", at(from)),
        (from, to) if from == to => format!("from slower to faster by more than {share:.0} % in one step of chunks"),
        (from, to) => format!("level (within {share:.0} %) between {} and {} tokens", at(from), at(to)),
    }
}

fn at(crossover: Crossover) -> String {
    match crossover {
        Crossover::FromTheStart(tokens) | Crossover::At(tokens) => tokens.to_string(),
        Crossover::NotUpTo(tokens) => format!("more than {tokens}"),
    }
}
