//! The order of an evaluation: request after request, and on each full prefill and then all other
//! methods, in a random order. An answer is kept before the next is asked for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tributary_charts::statistics::kl_nats;
use tributary_engine::{Engine, one_line};
use tributary_protocol::KeptRows;

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

/// Result of a method.
struct Given {
    reply: Reply,
    /// The first token's logits.
    logits: Vec<f32>,
    /// The rows of the prompt that decoding keeps, where it does not keep all.
    kept: Option<KeptRows>,
}

/// Function that asks one request with one method for at most the given number of tokens.
type Ask<'a> = &'a mut dyn FnMut(&Request, &Arm, usize) -> std::result::Result<Given, Failure>;

/// Asks for every missing answer, and gives all. `tell` gets the progress, in words and from 0
/// to 1.
///
/// # Errors
/// Returns an error if a file cannot be written, or if a failure leaves nothing that can run.
pub fn run(
    evaluation: &Evaluation,
    engine: &mut Engine<'_>,
    output: &Output,
    tell: &dyn Fn(String, f64),
) -> Result<Answers> {
    let mut answers = Answers::default();
    output.earlier.iter().flat_map(|earlier| &earlier.answers).for_each(|answer| answers.add(answer.clone()));
    let file = AnswerFile::open(&output.answers())?;
    let mut ask = |request: &Request, arm: &Arm, tokens: usize| ask(engine, request, arm, tokens);
    let mut asking = Asking { evaluation, answers: &mut answers, file, tell, began: Instant::now(), done: 0, asked: 0 };
    evaluation.requests.iter().try_for_each(|request| asking.request(request, &mut ask))?;
    Ok(answers)
}

/// Asks one request with one method, on ranks that are started where they do not run.
fn ask(engine: &mut Engine<'_>, request: &Request, arm: &Arm, tokens: usize) -> std::result::Result<Given, Failure> {
    let mut run_config = request.run_config(arm);
    run_config.settings.max_tokens = tokens;
    // Scores come with the rows that are kept.
    (run_config.settings.returns.logits, run_config.settings.returns.scores) = (true, arm.evicts());
    let answered = engine.start(&run_config).and_then(|()| engine.answer(&request.question, &run_config));
    let given = answered.map(|answered| Given {
        reply: Reply::of(&answered),
        kept: answered.answer.outcome.kept.map(|kept| *kept),
        logits: answered.answer.outcome.logits.unwrap_or_default(),
    });
    given.map_err(|error| {
        let alone = matches!(error, tributary_engine::Error::Coordinator(tributary_coordinator::Error::Refused(_)));
        let can_go_on = alone || engine.can_start_anew();
        Failure { cause: one_line(&error), exit_code: error.exit_code(), can_go_on }
    })
}

/// An evaluation in progress.
struct Asking<'a> {
    evaluation: &'a Evaluation,
    answers: &'a mut Answers,
    file: AnswerFile,
    tell: &'a dyn Fn(String, f64),
    began: Instant,
    /// Answers that are there or were asked for.
    done: usize,
    /// Those that were asked for.
    asked: usize,
}

