//! Calibration of a method's scoring layers for a model: the depth whose attention selects the rows
//! with which the model answers best.

use std::ops::Range;

use tributary_charts::table::{Layout, cells, table};
use tributary_methods::{LAYERS, Layers};

use crate::answers::{Answer, Answers, score};
use crate::design::{Arm, labelled};
use crate::evaluation::Evaluation;
use crate::pooled::{Compared, less_the_first};
use crate::render::interval;
use crate::statistics::{self, Mean};

/// Parts into which the layers are divided, one division after the other.
const DIVISIONS: [usize; 4] = [8, 4, 2, 1];

/// Largest p, after Holm, of layers that are taken.
const LARGEST_P: f64 = 0.05;

/// The layers that are tried in a model of `layers` layers: eighths, quarters and halves of them,
/// and all. Each range once, in this order.
pub fn depths(layers: usize) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for parts in DIVISIONS {
        for part in 0..parts {
            let range = part * layers / parts..(part + 1) * layers / parts;
            if !range.is_empty() && !ranges.contains(&range) {
                ranges.push(range);
            }
        }
    }
    ranges
}

/// A method with some layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// The layers.
    pub layers: Range<usize>,
    /// Mean score.
    pub score: Mean,
    /// Mean divergence of the first token from full prefill's; absent where nothing was answered.
    pub kl_nats: Option<Mean>,
    /// Mean score less the one with the usual layers. The interval is Holm's.
    pub difference: Mean,
    /// p of the difference, after Holm for all layers that were tried.
    pub holm_p: f64,
}

/// A method with its usual layers and with others, on the same requests.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerTrial {
    /// The method with its options, without layers, and its ratio.
    pub method: String,
    /// Number of requests.
    pub requests: usize,
    /// Mean score with the usual layers.
    pub usual: Mean,
    /// Mean divergence with the usual layers.
    pub usual_kl_nats: Option<Mean>,
    /// Every other choice of layers.
    pub tried: Vec<Tried>,
}

impl LayerTrial {
    /// The trial of an evaluation whose methods are full prefill, a method, and this one with
    /// layers. `None` without requests.
    pub fn new(evaluation: &Evaluation, answers: &Answers) -> Option<Self> {
        let (seed, arms) = (evaluation.design.seed, evaluation.arms.get(1..)?);
        let all: Vec<Vec<Option<&Answer>>> = arms.iter().map(|arm| answers.of_arm(&evaluation.cells, arm)).collect();
        let scores: Vec<Vec<f64>> = all.iter().map(|own| own.iter().copied().map(score).collect()).collect();
        let layers = |arm: &Arm| match arm.run_config.settings.options.get::<Layers>(&LAYERS) {
            Some(Layers::Some(first, end)) => first..end,
            _ => 0..0,
        };
        let kl = |own: &[Option<&Answer>]| {
            let nats: Vec<f64> = own.iter().filter_map(|answer| answer.as_ref()?.reply()?.kl_nats).collect();
            statistics::mean(&nats, seed)
        };
        let usual = statistics::score(scores.first()?, seed)?;
        let beside = less_the_first(&scores, seed);
        let tried = arms.iter().zip(&all).zip(&scores).skip(1).zip(beside);
        let tried = tried.map(|(((arm, own), scores), Compared { difference, holm_p, .. })| {
            let score = statistics::score(scores, seed)?;
            Some(Tried { layers: layers(arm), score, kl_nats: kl(own), difference, holm_p })
        });
        Some(Self {
            method: labelled(&arms[0].method, arms[0].ratio),
            requests: scores[0].len(),
            usual,
            usual_kl_nats: kl(&all[0]),
            tried: tried.collect::<Option<_>>()?,
        })
    }

    /// The layers with the highest mean score, of those that are shown to be better than the usual
    /// ones; the fewest and then the first of several.
    pub fn best(&self) -> Option<&Tried> {
        let shown = self.tried.iter().filter(|tried| tried.difference.mean > 0.0 && tried.holm_p < LARGEST_P);
        shown.reduce(|best, tried| if tried.score.mean > best.score.mean { tried } else { best })
    }

    /// A table of all layers, and the conclusion from it.
    pub fn render(&self) -> String {
        let mut rows = vec![cells(["layers", "score", "KL", "less the usual", "p (Holm)"])];
        let nothing = || "-".to_owned();
        let nats = |kl: &Option<Mean>| kl.as_ref().map_or_else(nothing, interval);
        rows.push(vec!["usual".to_owned(), interval(&self.usual), nats(&self.usual_kl_nats), nothing(), nothing()]);
        rows.extend(self.tried.iter().map(|tried| {
            vec![
                format!("{}..{}", tried.layers.start, tried.layers.end),
                interval(&tried.score),
                nats(&tried.kl_nats),
                interval(&tried.difference),
                format!("{:.4}", tried.holm_p),
            ]
        }));
        let table = table(&rows, Layout { left: &[0], commented_rows: Some(1) });
        let said = match self.best() {
            Some(Tried { layers: Range { start, end }, .. }) => {
                format!("{start}..{end} are shown to be better than the usual layers")
            }
            None => "no layers are shown to be better than the usual ones".to_owned(),
        };
        format!("# scoring layers of {}, {} requests\n{table}# {said}\n", self.method, self.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighths_quarters_halves_and_all_layers_are_tried_once() {
        let eighths = (0..8).map(|part| 3 * part..3 * part + 3);
        let all: Vec<Range<usize>> = eighths.chain([0..6, 6..12, 12..18, 18..24, 0..12, 12..24, 0..24]).collect();
        assert_eq!(depths(24), all);
        assert_eq!(depths(5), [0..1, 1..2, 2..3, 3..4, 4..5, 3..5, 0..2, 2..5, 0..5]);
        assert_eq!(depths(1), std::slice::from_ref(&(0..1)));
    }

    fn tried(layers: Range<usize>, score: f64, (difference, holm_p): (f64, f64)) -> Tried {
        let mean = |mean| Mean { mean, low: mean, high: mean };
        Tried { layers, score: mean(score), kl_nats: None, difference: mean(difference), holm_p }
    }

    #[test]
    fn layers_that_are_not_shown_to_be_better_are_not_taken() {
        let trial = |tried| {
            let usual = Mean { mean: 0.5, low: 0.4, high: 0.6 };
            LayerTrial { method: "infoflow".to_owned(), requests: 40, usual, usual_kl_nats: None, tried }
        };
        let chance = trial(vec![tried(0..1, 0.9, (0.4, 0.06)), tried(1..2, 0.1, (-0.4, 0.001))]);
        assert_eq!(chance.best(), None);
        assert!(chance.render().contains("no layers are shown to be better"), "{}", chance.render());
        let shown =
            trial(vec![tried(0..1, 0.7, (0.2, 0.04)), tried(1..2, 0.8, (0.3, 0.03)), tried(0..2, 0.8, (0.3, 0.01))]);
        assert_eq!(shown.best().map(|best| best.layers.clone()), Some(1..2));
        assert!(shown.render().contains("# 1..2 are shown to be better"), "{}", shown.render());
    }
}
