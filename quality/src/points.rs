//! What the answers of a method come to on a task, and on all: pure functions on answers.

use schemars::JsonSchema;
use serde::Serialize;
use tributary_charts::statistics::median;

use crate::answers::{Answer, Answers, Reply};
use crate::design::{Arm, Design};
use crate::error::Result;
use crate::statistics::{Mean, difference, mcnemar, mean};

/// What stands for all tasks.
pub const ALL: &str = "all";

/// One method with one ratio on one task, or on all.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Point {
    /// The method and its options, as asked for.
    pub method: String,
    /// The share of the context that it recomputes; absent where it has none.
    pub ratio: Option<f64>,
    /// Whether it equals full prefill but for rounding.
    pub exact: bool,
    /// The task, or `all`.
    pub task: String,
    /// Requests.
    pub requests: usize,
    /// Those that failed: their score is 0.
    pub failures: usize,
    /// Mean score of all requests, from 0 to 1, and the interval that holds 95 % of the means of requests drawn anew.
    pub score: Mean,
    /// Share of the answers whose first token is full prefill's.
    pub first_token_agrees: f64,
    /// Median time to first token of the answers.
    pub median_ttft_ms: f64,
    /// Share of the context rows that were selected and recomputed; 1 for exact methods.
    pub selected_share: f64,
    /// Share of the context rows that were computed once before that, to measure what they attend to or how far they drift.
    pub measured_share: f64,
    /// Share of the answers for which documents stood in another order than the request's.
    pub moved_share: f64,
    /// Median of the payload bytes of tensors received until the first token, all ranks together.
    pub median_received_bytes: u64,
    /// The same requests answered by full prefill; absent for that itself.
    pub against_full: Option<Paired>,
}

/// Two methods on the same requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Paired {
    /// Mean of this method's score less full prefill's, and its interval.
    pub difference: Mean,
    /// Requests that this method alone answers right.
    pub right_alone: usize,
    /// Requests that full prefill alone answers right.
    pub full_alone: usize,
    /// McNemar's exact p, two-sided: how likely a difference as large is where both are as good.
    pub mcnemar_p: f64,
}

/// A row of points.csv.
#[derive(Serialize)]
struct Row<'a> {
    method: &'a str,
    ratio: Option<f64>,
    task: &'a str,
    requests: usize,
    failures: usize,
    score: f64,
    score_low: f64,
    score_high: f64,
    difference_to_full: Option<f64>,
    difference_low: Option<f64>,
    difference_high: Option<f64>,
    right_alone: Option<usize>,
    full_alone: Option<usize>,
    mcnemar_p: Option<f64>,
    first_token_agrees: f64,
    median_ttft_ms: f64,
    selected_share: f64,
    measured_share: f64,
    moved_share: f64,
    median_received_bytes: u64,
}

/// All points: for each method its tasks in the order asked for, then all of them. The first method is the reference.
pub fn points(design: &Design, arms: &[Arm], answers: &Answers) -> Vec<Point> {
    let reference = &arms[0];
    let of = |arm: &Arm, task: &str| -> Vec<Option<Answer>> {
        (0..design.samples).map(|number| answers.get(task, number, arm).cloned()).collect()
    };
    let mut found = Vec::new();
    for arm in arms {
        let mut all: [Vec<Option<Answer>>; 2] = Default::default();
        for task in &design.tasks {
            let (own, full) = (of(arm, task), of(reference, task));
            found.push(point(arm, task, &own, (arm != reference).then_some(&full), design.seed));
            all[0].extend(own);
            all[1].extend(full);
        }
        let [own, full] = all;
        found.push(point(arm, ALL, &own, (arm != reference).then_some(&full), design.seed));
    }
    found
}

fn score(answer: &Option<Answer>) -> f64 {
    answer.as_ref().map_or(0.0, |answer| answer.score)
}

fn point(arm: &Arm, task: &str, own: &[Option<Answer>], full: Option<&Vec<Option<Answer>>>, seed: u64) -> Point {
    let scores: Vec<f64> = own.iter().map(score).collect();
    let replies: Vec<&Reply> = own.iter().flatten().filter_map(Answer::reply).collect();
    let share = |of: &dyn Fn(&Reply) -> f64| {
        let sum: f64 = replies.iter().map(|reply| of(reply)).sum();
        sum / replies.len().max(1) as f64
    };
    let rows = |of: fn(&Reply) -> usize| share(&|reply| of(reply) as f64 / reply.context_rows.max(1) as f64);
    let middle = |of: fn(&Reply) -> f64| median(&replies.iter().map(|reply| of(reply)).collect::<Vec<_>>());
    Point {
        method: arm.method.clone(),
        ratio: arm.ratio,
        exact: arm.is_exact(),
        task: task.to_owned(),
        requests: own.len(),
        failures: own.len() - replies.len(),
        score: mean(&scores, seed).expect("there is a request"),
        first_token_agrees: full.map_or(1.0, |full| agreement(own, full)),
        median_ttft_ms: middle(|reply| reply.ttft_ms),
        selected_share: if arm.is_exact() { 1.0 } else { rows(|reply| reply.selected_rows) },
        measured_share: rows(|reply| reply.measured_rows),
        moved_share: share(&|reply| f64::from(u8::from(reply.moved))),
        median_received_bytes: middle(|reply| reply.received_bytes as f64) as u64,
        against_full: full.map(|full| paired(&scores, full, seed)),
    }
}

