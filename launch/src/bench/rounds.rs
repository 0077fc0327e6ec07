//! The order of a study: warm-ups, then counted runs; in each round every point once, in a random order. A round that is
//! over is saved.

use std::time::{Duration, Instant};

use tributary_coordinator::study::order::order;
use tributary_coordinator::study::scaling::is_full;
use tributary_coordinator::study::schema::{Accuracy, Design, Failure, Point, Sample, Study};
use tributary_coordinator::study::statistics::summary;

/// Failures after which a point is given up.
const FAILURES: usize = 2;

/// What runs points.
pub trait Bed {
    /// One run of a point. After a failure the next run starts what it needs anew.
    ///
    /// # Errors
    /// Why it failed.
    fn run(&mut self, point: usize, run: usize) -> Result<Run, Failure>;

    /// Whether there can be a run after a failure.
    fn can_go_on(&self) -> bool;
}

/// One run.
pub struct Run {
    /// What is kept of it.
    pub sample: Sample,
    /// The first token's logits.
    pub logits: Vec<f32>,
}

/// Runs what is missing in a study. `tell` is told how far it is, `save` gets the study before the first run, after each
/// counted round, and when it ends early.
///
/// # Errors
/// What cannot be saved; a failure after which nothing can run.
pub fn measure(
    study: &mut Study,
    bed: &mut dyn Bed,
    tell: &dyn Fn(String),
    save: &mut dyn FnMut(&Study) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (warmups, repeats) = (study.design.warmups, study.design.repeats);
    let done = rounds_done(study);
    if done >= repeats {
        return Ok(());
    }
    // From here on the folder holds this study, whatever it held before.
    save(study)?;
    let mut rounds = Rounds::new(study, bed, tell, warmups + repeats - done);
    for round in 0..warmups {
        let gone_on = rounds.round(round, false);
        if gone_on.is_err() {
            save(rounds.study)?;
        }
        gone_on?;
    }
    for round in warmups + done..warmups + repeats {
        let gone_on = rounds.round(round, true);
        rounds.conclude();
        save(rounds.study)?;
        gone_on?;
    }
    Ok(())
}

/// Counted rounds that a study has behind it: every point that was not given up has run in them, or failed there.
pub fn rounds_done(study: &Study) -> usize {
    let Design { warmups, repeats, seed, .. } = study.design;
    let count = study.points.len();
    let is_done = |round: &usize| {
        let places = order(seed, *round, count).into_iter().enumerate();
        places.into_iter().all(|(place, point)| is_over(&study.points[point], round * count + place))
    };
    (warmups..warmups + repeats).take_while(is_done).count()
}

/// Whether a run of a point is not to come any more: it is there already, failures included, or the point was given up.
fn is_over(point: &Point, run: usize) -> bool {
    point.failures.len() >= FAILURES
        || point.samples.iter().any(|sample| sample.run == run)
        || point.failures.iter().any(|failure| failure.run == run)
}

struct Rounds<'a> {
    study: &'a mut Study,
    bed: &'a mut dyn Bed,
    tell: &'a dyn Fn(String),
    logits: Vec<Option<Vec<f32>>>,
    /// How long each point's last run took.
    took: Vec<Option<Duration>>,
    rounds_left: usize,
    runs_done: usize,
    runs: usize,
}

impl<'a> Rounds<'a> {
    fn new(study: &'a mut Study, bed: &'a mut dyn Bed, tell: &'a dyn Fn(String), rounds: usize) -> Self {
        let count = study.points.len();
        let (logits, took) = (vec![None; count], vec![None; count]);
        Self { study, bed, tell, logits, took, rounds_left: rounds, runs_done: 0, runs: rounds * count }
    }

    /// Every point once, but for those that were given up, and for runs that an interrupted study has already.
    fn round(&mut self, round: usize, counted: bool) -> anyhow::Result<()> {
        let count = self.study.points.len();
        self.rounds_left -= 1;
        for (place, point) in order(self.study.design.seed, round, count).into_iter().enumerate() {
            let run = round * count + place;
            if !is_over(&self.study.points[point], run) {
                (self.tell)(self.progress(point, place, counted));
                self.one(point, run, counted)?;
            }
            self.runs_done += 1;
        }
        Ok(())
    }

    fn one(&mut self, point: usize, run: usize, counted: bool) -> anyhow::Result<()> {
        let began = Instant::now();
        let result = self.bed.run(point, run);
        self.took[point] = Some(began.elapsed());
        let entry = &mut self.study.points[point];
        match result {
            Ok(run) => {
                self.logits[point].get_or_insert(run.logits);
                if counted {
                    entry.samples.push(run.sample);
                }
                Ok(())
            }
            Err(failure) => {
                tracing::warn!(point = entry.id, run, "failed: {}", failure.cause);
                entry.failures.push(failure.clone());
                if self.bed.can_go_on() { Ok(()) } else { Err(Over(failure).into()) }
            }
        }
    }

