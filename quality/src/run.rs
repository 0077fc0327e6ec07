//! The order of an evaluation: request after request, and on each all methods, in an order that is drawn anew. An answer is kept
//! before the next is asked for.

use std::time::{Duration, Instant};

use tributary_engine::{Engine, one_line};

use crate::answers::{Answer, AnswerFile, Answers, Outcome, Reply};
use crate::design::Arm;
use crate::error::{Error, Result};
use crate::evaluation::{Evaluation, Request};
use crate::output::Output;
use crate::random::Random;

/// A request that got no answer.
struct Failure {
    cause: String,
    exit_code: u8,
    /// Whether others can be asked after it.
    can_go_on: bool,
}

/// Asks for every answer that is not there yet, and gives all. `tell` is told how far it is, in words and from 0 to 1.
///
/// # Errors
/// What cannot be written; a failure after which nothing can run.
pub fn run(
    evaluation: &Evaluation,
    mut engine: Engine<'_>,
    output: &Output,
    tell: &dyn Fn(String, f64),
) -> Result<Answers> {
    let mut answers = Answers::default();
    output.earlier.iter().flat_map(|earlier| &earlier.answers).for_each(|answer| answers.add(answer.clone()));
    let mut file = AnswerFile::open(&output.answers())?;
    ask_all(evaluation, &mut answers, &mut |request, arm| ask(&mut engine, request, arm), &mut file, tell)?;
    engine.end()?;
    Ok(answers)
}

/// Asks one request with one method, on ranks that are started where they do not run.
fn ask(engine: &mut Engine<'_>, request: &Request, arm: &Arm) -> std::result::Result<Reply, Failure> {
    let run_config = request.run_config(arm);
    let answered = engine.start(&run_config).and_then(|()| engine.answer(&request.question, &run_config));
    answered.as_ref().map(Reply::of).map_err(|error| {
        let alone = matches!(error, tributary_engine::Error::Coordinator(tributary_coordinator::Error::Refused(_)));
        let can_go_on = alone || engine.can_start_anew();
        Failure { cause: one_line(error), exit_code: error.exit_code(), can_go_on }
    })
}

fn ask_all(
    evaluation: &Evaluation,
    answers: &mut Answers,
    ask: &mut dyn FnMut(&Request, &Arm) -> std::result::Result<Reply, Failure>,
    file: &mut AnswerFile,
    tell: &dyn Fn(String, f64),
) -> Result<()> {
    let (all, began) = (evaluation.answers(), Instant::now());
    let (mut done, mut asked) = (0, 0);
    for request in &evaluation.requests {
        for arm in order(evaluation, request) {
            let (cell, number) = (&request.cell, request.number);
            // What failed is asked once more.
            if answers.get(cell, number, arm).is_none_or(|answer| answer.reply().is_none()) {
                let left = left(began.elapsed(), asked, all - done);
                let what = format!("answer {} of {all}: {cell}, request {number}, {}{left}", done + 1, arm.label());
                tell(what, done as f64 / all as f64);
                let reply = ask(request, arm);
                let can_go_on = reply.as_ref().err().is_none_or(|failure| failure.can_go_on);
                let answer = Answer::new(request, arm, outcome(reply));
                file.add(&answer)?;
                if let Outcome::Failed { failure, exit_code } = &answer.outcome {
                    tracing::warn!(task = cell.to_string(), number, method = arm.label(), "failed: {failure}");
                    if !can_go_on {
                        let reason = format!("{failure}; what was answered before is kept: --resume goes on");
                        return Err(Error::Interrupted { exit_code: *exit_code, reason });
                    }
                }
                answers.add(answer);
                asked += 1;
            }
            done += 1;
        }
    }
    Ok(())
}

fn outcome(reply: std::result::Result<Reply, Failure>) -> Outcome {
    match reply {
        Ok(reply) => Outcome::Answered(reply),
        Err(Failure { cause: failure, exit_code, .. }) => Outcome::Failed { failure, exit_code },
    }
}

/// The methods in the order in which they answer a request.
fn order<'a>(evaluation: &'a Evaluation, request: &Request) -> Vec<&'a Arm> {
    let (seed, task, number) = (evaluation.design.seed, &request.cell, request.number);
    let mut arms: Vec<&Arm> = evaluation.arms.iter().collect();
    Random::of(&format!("order {seed} {task} {number}")).shuffle(&mut arms);
    arms
}

