//! The rounds of a study on a bed that only counts.

use std::cell::RefCell;

use crate::schema::{Cache, Prediction, Provenance, SCHEMA};

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
    Study { schema: SCHEMA.to_owned(), provenance: Provenance::default(), design, points, busy: Vec::new() }
}

/// A bed that takes `run` milliseconds, records its runs, and fails at some.
#[derive(Default)]
struct Fake {
    ran: Vec<(usize, usize)>,
    fails: Vec<usize>,
    ends_with_failure: bool,
}

impl PointRunner for Fake {
    fn run(&mut self, point: usize, run: usize) -> std::result::Result<Run, Failure> {
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

fn run(study: &mut Study, runner: &mut Fake) -> (Result<()>, usize) {
    let mut saved = 0;
    let result = measure(study, runner, &|_, _| (), &mut |_| {
        saved += 1;
        Ok(())
    });
    (result, saved)
}

#[test]
fn every_round_holds_every_point_once_and_warm_ups_do_not_count() {
    let (mut study, mut runner) = (study(&["full", "ring", "all-gather"], 2, 5), Fake::default());
    let (result, saved) = run(&mut study, &mut runner);
    assert!(result.is_ok());
    assert_eq!(saved, 1 + 5, "before the first run and after each counted round");
    assert_eq!(runner.ran.iter().map(|(_, run)| *run).collect::<Vec<_>>(), (0..21).collect::<Vec<_>>());
    for round in runner.ran.chunks(3) {
        let mut points: Vec<usize> = round.iter().map(|(point, _)| *point).collect();
        points.sort_unstable();
        assert_eq!(points, [0, 1, 2]);
    }
    assert!(runner.ran.chunks(3).any(|round| round[0].0 != runner.ran[0].0), "the order changes");
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
    let mut runner = Fake { fails: vec![at(1, 1), at(0, 2), at(0, 3)], ..Fake::default() };
    let mut study = study(&methods, 1, 5);
    let (result, _) = run(&mut study, &mut runner);
    assert!(result.is_ok());
    let counts = |index: usize| (study.points[index].samples.len(), study.points[index].failures.len());
    assert_eq!((counts(0), counts(1)), ((1, 2), (4, 1)));
    assert_eq!(study.points[1].failures[0], Failure { run: at(1, 1), cause: "broken".into(), exit_code: 69 });
}

#[test]
fn a_study_goes_on_where_it_was_saved() {
    let (mut whole, mut runner) = (study(&["full", "ring"], 1, 5), Fake::default());
    assert!(run(&mut whole, &mut runner).0.is_ok());
    let interrupted = RefCell::new(None);
    let mut first = study(&["full", "ring"], 1, 5);
    let stopped = measure(&mut first, &mut Fake::default(), &|_, _| (), &mut |study| {
        if rounds_done(study) == 2 {
            *interrupted.borrow_mut() = Some(study.clone());
            return Err(Error::Interrupted { exit_code: 70, reason: "interrupted".to_owned() });
        }
        Ok(())
    });
    assert!(stopped.is_err());
    let mut resumed = interrupted.into_inner().expect("it was saved");
    let mut runner = Fake::default();
    assert!(run(&mut resumed, &mut runner).0.is_ok());
    assert_eq!(runner.ran.len(), 2 + 6, "warm-ups again, and what was missing");
    assert_eq!(resumed, whole, "the same runs in the same order");
    let mut runner = Fake::default();
    assert!(run(&mut resumed, &mut runner).0.is_ok());
    assert!(runner.ran.is_empty(), "nothing is missing");
}

#[test]
fn where_nothing_can_run_after_a_failure_the_study_is_saved_and_ends() {
    // One warm-up and one counted round of two runs; of the second, both orders of success and
    // failure.
    for fails in [4, 5] {
        let mut runner = Fake { fails: vec![fails], ends_with_failure: true, ..Fake::default() };
        let mut study = study(&["full", "ring"], 1, 5);
        let (result, saved) = run(&mut study, &mut runner);
        assert_eq!(saved, 1 + 2);
        assert!(matches!(result, Err(Error::Interrupted { exit_code: 69, .. })), "{result:?}");
        assert_eq!(study.points.iter().map(|point| point.failures.len()).sum::<usize>(), 1);
        assert_eq!(rounds_done(&study), if fails == 4 { 1 } else { 2 });

        let mut runner = Fake { ends_with_failure: true, ..Fake::default() };
        assert!(run(&mut study, &mut runner).0.is_ok());
        let counted: Vec<usize> = runner.ran[2..].iter().map(|(_, run)| *run).collect();
        assert_eq!(counted, (fails + 1..12).collect::<Vec<_>>(), "what was not run, and nothing twice");
        let samples = study.points.iter().flat_map(|point| point.samples.iter().map(|sample| sample.run));
        let mut samples: Vec<usize> = samples.collect();
        samples.sort_unstable();
        assert_eq!(samples, (2..12).filter(|run| *run != fails).collect::<Vec<_>>());
    }
}

#[test]
fn a_failure_in_a_warm_up_is_saved() {
    let mut runner = Fake { fails: vec![1], ends_with_failure: true, ..Fake::default() };
    let mut study = study(&["full", "ring"], 1, 2);
    let mut failures = Vec::new();
    let result = measure(&mut study, &mut runner, &|_, _| (), &mut |study| {
        failures.push(study.points.iter().map(|point| point.failures.len()).sum::<usize>());
        Ok(())
    });
    assert!(result.is_err());
    assert_eq!(failures, [0, 1], "the empty study, then the failure");
}

#[test]
fn a_point_alone_does_not_repeat_the_number_of_a_failed_run() {
    let mut runner = Fake { fails: vec![1], ends_with_failure: true, ..Fake::default() };
    let mut study = study(&["ring"], 1, 3);
    assert!(run(&mut study, &mut runner).0.is_err());
    assert!(run(&mut study, &mut Fake::default()).0.is_ok());
    let runs: Vec<usize> = study.points[0].samples.iter().map(|sample| sample.run).collect();
    assert_eq!((runs, study.points[0].failures[0].run), (vec![2, 3], 1));
}

#[test]
fn durations_are_short() {
    assert_eq!([duration(12.3), duration(600.0), duration(36_000.0)], ["12 s", "10 min", "10.0 h"]);
}