    /// How far it is, and how long the rest may take: each point as long as its last run.
    fn progress(&self, point: usize, place: usize, counted: bool) -> String {
        let known: Vec<f64> = self.took.iter().flatten().map(Duration::as_secs_f64).collect();
        let what = if counted { "" } else { "warm-up, " };
        let head = format!("{what}run {} of {}: {}", self.runs_done + 1, self.runs, self.study.points[point].id);
        if known.is_empty() {
            return head;
        }
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let a_round: f64 = self.took.iter().map(|took| took.map_or(mean, |took| took.as_secs_f64())).sum();
        let this_round = a_round * (self.took.len() - place) as f64 / self.took.len() as f64;
        let left_s = this_round + a_round * self.rounds_left as f64;
        format!("{head}; about {} left", duration(left_s))
    }

    /// What the samples so far come to.
    fn conclude(&mut self) {
        for index in 0..self.study.points.len() {
            let tokens = self.study.points[index].context_tokens;
            let full = self.study.points.iter().position(|point| is_full(point) && point.context_tokens == tokens);
            let reference = full.and_then(|full| self.logits[full].as_deref());
            let accuracy = self.logits[index].as_deref().zip(reference);
            let point = &mut self.study.points[index];
            let times: Vec<f64> = point.samples.iter().map(|sample| sample.ttft_ms).collect();
            point.summary = summary(&times);
            point.accuracy = accuracy.map(|(own, full)| Accuracy::between(own, full)).or(point.accuracy.take());
        }
    }
}

/// A duration for a reader.
pub fn duration(seconds: f64) -> String {
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// A failure after which nothing can run.
#[derive(Debug)]
pub struct Over(pub Failure);

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; what was measured before is saved: --resume goes on", self.0.cause)
    }
}