/// Share of the requests that both have answered where their first tokens are the same.
fn agreement(own: &[Option<Answer>], full: &[Option<Answer>]) -> f64 {
    let first = |answer: &Option<Answer>| answer.as_ref().and_then(Answer::reply).map(|reply| reply.first_token);
    let both: Vec<bool> = own.iter().zip(full).filter_map(|(own, full)| Some(first(own)? == first(full)?)).collect();
    both.iter().filter(|same| **same).count() as f64 / both.len().max(1) as f64
}

fn paired(scores: &[f64], full: &[Option<Answer>], seed: u64) -> Paired {
    let theirs: Vec<f64> = full.iter().map(score).collect();
    let alone = |one: &[f64], other: &[f64]| one.iter().zip(other).filter(|(one, other)| one > other).count();
    let (right_alone, full_alone) = (alone(scores, &theirs), alone(&theirs, scores));
    Paired {
        difference: difference(scores, &theirs, seed).expect("there is a request"),
        right_alone,
        full_alone,
        mcnemar_p: mcnemar(right_alone, full_alone),
    }
}

/// All points as CSV.
///
/// # Errors
/// A row that cannot be written, which is a bug.
pub fn csv(points: &[Point]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for point in points {
        let pair = point.against_full.as_ref();
        writer.serialize(Row {
            method: &point.method,
            ratio: point.ratio,
            task: &point.task,
            requests: point.requests,
            failures: point.failures,
            score: point.score.mean,
            score_low: point.score.low,
            score_high: point.score.high,
            difference_to_full: pair.map(|pair| pair.difference.mean),
            difference_low: pair.map(|pair| pair.difference.low),
            difference_high: pair.map(|pair| pair.difference.high),
            right_alone: pair.map(|pair| pair.right_alone),
            full_alone: pair.map(|pair| pair.full_alone),
            mcnemar_p: pair.map(|pair| pair.mcnemar_p),
            first_token_agrees: point.first_token_agrees,
            median_ttft_ms: point.median_ttft_ms,
            selected_share: point.selected_share,
            measured_share: point.measured_share,
            moved_share: point.moved_share,
            median_received_bytes: point.median_received_bytes,
        })?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use tributary_coordinator::RequestSettings;
    use tributary_engine::RunConfig;
    use tributary_protocol::{Descriptor, REFERENCE};

    use super::*;
    use crate::answers::Outcome;

    fn arm(method: &'static Descriptor) -> Arm {
        let settings = RequestSettings { method, ..RequestSettings::default() };
        Arm::new(method.name.to_owned(), RunConfig { settings, threads: 1 })
    }

    fn design() -> Design {
        Design {
            suite: "hops".to_owned(),
            tasks: vec!["single".to_owned(), "vt2".to_owned()],
            samples: 4,
            seed: 0,
            documents: 8,
            document_tokens: 64,
            world: 1,
            threads: 1,
        }
    }

    fn answer(arm: &Arm, task: &str, sample: usize, score: f64) -> Answer {
        let reply = Reply {
            answer: String::new(),
            first_token: score as u32,
            selected_rows: 15,
            measured_rows: 5,
            context_rows: 100,
            ttft_ms: 1.0 + sample as f64,
            phases: Vec::new(),
            received_bytes: 10,
            moved: sample == 0,
        };
        Answer {
            task: task.to_owned(),
            sample,
            method: arm.method.clone(),
            ratio: arm.ratio,
            prompt_hash: String::new(),
            expected: String::new(),
            score,
            outcome: Outcome::Answered(reply),
        }
    }

    #[test]
    fn methods_stand_beside_full_on_the_same_requests_and_failures_count_as_wrong() {
        let (full, relay) = (arm(REFERENCE), arm(Descriptor::find("relay").unwrap()));
        let mut answers = Answers::default();
        for sample in 0..4 {
            answers.add(answer(&full, "single", sample, 1.0));
            answers.add(answer(&full, "vt2", sample, 0.0));
            // Right where full is, but for one that fails; and once where full is not.
            answers.add(answer(&relay, "single", sample, 1.0));
            answers.add(answer(&relay, "vt2", sample, f64::from(u8::from(sample == 1))));
        }
        let outcome = Outcome::Failed { failure: "no".to_owned(), exit_code: 70 };
        answers.add(Answer { outcome, score: 0.0, ..answer(&relay, "single", 3, 0.0) });
        let points = points(&design(), &[full, relay], &answers);
        let of = |method: &str, task: &str| points.iter().find(|p| p.method == method && p.task == task).unwrap();
        assert_eq!(points.len(), 6);
        assert_eq!((of("full", "all").score.mean, of("full", "all").against_full), (0.5, None));
        assert_eq!((of("full", "all").selected_share, of("full", "all").ratio), (1.0, None));
        let single = of("relay", "single");
        assert_eq!((single.requests, single.failures, single.score.mean), (4, 1, 0.75));
        assert_eq!((single.first_token_agrees, single.median_ttft_ms), (1.0, 2.0), "of the three that were answered");
        let all = of("relay", "all");
        let pair = all.against_full.unwrap();
        assert_eq!((pair.right_alone, pair.full_alone, pair.mcnemar_p), (1, 1, 1.0));
        assert_eq!((pair.difference.mean, all.requests, all.ratio), (0.0, 8, Some(0.15)));
        assert!((all.selected_share - 0.15).abs() < 1e-12 && (all.measured_share - 0.05).abs() < 1e-12, "{all:?}");
        assert!((all.moved_share - 2.0 / 7.0).abs() < 1e-12 && (all.first_token_agrees - 6.0 / 7.0).abs() < 1e-12);
        let text = csv(&points).unwrap();
        assert!(text.starts_with("method,ratio,task,requests,failures,score,"), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("full,,single,4,0,1.0,1.0,1.0,,,,,,,1.0,"), "{text}");
    }
}
