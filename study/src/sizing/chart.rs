//! The charts of sizing: GPUs against the length of the context, and against requests a second; one
//! line a method, on the profile that needs the fewest there.

use tributary_charts::svg::{Axis, COLOURS, Chart, Legend, Plot, Scale};
use tributary_system::token_count::short;

use super::render::{claim, counted};
use super::search::{Choice, Search};
use super::{Answer, Cell};
use crate::error::Result;

const HEIGHT: f64 = 300.0;

/// Rates are drawn from a quarter of the one that is asked for up to four times it, two steps each
/// time it doubles.
const RATE_STEPS: std::ops::RangeInclusive<i32> = -4..=4;

/// A point of a line: its place, and the deployment.
struct Dot {
    x: f64,
    choice: Choice,
    profile: String,
}

/// A method and its points, in the order of the axis.
struct Line {
    label: String,
    dots: Vec<Dot>,
}

/// View of the chart.
struct Look {
    name: String,
    title: String,
    axis: Axis,
    /// Values that the horizontal axis must hold.
    across: Vec<f64>,
}

/// The chart that says most: against lengths where there are several, else against rates.
///
/// # Errors
/// Fails as [`super::Answer::new`] does.
pub(super) fn main_chart(answer: &Answer) -> Result<Chart> {
    let lengths = &answer.question.lengths;
    match lengths.as_slice() {
        [tokens] => against_rates(answer, *tokens),
        _ => Ok(against_lengths(answer)),
    }
}

/// All charts.
///
/// # Errors
/// Fails as [`super::Answer::new`] does.
pub(super) fn charts(answer: &Answer) -> Result<Vec<Chart>> {
    let lengths = &answer.question.lengths;
    let first = (lengths.len() > 1).then(|| Ok(against_lengths(answer)));
    first.into_iter().chain(lengths.iter().map(|&tokens| against_rates(answer, tokens))).collect()
}

fn against_lengths(answer: &Answer) -> Chart {
    let lengths = &answer.question.lengths;
    let dot = |scenario: usize, tokens: usize| {
        let here = of(answer, scenario, tokens);
        let met = here.filter_map(|cell| Some((answer.profile(cell).name.clone(), cell.found.as_ref().ok()?.clone())));
        fewest(met).map(|(profile, choice)| Dot { x: tokens as f64, choice, profile })
    };
    let line = |scenario: usize| -> Vec<Dot> { lengths.iter().filter_map(|&tokens| dot(scenario, tokens)).collect() };
    let marks = lengths.iter().map(|&tokens| (tokens as f64, short(tokens))).collect();
    let look = Look {
        name: "gpus-lengths".to_owned(),
        title: format!("GPUs for {} requests a second", answer.question.demand.rate_per_s),
        axis: Axis::new("context [tokens]").with(marks),
        across: lengths.iter().map(|&tokens| tokens as f64).collect(),
    };
    draw(answer, &lines(answer, line), look)
}

fn against_rates(answer: &Answer, tokens: usize) -> Result<Chart> {
    let today = answer.question.demand.rate_per_s;
    let rates: Vec<f64> = RATE_STEPS.map(|step| today * (0.5 * f64::from(step)).exp2()).collect();
    let mut found: Vec<Vec<Dot>> = Vec::new();
    for scenario in 0..answer.question.scenarios.len() {
        let mut searches: Vec<_> = of(answer, scenario, tokens)
            .map(|cell| {
                let case = answer.question.case(cell.profile, scenario);
                (answer.profile(cell), Search::knowing(case, tokens, cell.known.clone()))
            })
            .collect();
        let mut dots = Vec::new();
        for &x in &rates {
            let mut met = Vec::new();
            for (profile, search) in &mut searches {
                search.set_rate(x);
                met.extend(search.smallest()?.ok().map(|choice| (profile.name.clone(), choice)));
            }
            dots.extend(fewest(met.into_iter()).map(|(profile, choice)| Dot { x, choice, profile }));
        }
        found.push(dots);
    }
    let look = Look {
        name: format!("gpus-rates-{tokens}"),
        title: format!("GPUs for contexts of {} tokens", short(tokens)),
        axis: Axis::new("requests a second"),
        across: rates,
    };
    let mut found = found.into_iter();
    Ok(draw(answer, &lines(answer, |_| found.next().unwrap_or_default()), look))
}