/// How long the rest may take, as long an answer as those before.
fn left(elapsed: Duration, asked: usize, left: usize) -> String {
    if asked == 0 {
        return String::new();
    }
    format!("; about {} left", duration(elapsed.as_secs_f64() * left as f64 / asked as f64))
}

/// A length of time for a reader.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tributary_coordinator::RequestSettings;
    use tributary_engine::{Question, RunConfig, Synthetic};

    use super::*;
    use crate::answers;
    use crate::design::Asked;
    use crate::score::Metric;
    use crate::suite::{Cell, Scoring};
    use crate::suites;

    fn evaluation() -> Evaluation {
        let asked = Asked {
            suite: "hops".to_owned(),
            tasks: vec!["single".to_owned()],
            samples: 2,
            seed: 1,
            world: 1,
            threads: 1,
            ..Asked::default()
        };
        let request = |number: usize| Request {
            cell: Cell::of("single"),
            number,
            id: None,
            question: Question::Random(Synthetic { chunks: 1, chunk_tokens: 1, query_tokens: 1 }, 0),
            scoring: Scoring::new(Metric::BeginsWith, vec!["1 2 3".to_owned()]),
            prompt_hash: number.to_string(),
            prompt_tokens: 2,
            answer_tokens: 4,
        };
        let arm =
            |method: &str| Arm::new(method.to_owned(), RunConfig { settings: RequestSettings::default(), threads: 1 });
        Evaluation {
            design: suites::open(&asked).unwrap().0,
            arms: vec![arm("a"), arm("b")],
            cells: vec![(Cell::of("single"), 2)],
            requests: vec![request(0), request(1)],
            longest: Vec::new(),
        }
    }

    fn reply(answer: &str) -> Reply {
        Reply {
            answer: answer.to_owned(),
            first_token: 1,
            selected_rows: 1,
            measured_rows: 0,
            context_rows: 2,
            ttft_ms: 1.0,
            phases: Vec::new(),
            received_bytes: 0,
            moved: false,
        }
    }

    #[test]
    fn every_answer_is_kept_failures_too_and_what_is_there_is_not_asked_again() {
        let (folder, evaluation) = (tempfile::tempdir().unwrap(), evaluation());
        let path = folder.path().join("answers.jsonl");
        let (asked, told) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let run = |fails: &dyn Fn(&str, usize) -> Option<bool>, answers: &mut Answers| {
            let mut ask = |request: &Request, arm: &Arm| {
                asked.borrow_mut().push(format!("{}{}", arm.method, request.number));
                match fails(&arm.method, request.number) {
                    None => Ok(reply("1 2 3 .")),
                    Some(can_go_on) => Err(Failure { cause: "no".to_owned(), exit_code: 69, can_go_on }),
                }
            };
            let tell = |what: String, share: f64| told.borrow_mut().push((what, share));
            ask_all(&evaluation, answers, &mut ask, &mut AnswerFile::open(&path).unwrap(), &tell)
        };
        let mut answers = Answers::default();
        run(&|method, number| (method == "b" && number == 0).then_some(true), &mut answers).unwrap();
        assert_eq!(asked.take().len(), 4);
        let kept = answers::read(&path).unwrap().0;
        assert_eq!((kept.len(), kept.iter().filter(|answer| answer.reply().is_none()).count()), (4, 1));
        assert!(kept.iter().all(|answer| answer.score == f64::from(u8::from(answer.reply().is_some()))));
        assert!(told.take()[3].0.contains("; about 0 s left"));

        let error = run(&|_, _| Some(false), &mut answers).unwrap_err();
        assert_eq!(
            (error.exit_code(), asked.take()),
            (69, vec!["b0".to_owned()]),
            "only what failed, and it is the end"
        );
        assert!(error.to_string().contains("--resume"), "{error}");
        run(&|_, _| None, &mut answers).unwrap();
        assert_eq!(asked.take(), ["b0"]);
        assert_eq!(answers::read(&path).unwrap().0.len(), 6);
    }
}