impl Asking<'_> {
    /// Asks a request with every method that has not answered it. The first tokens of all are
    /// measured against full prefill's, which is kept while its request lasts; where it was
    /// answered before, it is asked for that token alone, and nothing is written.
    fn request(&mut self, request: &Request, ask: Ask<'_>) -> Result<()> {
        let (cell, number) = (&request.cell, request.number);
        let arms = order(self.evaluation, request);
        // A failed request is asked once more.
        let is_missing =
            |answers: &Answers, arm: &Arm| answers.get(cell, number, arm).is_none_or(|answer| answer.reply().is_none());
        let mut full: Option<Vec<f32>> = None;
        if let Some((reference, others)) = arms.split_first() {
            let others_miss = others.iter().any(|arm| is_missing(self.answers, arm));
            if others_miss && !is_missing(self.answers, reference) {
                self.tell(&format!("{cell}, request {number}: the first token of {} once more", reference.label()));
                full = self.first_token(request, reference, ask)?;
            }
        }
        let mut ideal = Ideal::new();
        for arm in arms {
            if is_missing(self.answers, arm) {
                let given = self.one(request, arm, (full.as_deref(), &ideal), ask)?;
                if let Some(kept) = given.as_ref().and_then(|given| given.kept.clone()).filter(|_| arm.is_ideal()) {
                    ideal.insert(arm.keeping(), kept);
                }
                if *arm == self.evaluation.arms[0] {
                    full = given.map(|given| given.logits).filter(|logits| !logits.is_empty());
                }
            }
            self.done += 1;
        }
        Ok(())
    }

    /// Asks, and keeps the answer, compared with full prefill's first token and the rows of an
    /// ideal eviction. Gives it.
    fn one(
        &mut self,
        request: &Request,
        arm: &Arm,
        (full, ideal): (Option<&[f32]>, &Ideal),
        ask: Ask<'_>,
    ) -> Result<Option<Given>> {
        let all = self.evaluation.answers();
        let (cell, number) = (&request.cell, request.number);
        let left = left(self.began.elapsed(), self.asked, all - self.done);
        self.tell(&format!("answer {} of {all}: {cell}, request {number}, {}{left}", self.done + 1, arm.label()));
        self.asked += 1;
        match ask(request, arm, request.answer_tokens) {
            Ok(mut given) => {
                let Given { reply, logits, kept } = &mut given;
                reply.kl_nats = full.filter(|_| !logits.is_empty()).map(|full| kl_nats(full, logits));
                if let Some(evicted) = reply.decoding.as_mut().and_then(|decoding| decoding.evicted.as_mut()) {
                    evicted.recall =
                        kept.as_ref().zip(ideal.get(&arm.keeping())).map(|(kept, ideal)| recall(kept, ideal));
                }
                self.keep(Answer::new(request, arm, Outcome::Answered(Box::new(reply.clone()))))?;
                Ok(Some(given))
            }
            Err(failure) => {
                let Failure { cause, exit_code, .. } = &failure;
                let outcome = Outcome::Failed { failure: cause.clone(), exit_code: *exit_code };
                self.keep(Answer::new(request, arm, outcome))?;
                self.failed(request, arm, &failure)?;
                Ok(None)
            }
        }
    }

    /// The logits of the first token alone, of a method that has answered before; nothing where it
    /// fails this time.
    fn first_token(&self, request: &Request, arm: &Arm, ask: Ask<'_>) -> Result<Option<Vec<f32>>> {
        match ask(request, arm, 1) {
            Ok(given) => Ok(Some(given.logits).filter(|logits| !logits.is_empty())),
            Err(failure) => self.failed(request, arm, &failure).map(|()| None),
        }
    }

    /// Says that a method failed.
    ///
    /// # Errors
    /// Returns an error if no further request can run after this failure.
    fn failed(&self, request: &Request, arm: &Arm, failure: &Failure) -> Result<()> {
        let Failure { cause, exit_code, can_go_on } = failure;
        let (task, number) = (request.cell.to_string(), request.number);
        tracing::warn!(task, number, method = arm.label(), "failed: {cause}");
        if *can_go_on {
            return Ok(());
        }
        let reason = format!("{cause}; what was answered before is kept: --resume goes on");
        Err(Error::Interrupted { exit_code: *exit_code, reason })
    }

    fn keep(&mut self, answer: Answer) -> Result<()> {
        self.file.add(&answer)?;
        self.answers.add(answer);
        Ok(())
    }

    fn tell(&self, what: &str) {
        (self.tell)(what.to_owned(), self.done as f64 / self.evaluation.answers() as f64);
    }
}

/// Rows that ideal evictions of a request keep, by their method and size.
type Ideal = HashMap<(String, String), KeptRows>;

/// The share of the rows of an ideal eviction that another one keeps too, the mean over layers and
/// KV heads.
fn recall(KeptRows(kept): &KeptRows, KeptRows(ideal): &KeptRows) -> f64 {
    let heads = kept.iter().flatten().zip(ideal.iter().flatten());
    let shares = heads.filter(|(_, ideal)| !ideal.is_empty()).map(|(kept, ideal)| {
        let found = ideal.iter().filter(|row| kept.contains(row)).count();
        found as f64 / ideal.len() as f64
    });
    let (count, sum) = shares.fold((0, 0.0), |(count, sum), share| (count + 1, sum + share));
    sum / f64::from(count.max(1))
}

/// The methods in the order in which they answer a request. Full prefill is first, since the
/// others' first tokens are compared with its. Ideal evictions follow, since other evictions are
/// compared with theirs. The rest has a random order.
fn order<'a>(evaluation: &'a Evaluation, request: &Request) -> Vec<&'a Arm> {
    let (seed, task, number) = (evaluation.design.seed, &request.cell, request.number);
    let mut arms: Vec<&Arm> = evaluation.arms.iter().collect();
    if let Some((_, others)) = arms.split_first_mut() {
        Random::of(&format!("order {seed} {task} {number}")).shuffle(others);
        others.sort_by_key(|arm| !arm.is_ideal());
    }
    arms
}