/// The cells of a method at a length, one a profile.
fn of(answer: &Answer, scenario: usize, tokens: usize) -> impl Iterator<Item = &Cell> {
    answer.cells.iter().filter(move |cell| cell.scenario == scenario && cell.tokens == tokens)
}

fn fewest(met: impl Iterator<Item = (String, Choice)>) -> Option<(String, Choice)> {
    met.reduce(|best, next| if next.1.is_better_than(&best.1) { next } else { best })
}

fn lines(answer: &Answer, mut dots: impl FnMut(usize) -> Vec<Dot>) -> Vec<Line> {
    let label = |scenario: usize| {
        let scenario = &answer.question.scenarios[scenario];
        format!("{} ({})", scenario.method, claim(scenario.settings.method.is_exact()))
    };
    (0..answer.question.scenarios.len()).map(|scenario| Line { label: label(scenario), dots: dots(scenario) }).collect()
}

fn draw(answer: &Answer, lines: &[Line], look: Look) -> Chart {
    let (question, demand) = (&answer.question, answer.question.demand);
    let drawn = || lines.iter().enumerate().filter(|(_, line)| !line.dots.is_empty());
    let legend: Vec<(usize, String)> = drawn().map(|(series, line)| (series, line.label.clone())).collect();
    let profiles: Vec<String> = question.profiles.iter().map(|profile| profile.label()).collect();
    let below = format!(
        "predicted: 95 % have their first token within {:.0} ms; {:.0} % of the chunks warm\n{}; both axes logarithmic",
        1e3 * demand.slo_s,
        100.0 * answer.hit_rate(),
        profiles.join(", ")
    );
    let mut plot = Plot::new(&look.title, &below, &legend, Legend::Mark, HEIGHT);
    let x = Scale::log(look.across.iter().copied(), plot.across());
    let y = Scale::log(drawn().flat_map(|(_, line)| line.dots.iter().map(|dot| dot.choice.gpus() as f64)), plot.up());
    plot.horizontal(&x, &look.axis);
    plot.vertical(&y, &Axis::new("GPUs"));
    for (series, line) in drawn() {
        let at = |dot: &Dot| (x.at(dot.x), y.at(dot.choice.gpus() as f64));
        let points: Vec<_> = line.dots.iter().map(at).collect();
        plot.drawing.path(&points, false, &format!("curve s{}", series % (COLOURS - 1)));
        for dot in &line.dots {
            let Dot { choice, profile, .. } = dot;
            let tip = format!(
                "{}, {} {}: {} of {profile}, {} of {}, {:.0} ms alone",
                line.label,
                if look.name.starts_with("gpus-lengths") { short(dot.x as usize) } else { format!("{:.3}", dot.x) },
                look.axis.label,
                counted(choice.gpus(), "GPU"),
                counted(choice.groups, "group"),
                choice.group.world,
                1e3 * choice.group.ttft_s,
            );
            plot.drawing.mark(at(dot), series, &tip);
        }
    }
    plot.finish(&look.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::kit::answer;

    #[test]
    fn charts_are_whole_and_hold_their_numbers() {
        let answer = answer(&["ring", "infoflow"], &[16_384, 32_768]);
        let charts = charts(&answer).unwrap();
        let names: Vec<&str> = charts.iter().map(|chart| chart.name.as_str()).collect();
        assert_eq!(names, ["gpus-lengths", "gpus-rates-16384", "gpus-rates-32768"]);
        for chart in &charts {
            let text = chart.alone();
            assert!(!text.contains("NaN") && !text.contains("inf\""), "{}: {text}", chart.name);
            assert_eq!(text.matches("<path").count(), 2, "{}: a line a method", chart.name);
            assert!(text.contains("ring (exact)") && text.contains("infoflow (approximate)"), "{}", chart.name);
        }
        assert_eq!(charts[0].body.matches("<title>").count(), 2 * 2 + 2, "points and the legend's marks");
        assert_eq!(charts[1].body.matches("<title>").count(), 2 * 9 + 2);
        assert_eq!(main_chart(&answer).unwrap(), charts[0]);
    }

    #[test]
    fn a_chart_of_nothing_is_a_chart() {
        let answer = answer(&["ring"], &[1 << 20]);
        let chart = main_chart(&answer).unwrap().alone();
        assert!(!chart.contains("NaN") && !chart.contains("inf\"") && chart.ends_with("</svg>\n"), "{chart}");
    }
}