impl std::error::Error for Over {}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tributary_coordinator::study::schema::{Cache, Prediction, Provenance, SCHEMA};

    use super::*;

    fn study(methods: &[&str], warmups: usize, repeats: usize) -> Study {
        let point = |method: &&str| Point {
            id: (*method).to_owned(),
            method: (*method).to_owned(),
            exact: true,
            context_tokens: 512,
            world: 1,
            ratio: None,
            exchange: None,
            cache: Cache::Cold,
            shares_cores: false,
            samples: Vec::new(),
            failures: Vec::new(),
            summary: None,
            predicted: Prediction::default(),
            accuracy: None,
        };
        let design = Design { warmups, repeats, seed: 3, ..Design::default() };
        let points = methods.iter().map(point).collect();
        Study { schema: SCHEMA.to_owned(), provenance: Provenance::default(), design, points }
    }

    /// A bed that takes `run` milliseconds, remembers what ran, and fails at some runs.
    #[derive(Default)]
    struct Fake {
        ran: Vec<(usize, usize)>,
        fails: Vec<usize>,
        ends_with_failure: bool,
    }

    impl Bed for Fake {
        fn run(&mut self, point: usize, run: usize) -> Result<Run, Failure> {
            self.ran.push((point, run));
            if self.fails.contains(&run) {
                return Err(Failure { run, cause: "broken".to_owned(), exit_code: 69 });
            }
            let sample = Sample { run, ttft_ms: run as f64, ..Sample::default() };
            Ok(Run { sample, logits: vec![1.0, 2.0 + point as f32] })
        }

        fn can_go_on(&self) -> bool {
            !self.ends_with_failure
        }
    }

    fn run(study: &mut Study, bed: &mut Fake) -> (anyhow::Result<()>, usize) {
        let mut saved = 0;
        let result = measure(study, bed, &|_| (), &mut |_| {
            saved += 1;
            Ok(())
        });
        (result, saved)
    }

    #[test]
    fn every_round_holds_every_point_once_and_warm_ups_do_not_count() {
        let (mut study, mut bed) = (study(&["full", "ring", "all-gather"], 2, 5), Fake::default());
        let (result, saved) = run(&mut study, &mut bed);
        assert!(result.is_ok());
        assert_eq!(saved, 1 + 5, "before the first run and after each counted round");
        assert_eq!(bed.ran.iter().map(|(_, run)| *run).collect::<Vec<_>>(), (0..21).collect::<Vec<_>>());
        for round in bed.ran.chunks(3) {
            let mut points: Vec<usize> = round.iter().map(|(point, _)| *point).collect();
            points.sort_unstable();
            assert_eq!(points, [0, 1, 2]);
        }
        assert!(bed.ran.chunks(3).any(|round| round[0].0 != bed.ran[0].0), "the order changes");
        for point in &study.points {
            assert_eq!(point.samples.len(), 5);
            assert!(point.samples.iter().all(|sample| sample.run >= 6), "{point:?}");
            assert_eq!(point.summary.as_ref().map(|summary| summary.count), Some(5));
        }
        let difference = |index: usize| study.points[index].accuracy.as_ref().map(|found| found.max_logit_difference);
        assert_eq!((difference(0), difference(2)), (Some(0.0), Some(2.0)));
    }

    #[test]
    fn failures_are_listed_and_a_point_that_fails_twice_is_given_up() {
        let methods = ["full", "ring"];
        let at = |point: usize, round: usize| 2 * round + usize::from(order(3, round, 2)[0] != point);
        let mut bed = Fake { fails: vec![at(1, 1), at(0, 2), at(0, 3)], ..Fake::default() };
        let mut study = study(&methods, 1, 5);
        let (result, _) = run(&mut study, &mut bed);
        assert!(result.is_ok());
        let counts = |index: usize| (study.points[index].samples.len(), study.points[index].failures.len());
        assert_eq!((counts(0), counts(1)), ((1, 2), (4, 1)));
        assert_eq!(study.points[1].failures[0], Failure { run: at(1, 1), cause: "broken".into(), exit_code: 69 });
    }

    #[test]
    fn a_study_goes_on_where_it_was_saved() {
        let (mut whole, mut bed) = (study(&["full", "ring"], 1, 5), Fake::default());
        assert!(run(&mut whole, &mut bed).0.is_ok());
        let interrupted = RefCell::new(None);
        let mut first = study(&["full", "ring"], 1, 5);
        let stopped = measure(&mut first, &mut Fake::default(), &|_| (), &mut |study| {
            if rounds_done(study) == 2 {
                *interrupted.borrow_mut() = Some(study.clone());
                anyhow::bail!("interrupted");
            }
            Ok(())
        });
        assert!(stopped.is_err());
        let mut resumed = interrupted.into_inner().expect("it was saved");
        let mut bed = Fake::default();
        assert!(run(&mut resumed, &mut bed).0.is_ok());
        assert_eq!(bed.ran.len(), 2 + 6, "warm-ups again, and what was missing");
        assert_eq!(resumed, whole, "the same runs in the same order");
        let mut bed = Fake::default();
        assert!(run(&mut resumed, &mut bed).0.is_ok());
        assert!(bed.ran.is_empty(), "nothing is missing");
    }

    #[test]
    fn where_nothing_can_run_after_a_failure_the_study_is_saved_and_ends() {
        // One warm-up and one counted round of two runs; of the second, both orders of success and failure.
        for fails in [4, 5] {
            let mut bed = Fake { fails: vec![fails], ends_with_failure: true, ..Fake::default() };
            let mut study = study(&["full", "ring"], 1, 5);
            let (result, saved) = run(&mut study, &mut bed);
            assert_eq!(saved, 1 + 2);
            assert!(result.unwrap_err().downcast::<Over>().is_ok());
            assert_eq!(study.points.iter().map(|point| point.failures.len()).sum::<usize>(), 1);
            assert_eq!(rounds_done(&study), if fails == 4 { 1 } else { 2 });

            let mut bed = Fake { ends_with_failure: true, ..Fake::default() };
            assert!(run(&mut study, &mut bed).0.is_ok());
            let counted: Vec<usize> = bed.ran[2..].iter().map(|(_, run)| *run).collect();
            assert_eq!(counted, (fails + 1..12).collect::<Vec<_>>(), "what was not run, and nothing twice");
            let samples = study.points.iter().flat_map(|point| point.samples.iter().map(|sample| sample.run));
            let mut samples: Vec<usize> = samples.collect();
            samples.sort_unstable();
            assert_eq!(samples, (2..12).filter(|run| *run != fails).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_failure_in_a_warm_up_is_saved() {
        let mut bed = Fake { fails: vec![1], ends_with_failure: true, ..Fake::default() };
        let mut study = study(&["full", "ring"], 1, 2);
        let mut failures = Vec::new();
        let result = measure(&mut study, &mut bed, &|_| (), &mut |study| {
            failures.push(study.points.iter().map(|point| point.failures.len()).sum::<usize>());
            Ok(())
        });
        assert!(result.is_err());
        assert_eq!(failures, [0, 1], "the empty study, then the failure");
    }

    #[test]
    fn a_point_alone_does_not_repeat_the_number_of_a_failed_run() {
        let mut bed = Fake { fails: vec![1], ends_with_failure: true, ..Fake::default() };
        let mut study = study(&["ring"], 1, 3);
        assert!(run(&mut study, &mut bed).0.is_err());
        assert!(run(&mut study, &mut Fake::default()).0.is_ok());
        let runs: Vec<usize> = study.points[0].samples.iter().map(|sample| sample.run).collect();
        assert_eq!((runs, study.points[0].failures[0].run), (vec![2, 3], 1));
    }

    #[test]
    fn durations_are_short() {
        assert_eq!([duration(12.3), duration(600.0), duration(36_000.0)], ["12 s", "10 min", "10.0 h"]);
    }
}