/// Expected time of the rest, by the mean time of the answers so far.
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

    use super::*;
    use crate::answers;
    use crate::kit;
    use crate::suite::Cell;

    fn evaluation() -> Evaluation {
        kit::evaluation(vec![kit::arm("a", None), kit::arm("b", None)], 2)
    }

    /// Runs on made-up answers, some of which fail; gives the asked methods and numbers of tokens.
    fn run(
        evaluation: &Evaluation,
        answers: &mut Answers,
        path: &std::path::Path,
        fails: &dyn Fn(&str, usize) -> Option<bool>,
    ) -> (Vec<(String, usize)>, Vec<String>, Result<()>) {
        let (mut asked, told) = (Vec::new(), RefCell::new(Vec::new()));
        let mut ask = |request: &Request, arm: &Arm, tokens: usize| {
            asked.push((format!("{}{}", arm.method, request.number), tokens));
            match fails(&arm.method, request.number) {
                // The first method's first token is even, the second's three to one.
                None => Ok(Given {
                    reply: Reply { answer: "1 2 3 .".to_owned(), ..kit::reply() },
                    logits: if arm.method == "a" { vec![0.0, 0.0] } else { vec![3.0_f32.ln(), 0.0] },
                    kept: None,
                }),
                Some(can_go_on) => Err(Failure { cause: "no".to_owned(), exit_code: 69, can_go_on }),
            }
        };
        let tell = |what: String, _: f64| told.borrow_mut().push(what);
        let file = AnswerFile::open(path).unwrap();
        let mut asking = Asking { evaluation, answers, file, tell: &tell, began: Instant::now(), done: 0, asked: 0 };
        let result = evaluation.requests.iter().try_for_each(|request| asking.request(request, &mut ask));
        (asked, told.into_inner(), result)
    }

    #[test]
    fn every_answer_is_kept_failures_too_and_what_is_there_is_not_asked_again() {
        let (folder, evaluation) = (tempfile::tempdir().unwrap(), evaluation());
        let path = folder.path().join("answers.jsonl");
        let of =
            |all: &[(&str, usize)]| all.iter().map(|(name, tokens)| ((*name).to_owned(), *tokens)).collect::<Vec<_>>();
        let mut answers = Answers::default();
        let fails = |method: &str, number: usize| (method == "b" && number == 0).then_some(true);
        let (asked, told, result) = run(&evaluation, &mut answers, &path, &fails);
        result.unwrap();
        assert_eq!(asked, of(&[("a0", 4), ("b0", 4), ("a1", 4), ("b1", 4)]), "full prefill first");
        let kept = answers::read(&path).unwrap().0;
        assert_eq!((kept.len(), kept.iter().filter(|answer| answer.reply().is_none()).count()), (4, 1));
        assert!(kept.iter().all(|answer| answer.score == f64::from(u8::from(answer.reply().is_some()))));
        assert!(told[3].contains("; about 0 s left"), "{told:?}");

        let (asked, _, result) = run(&evaluation, &mut answers, &path, &|method, _| (method == "b").then_some(false));
        let error = result.unwrap_err();
        assert_eq!(
            (error.exit_code(), asked),
            (69, of(&[("a0", 1), ("b0", 4)])),
            "only what failed, and it is the end"
        );
        assert!(error.to_string().contains("--resume"), "{error}");
        let (asked, _, result) = run(&evaluation, &mut answers, &path, &|_, _| None);
        result.unwrap();
        assert_eq!(asked, of(&[("a0", 1), ("b0", 4)]));
        assert_eq!(answers::read(&path).unwrap().0.len(), 6, "full prefill's first token alone is no answer");
        assert_eq!(run(&evaluation, &mut answers, &path, &|_, _| None).0, [], "all is there");
    }

    #[test]
    fn recall_is_the_share_of_ideal_rows_that_are_kept() {
        let ideal = KeptRows(vec![vec![vec![1, 5, 8, 9], vec![2, 3, 4, 7]], vec![vec![6, 9], vec![0, 1]]]);
        assert_eq!(recall(&ideal, &ideal), 1.0);
        let kept = KeptRows(vec![vec![vec![0, 1, 5, 6], vec![1, 5, 6, 8]], vec![vec![6, 7], vec![0, 1]]]);
        assert_eq!(recall(&kept, &ideal), (0.5 + 0.0 + 0.5 + 1.0) / 4.0);
    }

    #[test]
    fn first_tokens_are_measured_against_fulls_after_an_interruption_too() {
        let (folder, evaluation) = (tempfile::tempdir().unwrap(), evaluation());
        let path = folder.path().join("answers.jsonl");
        // From even to three to one: half of ln(0.5 / 0.75) and half of ln(0.5 / 0.25).
        let nats = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * 2f64.ln();
        let measured = |answers: &Answers, number: usize, arm: usize| {
            let answer = answers.get(&Cell::of("single"), number, &evaluation.arms[arm]).unwrap();
            answer.reply().unwrap().kl_nats
        };
        let mut answers = Answers::default();
        let (_, _, result) =
            run(&evaluation, &mut answers, &path, &|method, number| (method == "b" && number == 1).then_some(true));
        result.unwrap();
        assert_eq!(measured(&answers, 0, 0), None, "full prefill is not measured against itself");
        assert!((measured(&answers, 0, 1).unwrap() - nats).abs() < 1e-7);
        // Full prefill's first token is asked for once more, but does not come: the other's stays
        // unmeasured.
        let fails_once = std::cell::Cell::new(true);
        let (_, _, result) =
            run(&evaluation, &mut answers, &path, &|method, _| (method == "a" && fails_once.take()).then_some(true));
        result.unwrap();
        assert_eq!(measured(&answers, 1, 1), None);
        // As if the process had been stopped before the second method's last answer: it is measured
        // when it goes on.
        let mut again = Answers::default();
        answers::read(&path).unwrap().0.into_iter().filter(|kept| kept.method == "a").for_each(|kept| again.add(kept));
        run(&evaluation, &mut again, &path, &|_, _| None).2.unwrap();
        assert!((measured(&again, 1, 1).unwrap() - nats).abs() < 1e-7);
    }
}
